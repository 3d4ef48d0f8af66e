"""A client's turn on a worker: its end, and the preemption and continuation of runs."""

from __future__ import annotations

from collections.abc import Callable

from gt.worker.fair_queue import SLICE

ALONE = 4 * SLICE  # seconds of a turn while no other client is connected: the first message of a new one waits no longer
LOOK = 0.00025  # seconds after which a turn ends for a previously idle client, if several are connected
LIGHT = 128  # instructions on small tensors that are executed between two reads of the clock
LARGE = 1 << 14  # elements of an operand or a result from which a kernel counts as large: the clock is read before each;
SLOW = 2e-5  # estimated seconds from which one of less does, as singular values of a small matrix


class Preempted(BaseException):
    """The turn is over, and other clients wait. A BaseException, so that error handlers do not catch it."""

    def __init__(self, instruction: tuple, resume: Callable[[], None] | None = None) -> None:
        self.instruction = instruction  # the next to execute, or, with `resume`, the one in progress
        self.resume = resume  # continues a program that was preempted between two of its instructions


class Turn:
    """The current client's time slice. `now` is a clock; `others()` returns whether another client waits for this worker,
    `behind()` whether an asynchronous device has the maximum of this client's work in flight, and `newcomer()` whether work of
    a previously idle client has arrived since this turn began."""

    __slots__ = ("now", "others", "end", "look", "behind", "newcomer", "several", "fresh", "starts")

    def __init__(
        self, now: Callable[[], float], others: Callable[[], bool], behind: Callable[[], bool] | None = None,
        newcomer: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self.now, self.others, self.behind, self.newcomer = now, others, behind, newcomer
        self.end = self.look = 0.0
        self.several = False  # whether other clients are connected, even if idle
        self.fresh = False  # whether nothing was executed since it began: then it is not over at any time
        self.starts: Callable[[], None] | None = None  # called before its first kernel that may take long, then None

    def begin(self, now: float, several: bool = False, starts: Callable[[], None] | None = None) -> None:
        self.several, self.starts, self.fresh = several, starts, True
        if several:
            self.end, self.look = now + SLICE, now + LOOK
        else:
            self.end = self.look = now + ALONE

    def start(self) -> None:
        """A call of a program, a large kernel or a collective is about to be executed, or a wait for the device."""
        if self.starts is not None:
            starts, self.starts = self.starts, None
            starts()

    def over(self) -> bool:
        """Whether to preempt the run. If no other client waits, the next slice begins; but no more work is launched on a device
        that is behind, as a launch that blocks there would stop the worker for all clients."""
        if self.fresh:
            self.fresh = False
            if self.starts is not None:
                self.start()
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
        self.begin(now, self.several, self.starts)
        self.fresh = False
        return False
