"""Entries with the times at which they begin, for the event stream: in C (time_stamps.c) if it was built when GT was installed,
else in Python. `GT_NATIVE=0` disables the C."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from gt.native_modules import native

NATIVE: Any = native("gt.transport._time_stamps")
Clock = Callable[[], float]


class TimeStamps(Protocol):
    """Entries and their times. Any thread may add to them and take."""

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
    """The reference."""

    __slots__ = ("clock", "ended", "pairs")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.ended: Any = None
        self.pairs: list[tuple[Any, float]] = []

    def add(self, entry: Any) -> float:
        at = self.clock()
        self.pairs.append((entry, at))
        return at

    def append(self, entry: Any, start: float) -> None:
        self.pairs.append((entry, start))

    def over(self, code: Iterator[Any], end: Any) -> Iterator[Any]:
        for entry in code:
            self.pairs.append((entry, self.clock()))
            yield entry
        if end is not None:
            self.pairs.append((end, self.clock()))
            self.ended = end

    def __len__(self) -> int:
        return len(self.pairs)

    def last(self) -> tuple[Any, float] | None:
        return self.pairs[-1] if self.pairs else None

    def replace_last(self, entry: Any) -> None:
        self.pairs[-1] = entry, self.pairs[-1][1]

    def take(self, n: int) -> tuple[list[Any], bytes]:
        taken = self.pairs[: n + 1]
        del self.pairs[:n]
        return [entry for entry, _ in taken[:n]], array("d", [start for _, start in taken]).tobytes()


def time_stamps(clock: Clock) -> TimeStamps:
    """Stamps by this clock; the system's is read without a call of Python."""
    if NATIVE is None:
        return PythonTimeStamps(clock)
    stamps: TimeStamps = NATIVE.TimeStamps(None if clock is time.time else clock)
    return stamps
