"""Overwritten values: PyTorch refuses a gradient that reads a tensor which was changed in place after it was saved. Values on
the workers never change, so the gradient could be computed here, but it raises as in PyTorch."""

from __future__ import annotations

MOST = 1 << 14  # most values remembered; gradients after older writes do not raise


class Overwritten:
    """The ids of overwritten values, each with the id of the last result before the write: results with ids above `last` were
    computed after all writes."""

    __slots__ = ("since", "last")

    def __init__(self) -> None:
        self.since: dict[int, int] = {}
        self.last = 0

    def add(self, origin: int, since: int) -> None:
        """Note a write to the variable with this value. Ops after `since` belong to the write, and may read it."""
        self.since[origin] = since
        self.wrote(since)

    def wrote(self, since: int) -> None:
        """An entry was added to `since`."""
        if since > self.last:
            self.last = since
        if len(self.since) > MOST:
            for id in list(self.since)[: MOST // 2]:
                del self.since[id]
