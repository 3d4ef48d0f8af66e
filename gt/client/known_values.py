"""The values that a client knows, by id: a cache that may forget anything at any time. Ids are never used again, so the
value of a freed tensor does no harm: it is dropped when it is among the oldest and the cache is full."""

from __future__ import annotations

from collections.abc import Iterable

BYTES = 16 << 20  # most bytes of all, with ENTRY for each
ENTRY = 160  # bytes of an entry and of Python's objects for it


class KnownValues:
    def __init__(self) -> None:
        self.of: dict[int, bytes] = {}  # by id, the oldest first
        self.nbytes = 0
        self.get = self.of.get

    def keep(self, found: Iterable[tuple[int, bytes]]) -> None:
        known = self.of
        for id, value in found:
            if id not in known:
                self.nbytes += len(value) + ENTRY
            known[id] = value
        if self.nbytes > BYTES:
            self.drop(list(known)[: (len(known) + 1) // 2])
            if self.nbytes > BYTES // 2:
                self.clear()

    def drop(self, ids: Iterable[int]) -> None:
        for id in ids:
            value = self.of.pop(id, None)
            if value is not None:
                self.nbytes -= len(value) + ENTRY

    def clear(self) -> None:
        self.of.clear()
        self.nbytes = 0
