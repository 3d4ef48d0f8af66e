"""A clock that tests advance: recorded times can be compared exactly, however busy the host is."""

from __future__ import annotations


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
