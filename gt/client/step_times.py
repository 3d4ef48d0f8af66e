"""Seconds that Python takes to issue a trace's instructions, and its workers to compute one call, by the client's clock: the
first is the most that an early call can save. Least values count, since other work on the machine only adds to them."""

from __future__ import annotations

MOST = 8.0  # device seconds per second of Python up to which early calls pay on CPUs
GROWTH = 1.05  # the most by which a least value grows from one step to the next


class StepTimes:
    """Of one trace, in steps behind a read: from its first instruction until its call is complete, and until the answer."""

    __slots__ = ("issue", "device", "_began")

    def __init__(self) -> None:
        self.issue = self.device = 0.0  # least seconds; 0 where unknown
        self._began = 0.0

    def begin(self, now: float) -> None:
        """The trace's first instruction was issued."""
        self._began = now

    def complete(self, now: float) -> None:
        """Its last instruction was issued. Not for a call that was sent early: the workers' threads delay Python."""
        self.issue = _least(self.issue, now - self._began)

    def answered(self, now: float, calls: int) -> None:
        """The value read after so many calls arrived."""
        self.device = _least(self.device, (now - self._began - self.issue) / max(1, calls))

    def pay(self) -> bool:
        """Whether an early call can save a noticeable part of the time: at most the seconds of Python are saved, and on CPUs
        the threads of client and workers compete for the cores meanwhile."""
        return self.device <= MOST * self.issue


def _least(known: float, seconds: float) -> float:
    return max(0.0, min(seconds, known * GROWTH) if known else seconds)
