"""A client's turn on a worker: until when it lasts, and how a run is left in its middle and gone on with."""

from __future__ import annotations

from collections.abc import Callable

from gt.worker.fair_queue import SLICE

LOOK = 0.00025  # seconds after which a turn makes room for a client that was idle, where several are connected
LIGHT = 128  # instructions on small tensors that are executed before the clock is looked at
LARGE = 1 << 14  # elements of an operand or a result from which a kernel counts as large: before each the clock is looked at


class Preempted(BaseException):
    """The turn is over, and other clients wait. A BaseException, so that handlers of errors let it pass."""

    def __init__(self, instruction: tuple, resume: Callable[[], None] | None = None) -> None:
        self.instruction = instruction  # the next to execute, or, with `resume`, the one being executed
        self.resume = resume  # goes on with a program that was left between two of its instructions


class Turn:
    """The time that the client at hand has. `now` is a clock, `others` says whether anyone else waits for this worker,
    `behind` whether the device has enough of this client's work before it, on a device that runs behind its worker, and
    `newcomer` whether someone came since this turn began who was idle."""

    __slots__ = ("now", "others", "end", "look", "behind", "newcomer", "several", "fresh")

    def __init__(
        self, now: Callable[[], float], others: Callable[[], bool], behind: Callable[[], bool] | None = None,
        newcomer: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self.now, self.others, self.behind, self.newcomer = now, others, behind, newcomer
        self.end = self.look = 0.0
        self.several = False  # whether others are connected, be they idle
        self.fresh = False  # whether nothing was executed since it began: then it is not over, whatever the clock says

    def begin(self, now: float, several: bool = False) -> None:
        self.end = now + SLICE
        self.several = several
        self.look = now + LOOK if several else self.end
        self.fresh = True

    def over(self) -> bool:
        """Whether to make room for another client. Where nobody waits, the next slice begins; but no more is given to a device
        that is behind, as a launch that has to wait there keeps the worker from everyone."""
        if self.fresh:
            self.fresh = False
            return False
        now = self.now()
        if self.behind is not None and self.behind():
            return True
        if now < self.look:
            return False
        if now < self.end:
            self.look = now + LOOK
            return self.newcomer()
        if self.others():
            return True
        self.end = now + SLICE
        self.look = now + LOOK if self.several else self.end
        return False
