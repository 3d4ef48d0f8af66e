"""Engines, one for each backend, with one interface. An engine turns a kind into a callable over its own arrays. `choose.py`
makes the engine of a name."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol

from gt.ops import Kind
from gt.program import Instruction
from gt.spec import Spec
from gt.worker.engine.host_copy import HostCopy

Array = Any

# How a kind runs: by the backend itself, decomposed into other rows that the backend has, or by the base engine.
OWN, DECOMPOSED, BRIDGED = "own", "decomposed", "bridged"


class Engine(Protocol):
    """The interface of a backend for a worker."""

    name: str
    device: str
    base: str  # the engine of bridged kinds; "" if there is none
    fell_back: dict[str, str]  # requested backends that are not available, and why
    clock: Callable[[], float]
    threads: Any  # of a CPU: a context for each run of instructions, in which short kernels take one thread; else None
    small_runs: Any  # of PyTorch on a CPU: which instructions a run in C may have, and its kernel (SmallRuns); else None
    streams: Any  # of an asynchronous device: a stream for each client (ClientStreams); else None

    def begin(self) -> None:
        """Called once on the thread that will run kernels, in a worker's own process."""

    def kernel(self, kind: Kind) -> Callable[..., Any]:
        """A callable of the kind's operands (arrays, and numbers where the kind has a type) that returns the result, or a tuple
        of several."""

    def way(self, kind: Kind) -> str:
        """How `kernel(kind)` runs: OWN, DECOMPOSED or BRIDGED."""

    def over(self, kind: Kind) -> Callable[..., Any] | None:
        """The in-place variant of `kernel`, which overwrites the first operand, for a kind whose result always is new memory.
        None if there is none."""

    def update(self, kind: Kind) -> Callable[..., Any] | None:
        """A kernel for many updates whose operands die with them, which may overwrite the operands: it takes a list of each
        update's operands, and returns a list of their results. None if there is none."""

    def alike(self, ins: Instruction) -> Hashable:
        """Instructions for which this is the same can run as a list; None for one that cannot."""

    def half(self, ins: Instruction) -> tuple[Hashable, bool] | None:
        """The key of a pair of instructions that can run as one, and which of the two this is; None if it is of no pair."""

    def many(self, kind: Kind) -> Callable[..., Any] | None:
        """The kernel of an instruction of several parts, the last of which is of this kind: as `update`, or of a list or a
        pair."""

    def faster(self, program: Any) -> Any:
        """A faster form of a program (an object with `run(table, call) -> bool`, whether it ran, and `stats()`), or None."""

    def group_recording(self, trace: Any, collectives: Any, group: tuple[int, ...]) -> Any:
        """A recording of a trace with collectives of this group inside (`GroupRecording` of gt/worker/programs),
        or None."""

    def load(self, buffer: memoryview, spec: Spec, copy: bool) -> Array:
        """An array over these bytes; with `copy`, one that outlives them."""

    def store(self, array: Array, spec: Spec) -> memoryview:
        """The array's bytes, row-major, on the host."""

    def sync(self) -> None:
        """Wait until all launched kernels are done."""

    def poisoned(self, error: Exception) -> bool:
        """Whether an error has made the device unusable for this process."""

    def memory(self) -> tuple[int, int]:
        """Bytes in use and bytes in all."""

    def buffer(self, array: Array) -> tuple[int, int]:
        """A number of the array's buffer, the same for all arrays that share it, and the bytes of the buffer."""

    def capacity(self) -> int:
        """Bytes of the device's own memory; 0 if tensors are in host memory."""

    def devices(self) -> int:
        """The number of devices of this kind on the host."""

    def allocated(self) -> int | None:
        """Bytes of the device used by tensors, kernels and libraries; None if only tensors can be counted."""

    def recordings(self) -> dict[int, int]:
        """The bytes of buffers that CUDA graphs hold, by number; some of them are clients' tensors, too."""

    def to_host(self, arrays: list[Array]) -> HostCopy | None:
        """A copy of the buffer of all these arrays outside the device's memory; None if it cannot be moved. Raises OSError,
        MemoryError or RuntimeError if there is no room for it."""
