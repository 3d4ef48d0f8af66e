"""The runs that a worker times one by one where an observer asked for a sample, as `gt top` does."""

from __future__ import annotations

SHARE = 0.003  # share of a worker's time that the timing of single instructions may take
RUN, INSTRUCTION = 2e-5, 0.5e-6  # approximate seconds that the timing takes: of a run, which also ends a stretch of others
# and begins the next, and of each of its instructions
FIRST = 0.25  # seconds of work for which a new sample has room: the first runs are all timed
HALF = 1 << 10  # runs after which the work so far counts half
MOST = (1 << 31) - 1


class RunSample:
    """Each run has the same chance, whatever its instructions, so that the timed runs represent all of them; the number of runs
    between two is random, as programs repeat in some rhythm. Where instructions take long, all runs are timed."""

    __slots__ = ("skip", "seconds", "cost", "runs", "random")

    def __init__(self) -> None:
        self.skip = 0  # runs until the next that is timed; whoever skips one counts it down
        self.seconds, self.cost = FIRST, 0.0  # of the runs so far, and of timing all of them
        self.runs, self.random = 0, 1

    def add(self, seconds: float, instructions: int, runs: int = 1) -> None:
        """Runs have ended."""
        self.seconds += seconds
        self.cost += runs * RUN + instructions * INSTRUCTION
        self.runs += runs
        if self.runs >= HALF:
            self.seconds, self.cost, self.runs = self.seconds / 2, self.cost / 2, HALF // 2

    def next(self) -> None:
        """Choose the next run after one that is timed: on average one in cost / (share of seconds) is."""
        between = self.cost / (self.seconds * SHARE) - 1
        if between > 0:
            self.random = self.random * 1103515245 + 12345 & MOST
            self.skip = round(2 * between * self.random / MOST)
