"""Copies of large arrays into shared memory, by more than one thread where the process has cores to spare: a core alone copies
at a fraction of the memory's speed, and a client's Python waits for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy

PART = 512 << 10  # bytes that a thread copies at a time
MANY = 4 * PART  # least bytes for more than one thread
CORES = 4  # cores for each thread that helps: client, worker and dispatcher need theirs
MOST = 3  # most threads that help


def spare_threads() -> int:
    """Threads that may help, by the cores that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST, cores // CORES)


class Copier:
    """Its threads begin with the first large copy, and end with `close`. Whoever has time takes the next part, so nobody waits
    for a thread that has not begun."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = spare_threads() if threads is None else threads
        self.jobs: SimpleQueue[Callable[[], None] | None] | None = None

    def copy(self, target: numpy.ndarray, data: numpy.ndarray) -> None:
        """Copy bytes; all of them are there when it returns."""
        if not self.threads or data.nbytes < MANY:
            target[:] = data
            return
        parts = iter(range(0, data.nbytes, PART))
        done: SimpleQueue[int] = SimpleQueue()

        def help() -> None:
            for at in parts:
                target[at : at + PART] = data[at : at + PART]
                done.put(at)

        jobs = self._jobs()
        for _ in range(self.threads):
            jobs.put(help)
        help()
        for _ in range(-(-data.nbytes // PART)):
            done.get()

    def _jobs(self) -> SimpleQueue[Callable[[], None] | None]:
        if self.jobs is None:
            self.jobs = SimpleQueue()
            for _ in range(self.threads):
                threading.Thread(target=_serve, args=(self.jobs,), name="gt-copy", daemon=True).start()
        return self.jobs

    def close(self) -> None:
        jobs, self.jobs = self.jobs, None
        if jobs is not None:
            for _ in range(self.threads):
                jobs.put(None)


def _serve(jobs: SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it holds the arrays
