"""The runs that a worker times one by one where an observer asked for a sample, as `gt top` does."""

from __future__ import annotations

from collections.abc import Sequence

from gt.transport.events import BEGIN, END, READ, STRETCH

SHARE = 0.003  # share of a worker's time that the timing of single instructions may take
RUN, INSTRUCTION = 2e-5, 0.5e-6  # approximate seconds that the timing takes: of a run, and of each of its instructions
FIRST = 0.25  # seconds of work for which a new sample has room: the first runs are all timed
HALF = 1 << 10  # runs after which the work so far counts half
MOST = (1 << 31) - 1
GAP, LONGEST = 0.01, 0.1  # seconds between two runs, and of runs, that are told together
BEGUN = (BEGIN, 0)
CLOSED = (END, BEGIN)  # numbers of entries that last no time


class RunSample:
    """Each run has the same chance, whatever its instructions, so that the timed runs represent all of them; the number of runs
    between two is random, as programs repeat in some rhythm. Where instructions take long, all runs are timed."""

    __slots__ = ("seconds", "cost", "runs", "random")

    def __init__(self) -> None:
        self.seconds, self.cost = FIRST, 0.0  # of the runs so far, and of timing all of them
        self.runs, self.random = 0, 1

    def add(self, seconds: float, instructions: int, runs: int = 1) -> None:
        """Runs have ended."""
        self.seconds += seconds
        self.cost += runs * RUN + instructions * INSTRUCTION
        self.runs += runs
        if self.runs >= HALF:
            self.seconds, self.cost, self.runs = self.seconds / 2, self.cost / 2, HALF // 2

    def next(self) -> int:
        """The number of runs between one that is timed and the next: on average one in cost / (share of seconds) is."""
        between = self.cost / (self.seconds * SHARE) - 1
        if between <= 0:
            return 0
        self.random = self.random * 1103515245 + 12345 & MOST
        return round(2 * between * self.random / MOST)


class MergedRuns:
    """The entries of runs, as in `Columns`; successive runs that are timed as a whole are told together, without their ends."""

    def __init__(self, code: Sequence[tuple], starts: Sequence[float]) -> None:
        self.code: list[tuple] = []
        self.starts: list[float] = []
        self.seconds, self.instructions, self.runs = 0.0, 0, 0
        self.first = self.last = self.lasted = 0.0  # of the runs that are told together: begin, end, and seconds without pauses
        self.count = -1  # of their instructions; below zero while there are none
        for entry, start, stop in zip(code, starts, starts[1:]):
            number = entry[0]
            if number == STRETCH:
                if self.count < 0 or start - self.last > GAP or stop - self.first > LONGEST:
                    self._end_stretch()
                    self.first, self.lasted, self.count = start, 0.0, 0
                self.lasted += stop - start
                self.count += entry[1]
                self.last = stop
            elif number in CLOSED:
                self.runs += number == END
                if self.count < 0:
                    self._add(BEGUN, start)
            else:
                self._end_stretch()
                self._add(entry, start)
                self.seconds += stop - start
                self.instructions += number != READ
        self._end_stretch()
        self.starts.append(starts[-1])

    def _end_stretch(self) -> None:
        if self.count >= 0:
            self._add((STRETCH, self.count), self.first)
            self._add(BEGUN, self.first + self.lasted)
            self.seconds += self.lasted
            self.instructions += self.count
            self.count = -1

    def _add(self, entry: tuple, start: float) -> None:
        self.code.append(entry)
        self.starts.append(start)
