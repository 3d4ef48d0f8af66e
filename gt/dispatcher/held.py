"""The messages of a client that wait for a worker, an upload or their turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from gt.transport import checks
from gt.transport.messages import Batch


def weight(message: Any) -> int:
    """A held message in instructions."""
    if not isinstance(message, Batch):
        return 1
    defined = sum(1 + len(kind.ins) for kind in message.kinds) + sum(map(checks.length, message.traces))
    return 1 + len(message.code) + len(message.gets) + defined


class HeldMessages(deque[Any]):
    """`size` is the weight of all that are held, `lost` the causes of results that are made of lost tensors, None of others."""

    def __init__(self, messages: Iterable[Any] = ()) -> None:
        super().__init__(messages)
        self.size = sum(map(weight, self))
        self.lost: dict[int, Any] = {}

    def without(self, some: list[Any]) -> HeldMessages:
        left = HeldMessages(message for message in self if message not in some)
        left.lost = self.lost
        return left

    def append(self, message: Any) -> None:
        self.size += weight(message)
        super().append(message)

    def appendleft(self, message: Any) -> None:
        self.size += weight(message)
        super().appendleft(message)

    def popleft(self) -> Any:
        message = super().popleft()
        self.size -= weight(message)
        if self.lost:
            self.lost.clear()  # a worker has come: results of held instructions become entries as these are handled
        return message
