"""A client's turn on a worker: until when it lasts, and how a run is left in its middle and gone on with."""

from __future__ import annotations

from collections.abc import Callable

from gt.worker.fair_queue import SLICE

LIGHT = 128  # instructions on small tensors that are executed before the clock is looked at
LARGE = 1 << 14  # elements of an operand or a result from which a kernel counts as large: before each the clock is looked at


class Preempted(BaseException):
    """The turn is over, and other clients wait. A BaseException, so that handlers of errors let it pass."""

    def __init__(self, instruction: tuple, resume: Callable[[], None] | None = None) -> None:
        self.instruction = instruction  # the next to execute, or, with `resume`, the one being executed
        self.resume = resume  # goes on with a program that was left between two of its instructions


class Turn:
    """The time that the client at hand has. `now` is a clock, `others` says whether anyone else waits for this worker,
    `behind` whether the device has enough of this client's work before it, on a device that runs behind its worker."""

    __slots__ = ("now", "others", "end", "behind", "fresh")

    def __init__(self, now: Callable[[], float], others: Callable[[], bool], behind: Callable[[], bool] | None = None) -> None:
        self.now, self.others, self.behind, self.end = now, others, behind, 0.0
        self.fresh = False  # no instruction was executed yet: the turn is not over, even if its time is

    def begin(self, now: float) -> None:
        self.end = now + SLICE
        self.fresh = True

    def over(self) -> bool:
        """Whether to make room for another client. Where nobody waits, the next slice begins."""
        if self.fresh:
            self.fresh = False
            return False
        now = self.now()
        if now < self.end and (self.behind is None or not self.behind()):
            return False
        if self.others():
            return True
        self.end = now + SLICE
        return False
