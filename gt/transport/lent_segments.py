"""Which segments of a client the batches in flight read: a segment is free again once its batch has been executed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class LentSegments(Generic[T]):
    """`filled` are the segments that the batch at hand reads; sent batches keep theirs, in order, by serial."""

    def __init__(self) -> None:
        self.filled: list[T] = []
        self.in_flight: deque[tuple[int, list[T]]] = deque()

    def sealed(self, serial: int) -> bool:
        """The batch at hand is sent under this serial. Whether the client needs to know when it has been executed."""
        if not self.filled:
            return False
        self.in_flight.append((serial, self.filled))
        self.filled = []
        return True

    def executed(self, serial: int) -> Iterator[T]:
        """The segments of all batches up to this serial, which nobody reads any more."""
        while self.in_flight and self.in_flight[0][0] <= serial:
            yield from self.in_flight.popleft()[1]
