"""Which values were written over: PyTorch refuses a gradient that reads a tensor which was changed in place since it was saved.
Values on the workers never change, so the gradient could be computed here; it raises all the same, as it does there."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

MOST = 1 << 14  # values remembered; of writes before these, gradients are given without a word


class Overwritten:
    """The ids of values that variables had before they were written to, each with the id of the last result before that: what
    was made later than `last` was made after all writes."""

    __slots__ = ("since", "last", "watched")

    def __init__(self) -> None:
        self.since: dict[int, int] = {}
        self.last = 0
        self.watched: WeakKeyDictionary[Any, list[tuple[int, Any]]] = WeakKeyDictionary()

    def add(self, origin: int, since: int) -> None:
        """The variable of the value with this id is written to. Ops after `since` belong to the write, and may read it."""
        self.since[origin] = since
        self.wrote(since)

    def wrote(self, since: int) -> None:
        """Something was noted in `since`."""
        if since > self.last:
            self.last = since
        if len(self.since) > MOST:
            for id in list(self.since)[: MOST // 2]:
                del self.since[id]

    def watch(self, node: Any, saved: list[tuple[int, Any]]) -> None:
        """Let the gradient of an op be refused, too, once one of these values, by id and spec, is written over."""
        self.watched.setdefault(node, []).extend(saved)
