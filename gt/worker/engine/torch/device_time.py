"""Device time of clients' turns, by events at their beginnings and ends. Turns of several clients run side by side: while they
do, each is charged an equal part of the time, so that all charges together are the time that the device was busy. While turns
of interactive clients are under way, whose kernels go first, the time is theirs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

LONG = 1000.0  # milliseconds from the event that others are compared with: CUDA gives the difference in single precision


class OpenTurn:
    """A turn that the device may not have ended."""

    __slots__ = ("client", "begins", "ends", "calls", "first", "begun", "done", "part")

    def __init__(self, client: str, begins: Any, ends: Any, calls: int, first: bool) -> None:
        self.client, self.begins, self.ends, self.calls, self.first = client, begins, ends, calls, first
        self.begun = self.done = False  # as far as is known; the events of one that is done belong to other turns
        self.part = 0.0  # that of `DeviceTime.parts` at its beginning


class DeviceTime:
    """The integral of 1 over the number of turns under way goes up to the last beginning or end that is known, `at`. The
    charge of a turn is its difference between the turn's end and its beginning. There are two: of the turns whose kernels go
    `first`, and of the others, which stands still while there are such."""

    def __init__(self) -> None:
        self.turns: dict[str, deque[OpenTurn]] = {}  # by client, whose turns the device executes one after another
        self.at, self.parts = 0.0, [0.0, 0.0]  # milliseconds; of the others, and of the turns that go first
        self.running = [0, 0]  # turns that have begun and not ended, the same two
        self.spare: list[Any] = []  # events of turns that are done: to make one takes as long as to record four
        self.base: Any = None  # an event, and when it was
        self.base_at = 0.0

    def add(self, client: str, begins: Any, ends: Any, calls: int = 0, first: bool = False) -> OpenTurn:
        turn = OpenTurn(client, begins, ends, calls, first)
        self.turns.setdefault(client, deque()).append(turn)
        return turn

    def measured(self) -> list[tuple[str, float, int]]:
        """Client, device seconds and calls of each turn that has ended there since this was last asked."""
        ended = list(self._ended())
        if not ended:
            return []
        self.base = self.base or ended[0].begins
        points = [(self._when(turn.ends), True, turn) for turn in ended]
        last, found = max(points, key=itemgetter(0)), []
        points += [(self._when(turn.begins), False, turn) for turn in self._begun(ended)]
        points.sort(key=itemgetter(0, 1))  # the beginning of a turn that took no time before its end
        for at, ends, turn in points:
            self._advance(at)
            if ends:
                self.running[turn.first] -= 1
                found.append((turn.client, (self.parts[turn.first] - turn.part) / 1e3, turn.calls))
            else:
                self.running[turn.first] += 1
                turn.part = self.parts[turn.first]
        if last[0] - self.base_at > LONG:
            self.base, self.base_at = last[2].ends, last[0]
        for turn in ended:
            turn.done = True
            self.spare += [event for event in (turn.begins, turn.ends) if event is not self.base]
        return found

    def _ended(self) -> Iterator[OpenTurn]:
        """Remove the turns that have ended."""
        for client in list(self.turns):
            turns = self.turns[client]
            while turns and turns[0].ends.query():
                yield turns.popleft()
            if not turns:
                del self.turns[client]

    def _begun(self, ended: list[OpenTurn]) -> Iterator[OpenTurn]:
        """The turns, ended or not, whose beginning was not known yet: whatever began before one of `ended` has ended is known
        by now."""
        for turn in ended:
            if not turn.begun:
                yield turn
        for turns in self.turns.values():
            for turn in turns:
                if turn.begun:
                    continue
                if not turn.begins.query():
                    break
                turn.begun = True
                yield turn

    def _advance(self, at: float) -> None:
        """Go on to this time. One just before the last, of an event that was not seen yet when that was, counts as the last."""
        if at > self.at:
            first = self.running[True] > 0
            self.parts[first] += (at - self.at) / (self.running[first] or 1)
            self.at = at

    def _when(self, event: Any) -> float:
        return float(self.base_at + self.base.elapsed_time(event))
