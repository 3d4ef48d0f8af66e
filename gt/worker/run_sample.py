"""The runs that a worker times one by one where an observer asked for a sample, as `gt top` does."""

from __future__ import annotations

SHARE = 0.003  # share of a worker's time that the timing of single instructions may take
RUN, INSTRUCTION = 4e-6, 0.5e-6  # approximate seconds that the timing takes: of a run, and of each of its instructions
FIRST = 0.5  # seconds of work for which a new sample has room: the first runs are all timed
HALF = 1 << 10  # runs after which the work so far counts half
MOST = (1 << 31) - 1


class RunSample:
    """Each run has the same chance, whatever its instructions, so that the timed runs represent all of them, and successive
    runs are drawn independently, as programs repeat in some rhythm. Where instructions take long, all runs are timed."""

    __slots__ = ("seconds", "cost", "runs", "random")

    def __init__(self) -> None:
        self.seconds, self.cost = FIRST, 0.0  # of the work so far, and of its timing if all of it were timed
        self.runs, self.random = 0, 1

    def draw(self, instructions: int) -> bool:
        """Whether to time the next run, of so many instructions, one by one."""
        self.cost = cost = self.cost + RUN + instructions * INSTRUCTION
        self.runs += 1
        if self.runs % HALF == 0:
            self.seconds, self.cost = self.seconds / 2, cost / 2
        if cost <= self.seconds * SHARE:
            return True
        self.random = self.random * 1103515245 + 12345 & MOST
        return self.random * cost < self.seconds * SHARE * MOST
