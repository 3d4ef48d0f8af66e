"""Seconds in which a worker worked and waited for mail. Any thread may read them."""

from __future__ import annotations

from collections.abc import Callable


class BusyTime:
    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.idle = self.busy = 0.0
        self.since = 0.0  # start of the current work; 0 while there is none

    def waited(self, began: float) -> float:
        """Count a wait since `began`; the worker works from now on. Returns the time."""
        now = self.clock()
        self.idle, self.since = self.idle + now - began, now
        return now

    def worked(self) -> None:
        """End the current work."""
        self.busy, self.since = self.busy + self.clock() - self.since, 0.0

    def so_far(self) -> tuple[float, float]:
        """Seconds busy and idle, including the current work."""
        since = self.since
        return self.busy + (self.clock() - since if since else 0.0), self.idle

    def stats(self) -> dict[str, float]:
        total = self.idle + self.busy
        return {"idle": self.idle / total if total else 1.0, "busy_seconds": self.busy}
