"""Copies of large arrays into shared memory, by more than one thread where the process has cores to spare: a core alone copies
at a fraction of the memory's speed, and a client's Python waits for it. The threads are copies.c's; where it was not built, one
copies alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gt.native_modules import native

if TYPE_CHECKING:
    import numpy

NATIVE: Any = native("gt.transport._copies")

MANY = 2 << 20  # least bytes for more than one thread
CORES = 2  # cores for each thread that helps: client, worker and dispatcher need theirs
MOST = 5  # most threads that help


def spare_threads() -> int:
    """Threads that may help, by the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST, (cores - 1) // CORES)


class Copier:
    """`threads` help with large copies."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = spare_threads() if threads is None else threads

    def copy(self, target: numpy.ndarray, data: numpy.ndarray) -> None:
        """Copy bytes; all of them are there when it returns."""
        if NATIVE is None or not self.threads or data.nbytes < MANY:
            target[:] = data
        else:
            NATIVE.copy(target, data, self.threads)
