"""The random numbers of fuzzers are those of Python's generator, so that seeds of earlier findings still reproduce them."""

from __future__ import annotations

from random import Random

import pytest

from gt.testing.fuzz_random import FuzzRandom


def test_draws_are_those_of_random() -> None:
    ours, python = FuzzRandom(5), Random(5)
    for n in (1, 2, 3, 7, 8, 9, 100, 1 << 40) * 20:
        assert ours.randrange(n) == python.randrange(n)
        assert ours.randrange(-4, n) == python.randrange(-4, n)
        assert ours.randint(-2, n) == python.randint(-2, n)
        assert ours.randrange(0, n, 3) == python.randrange(0, n, 3)
        items = list(range(min(n, 20)))
        assert ours.choice(items) == python.choice(items)
        assert ours.in_any_order(items) == python.sample(items, len(items))
        assert ours.random() == python.random()


def test_there_is_no_draw_of_nothing() -> None:
    with pytest.raises(ValueError, match="empty range"):
        FuzzRandom(1).randrange(0)
    with pytest.raises(ValueError, match="empty range"):
        FuzzRandom(1).choice([])
