"""Overwritten values: PyTorch refuses a gradient that reads a tensor which was changed in place after it was saved. Values on
the workers never change, so the gradient could be computed here, but it raises as in PyTorch."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

MOST = 1 << 14  # most values remembered; gradients after older writes do not raise


class Overwritten:
    """The ids of overwritten values, each with the id of the last result before the write: results with ids above `last` were
    computed after all writes."""

    __slots__ = ("since", "last", "watched")

    def __init__(self) -> None:
        self.since: dict[int, int] = {}
        self.last = 0
        self.watched: WeakKeyDictionary[Any, list[tuple[int, Any]]] = WeakKeyDictionary()

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

    def watch(self, node: Any, saved: list[tuple[int, Any]]) -> None:
        """Refuse the gradient of an op also when one of these values, by id and spec, is overwritten."""
        self.watched.setdefault(node, []).extend(saved)
