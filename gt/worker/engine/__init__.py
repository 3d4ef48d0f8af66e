"""Engines compute: one file a backend, all of one form. An engine turns a kind into a callable over its own arrays.
`choose.py` makes the engine that a name asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from gt.ops import Kind
from gt.spec import Spec
from gt.worker.engine.host_copy import HostCopy

Array = Any

# How a kind runs: by the backend itself, as other rows which the backend has, or by another engine over its arrays.
OWN, DECOMPOSED, BRIDGED = "own", "decomposed", "bridged"


class Engine(Protocol):
    """What a worker asks of a backend."""

    name: str
    device: str
    base: str  # the engine that what is bridged runs on; "" where nothing is
    fell_back: dict[str, str]  # backends that were asked for before this one, and why they could not be had
    clock: Callable[[], float]
    streams: Any  # of a device that runs behind its worker: a queue for each client (ClientStreams); None elsewhere

    def begin(self) -> None:
        """Called once in the thread that will run kernels, in a process of its own."""

    def kernel(self, kind: Kind) -> Callable[..., Any]:
        """A callable of the kind's operands (arrays, and numbers where the kind has a type) that gives its output,
        or a tuple where it has several."""

    def way(self, kind: Kind) -> str:
        """How `kernel(kind)` runs: OWN, DECOMPOSED or BRIDGED."""

    def over(self, kind: Kind) -> Callable[..., Any] | None:
        """As `kernel`, for a kind whose result always is new memory: one that writes it over the first operand's. None where
        there is none."""

    def update(self, kind: Kind) -> Callable[..., Any] | None:
        """A kernel for many updates that end what they update, which may write over that: it takes the operands of each in a
        list, and gives their results in one. None where there is none."""

    def faster(self, program: Any) -> Any:
        """A faster form of a trace (an object with `run(table, call) -> bool`, whether it ran, and `stats()`), or None."""

    def load(self, buffer: memoryview, spec: Spec, copy: bool) -> Array:
        """An array over these bytes; with `copy`, one that outlives them."""

    def store(self, array: Array, spec: Spec) -> memoryview:
        """The array's bytes, row-major, on the host."""

    def sync(self) -> None:
        """Wait until everything asked for is done."""

    def poisoned(self, error: Exception) -> bool:
        """Whether an error has spoilt the device: nothing will run on it any more in this process."""

    def memory(self) -> tuple[int, int]:
        """Bytes in use and bytes there are."""

    def buffer(self, array: Array) -> tuple[int, int]:
        """A number for the memory that an array lies in, the same for all arrays over it, and the bytes of that memory."""

    def capacity(self) -> int:
        """Bytes of a device that has memory of its own; 0 where tensors lie in the host's."""

    def devices(self) -> int:
        """How many such devices this host has."""

    def allocated(self) -> int | None:
        """Bytes of the device that tensors, kernels and libraries have; None where only the tensors' own can be counted."""

    def recordings(self) -> dict[int, int]:
        """Buffers that recorded programs hold, by their numbers, and their bytes; some of them are clients' tensors, too."""

    def to_host(self, arrays: list[Array]) -> HostCopy | None:
        """A copy of the buffer that all these arrays lie in, outside of the device's memory; None where it cannot be moved.
        Raises OSError, MemoryError or RuntimeError where there is no room for it."""
