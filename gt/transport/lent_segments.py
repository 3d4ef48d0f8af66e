"""The segments of a client that batches in flight read: a segment is free again once its batch has been executed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class LentSegments(Generic[T]):
    """`filled` are the segments that the current batch reads; sent batches have theirs, in order, by serial."""

    def __init__(self) -> None:
        self.filled: list[T] = []
        self.in_flight: deque[tuple[int, list[T]]] = deque()

    def sealed(self, serial: int) -> bool:
        """The current batch is sent under this serial. Returns whether the client needs an acknowledgement of it."""
        if not self.filled:
            return False
        self.in_flight.append((serial, self.filled))
        self.filled = []
        return True

    def executed(self, serial: int) -> Iterator[T]:
        """The segments of all batches up to this serial, which are free again."""
        while self.in_flight and self.in_flight[0][0] <= serial:
            yield from self.in_flight.popleft()[1]
