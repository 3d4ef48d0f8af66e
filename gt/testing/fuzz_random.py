"""The random numbers of fuzzers."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")


class FuzzRandom(Random):
    """FuzzRandom the same numbers as `Random` of the same seed, with fewer calls: a fuzzer draws dozens for each message."""

    def choice(self, seq: Any) -> Any:
        return seq[self.randrange(len(seq))]

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        first, n = (0, start) if stop is None else (start, stop - start)
        if n < 1 or step != 1:
            return super().randrange(start, stop, step)
        bits, draw = n.bit_length(), self.getrandbits
        found = draw(bits)
        while found >= n:
            found = draw(bits)
        return first + found

    def randint(self, a: int, b: int) -> int:
        return self.randrange(a, b + 1)

    def in_any_order(self, items: Sequence[T]) -> list[T]:
        """As `sample(items, len(items))` of a few items."""
        rest, found = list(items), []
        for left in range(len(rest), 0, -1):
            at = self.randrange(left)
            found.append(rest[at])
            rest[at] = rest[left - 1]
        return found
