"""Seconds in which this thread could run and had no core, as other programs had them: no client is charged for those."""

from __future__ import annotations

import os
from collections.abc import Callable

COUNTS = "/proc/thread-self/schedstat"  # of the thread that opens it: nanoseconds on a core, nanoseconds without one, and turns


class CoreWaits:
    """A call returns these seconds so far, of the thread that has made this, in 1.5 us. An OSError or IndexError where the
    system does not count them."""

    def __init__(self) -> None:
        self.fd = -1
        self.fd = os.open(COUNTS, os.O_RDONLY | os.O_CLOEXEC)
        self()

    def __call__(self) -> float:
        return int(os.pread(self.fd, 64, 0).split()[1]) * 1e-9

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def core_waits() -> Callable[[], float]:
    """A function that returns the seconds so far, always 0 where they are not counted."""
    try:
        return CoreWaits()
    except (OSError, IndexError):
        return float
