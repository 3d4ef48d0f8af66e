"""A client's turn on a worker: until when it lasts, and how a run is left in its middle and gone on with."""

from __future__ import annotations

from collections.abc import Callable

from gt.worker.fair_queue import SLICE

LIGHT = 128  # instructions on small tensors that are executed before the clock is looked at
LARGE = 1 << 14  # elements of an operand or a result from which a kernel counts as large: before each the clock is looked at


class Preempted(BaseException):
    """The turn is over, and others wait. No error, so that no handler of errors takes it for one."""

    def __init__(self, instruction: tuple, resume: Callable[[], None] | None = None) -> None:
        self.instruction = instruction  # the next to execute, or, with `resume`, the one that is under way
        self.resume = resume  # goes on with a program that was left between two of its instructions


class Turn:
    """The time that the client at hand has. `now` is a clock, `others` says whether anyone else waits for this worker."""

    __slots__ = ("now", "others", "end", "behind")

    def __init__(
        self, now: Callable[[], float], others: Callable[[], bool], behind: Callable[[], bool] = lambda: False
    ) -> None:
        self.now, self.others, self.end = now, others, 0.0
        self.behind = behind  # whether the device has enough of this client's work before it

    def begin(self) -> None:
        self.end = self.now() + SLICE

    def over(self) -> bool:
        """Whether to make room for another client. Where nobody waits, the next slice begins."""
        if self.now() < self.end and not self.behind():
            return False
        if self.others():
            return True
        self.begin()
        return False
