"""Device time of clients' turns, by events at their beginnings and ends. Turns of several clients run side by side: while they
do, each is charged an equal part of the time, so that all charges together are the time that the device was busy."""

from __future__ import annotations

import math
from typing import Any

LONG = 1000.0  # milliseconds from the event that others are compared with: CUDA gives the difference in single precision


class OpenTurn:
    """A turn that the device may not have ended."""

    __slots__ = ("client", "begins", "ends", "began", "ended")

    def __init__(self, client: str, begins: Any, ends: Any) -> None:
        self.client, self.begins, self.ends = client, begins, ends
        self.began = self.ended = math.inf  # milliseconds, once they are known


class DeviceTime:
    def __init__(self) -> None:
        self.turns: list[OpenTurn] = []
        self.over: list[tuple[float, float]] = []  # turns that have ended, and that one in `turns` ran beside
        self.base: Any = None  # an event, and when it was
        self.base_at = 0.0

    def add(self, client: str, begins: Any, ends: Any) -> None:
        self.turns.append(OpenTurn(client, begins, ends))

    def measured(self) -> list[tuple[str, float]]:
        """Device seconds of turns that have ended there since this was last asked, by client."""
        ended = [turn for turn in self.turns if turn.ends.query()]
        if not ended:
            return []
        self.base = self.base or ended[0].begins
        for turn in self.turns:  # whatever began before one of these has ended is known by now
            if turn.began == math.inf and turn.begins.query():
                turn.began = self._when(turn.begins)
        for turn in ended:
            turn.ended = self._when(turn.ends)
        spans = [*self.over, *((turn.began, turn.ended) for turn in self.turns)]
        found = [(turn.client, _part(turn.began, turn.ended, spans) / 1e3) for turn in ended]
        self.turns = [turn for turn in self.turns if turn.ended == math.inf]
        first = min((turn.began for turn in self.turns), default=math.inf)
        self.over = [(began, end) for began, end in spans if first < end < math.inf]
        last = max(ended, key=lambda turn: turn.ended)
        if last.ended - self.base_at > LONG:
            self.base, self.base_at = last.ends, last.ended
        return found

    def _when(self, event: Any) -> float:
        return float(self.base_at + self.base.elapsed_time(event))


def _part(began: float, ended: float, spans: list[tuple[float, float]]) -> float:
    """The integral of 1 over the number of turns under way, from `began` to `ended`."""
    spans = [(max(began, a), min(ended, b)) for a, b in spans if a < ended and b > began]
    times = sorted({time for span in spans for time in span})
    return sum((b - a) / sum(x <= a and b <= y for x, y in spans) for a, b in zip(times, times[1:]))
