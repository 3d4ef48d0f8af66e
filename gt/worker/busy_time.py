"""How many seconds a worker worked and how many it waited for mail. Any thread may ask."""

from __future__ import annotations

from collections.abc import Callable


class BusyTime:
    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.idle = self.busy = 0.0
        self.since = 0.0  # when the work at hand began; 0 while there is none

    def waited(self, began: float) -> float:
        """It waited since `began`, and works from here on: the time."""
        now = self.clock()
        self.idle, self.since = self.idle + now - began, now
        return now

    def worked(self) -> None:
        """The work at hand is done."""
        self.busy, self.since = self.busy + self.clock() - self.since, 0.0

    def so_far(self) -> tuple[float, float]:
        """Seconds busy and idle, those of the work at hand included."""
        since = self.since
        return self.busy + (self.clock() - since if since else 0.0), self.idle

    def stats(self) -> dict[str, float]:
        total = self.idle + self.busy
        return {"idle": self.idle / total if total else 1.0, "busy_seconds": self.busy}
