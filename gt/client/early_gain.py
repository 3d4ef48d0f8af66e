"""Whether early calls of a trace pay, by trial: some steps with and some without, and the faster way for many steps after them.
It reads no clock."""

from __future__ import annotations

from math import inf

STEPS = 16  # timed steps of a trial
FASTER = 0.97  # of the time without early calls that a step takes with them, at most: they cost CPU time
HOLD, LONGEST = 64, 4096  # steps between two trials: at first, and at most
MORE = 4  # times as many steps until the next trial where its outcome is that of the trial before


class Trial:
    """Of one trace. The least seconds of either way count, since other work on the machine only adds to them."""

    __slots__ = ("timed", "least", "pays", "hold", "left")

    def __init__(self) -> None:
        self.timed = 0  # steps of this trial
        self.least = [inf, inf]  # seconds without early calls, and with them
        self.pays: bool | None = None  # the outcome of the last trial
        self.hold = self.left = HOLD  # steps from the last trial to the next one, in all and left

    def runs(self) -> bool:
        """Whether the next step is one of a trial, to be timed."""
        return self.timed < STEPS

    def sends(self) -> bool:
        """Whether the next step is called early. In a trial the Thue-Morse sequence decides: a loop whose steps differ with a
        period of two or four has steps of each kind on either way."""
        return not self.timed.bit_count() & 1 if self.runs() else bool(self.pays)

    def took(self, seconds: float) -> None:
        """Seconds of a step of a trial, from the answer before it until its own."""
        self.least[self.sends()] = min(self.least[self.sends()], seconds)
        self.timed += 1
        if not self.runs():
            before, self.pays = self.pays, self.least[True] < FASTER * self.least[False]
            self.hold = self.left = min(LONGEST, MORE * self.hold) if self.pays is before else HOLD

    def passed(self) -> None:
        """A step between two trials has begun."""
        self.left -= 1
        if not self.left:
            self.timed, self.least = 0, [inf, inf]
