"""Engines compute: one file a backend, all of one form. An engine turns a kind into a callable over its own arrays."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, Protocol

from gt.ops import Kind
from gt.spec import Spec

Array = Any


class Engine(Protocol):
    """What a worker asks of a backend."""

    name: str
    device: str
    clock: Callable[[], float]

    def begin(self) -> None:
        """Called once in the thread that will run kernels, in a process of its own."""

    def kernel(self, kind: Kind) -> Callable[..., Any]:
        """A callable of the kind's operands (arrays, and numbers where the kind has a type) that gives its output,
        or a tuple where it has several."""

    def faster(self, program: Any) -> Any:
        """A faster form of a trace (an object with `run(table, call) -> bool`, whether it ran, and `stats()`), or None."""

    def load(self, buffer: memoryview, spec: Spec, copy: bool) -> Array:
        """An array over these bytes; with `copy`, one that outlives them."""

    def store(self, array: Array, spec: Spec) -> memoryview:
        """The array's bytes, row-major, on the host."""

    def sync(self) -> None:
        """Wait until everything asked for is done."""

    def memory(self) -> tuple[int, int]:
        """Bytes in use and bytes there are."""


FILES = {"numpy": "gt.worker.engine.numpy", "pytorch": "gt.worker.engine.torch"}


def default_name() -> str:
    """PyTorch when it can be imported, else NumPy."""
    return "pytorch" if importlib.util.find_spec("torch") else "numpy"


def make(name: str | None) -> Engine:
    name = name or default_name()
    if name not in FILES:
        raise ValueError(f"no backend {name!r}: available are {', '.join(sorted(FILES))}")
    return importlib.import_module(FILES[name]).make()
