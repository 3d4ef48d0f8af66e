"""Entries with the times at which they begin, for the event stream: in C (time_stamps.c) if it was built when GT was installed,
else in Python. `GT_NATIVE=0` disables the C."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import gt.environment as environment

NATIVE: Any = None
if environment.NATIVE.value():
    try:
        from gt.transport import _time_stamps as NATIVE  # type: ignore[no-redef,attr-defined]
    except ImportError:  # not built: there was no compiler
        NATIVE = None
Clock = Callable[[], float]


class TimeStamps(Protocol):
    """Entries and their times. One thread adds to them, any thread may take."""

    ended: Any  # the last entry that `over` noted at the end of an iterator, or None

    def add(self, entry: Any, /) -> float:
        """Note an entry that begins at this moment, and return the time."""

    def append(self, entry: Any, start: float, /) -> None:
        """Note an entry that began at a given time."""

    def over(self, code: Iterator[Any], end: Any, /) -> Iterator[Any]:
        """The same objects, each noted as it is asked for, and at the end `end`, unless it is None."""

    def __len__(self) -> int: ...

    def last(self) -> tuple[Any, float] | None:
        """The last entry and its time."""

    def replace_last(self, entry: Any, /) -> None:
        """Put another entry in the place of the last, with the same time."""

    def take(self, n: int, /) -> tuple[list[Any], bytes]:
        """Remove and return the first n entries, and their times as float64, with that of the next entry if there is one."""


class PythonTimeStamps:
    """The reference. A time is added before its entry: there are never more entries than times."""

    __slots__ = ("clock", "ended", "entries", "starts")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.ended: Any = None
        self.entries: list[Any] = []
        self.starts: list[float] = []

    def add(self, entry: Any) -> float:
        at = self.clock()
        self.append(entry, at)
        return at

    def append(self, entry: Any, start: float) -> None:
        self.starts.append(start)
        self.entries.append(entry)

    def over(self, code: Iterator[Any], end: Any) -> Iterator[Any]:
        for entry in code:
            self.append(entry, self.clock())
            yield entry
        if end is not None:
            self.append(end, self.clock())
            self.ended = end

    def __len__(self) -> int:
        return len(self.entries)

    def last(self) -> tuple[Any, float] | None:
        n = len(self.entries)
        return (self.entries[n - 1], self.starts[n - 1]) if n else None

    def replace_last(self, entry: Any) -> None:
        self.entries[-1] = entry

    def take(self, n: int) -> tuple[list[Any], bytes]:
        n = min(n, len(self.entries))
        entries, starts = self.entries[:n], array("d", self.starts[: n + 1])
        del self.entries[:n], self.starts[:n]
        return entries, starts.tobytes()


def time_stamps(clock: Clock) -> TimeStamps:
    """Stamps by this clock; the system's is read without a call of Python."""
    if NATIVE is None:
        return PythonTimeStamps(clock)
    stamps: TimeStamps = NATIVE.TimeStamps(None if clock is time.time else clock)
    return stamps
