"""Segments: lent until given back, mapped once, and never written while someone looks."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest

from gt.transport import shm
from gt.transport.shm import ARENA, LEND, SMALL, Borrowed, Pool, can_read

pytestmark = pytest.mark.skipif(not shm.supported(), reason="no memory files here")
ME = os.getpid()


def data(n: int, value: int = 7) -> np.ndarray:
    return np.full(n, value, np.uint8)


def test_what_is_packed_is_seen_at_its_place() -> None:
    pool, borrowed = Pool(), Borrowed()
    for n in (1, 100, SMALL, SMALL + 1, LEND + 5):
        place, _ = pool.pack(data(n))
        np.testing.assert_array_equal(borrowed.view(ME, place, n), data(n))


def test_small_arrays_share_a_segment_and_large_ones_have_their_own() -> None:
    pool = Pool()
    (a, _), (b, _), (c, sealed) = pool.pack(data(10)), pool.pack(data(10)), pool.pack(data(SMALL + 1))
    assert a[0] == b[0] and a[2] != b[2] and c[0] != a[0] and sealed == [c[0]]


def test_a_full_arena_is_sealed_and_another_begun() -> None:
    pool = Pool()
    sealed = []
    for _ in range(2 * ARENA // SMALL + 1):
        sealed += pool.pack(data(SMALL))[1]
    assert len(sealed) == 2


def test_a_segment_given_back_is_used_again() -> None:
    pool = Pool()
    first = pool.take(1 << 20)
    pool.give(first.fd)
    assert pool.take(1 << 20) is first
    assert pool.take(1 << 20) is not first


def test_idle_segments_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm, "KEEP", 4 << 20)
    pool = Pool()
    fds = [pool.take(1 << 20).fd for _ in range(20)]
    for fd in fds:
        pool.give(fd)
    assert sum(s.size for s in pool.idle) <= 4 << 20 and pool.outstanding() == 0


def test_giving_back_what_is_not_lent_is_harmless() -> None:
    Pool().give(12345)


def test_a_loan_ends_when_the_last_view_of_it_is_gone() -> None:
    """Views of views count, also where NumPy lets them refer past those between."""
    pool, borrowed, ended = Pool(), Borrowed(), list[int]()
    place, _ = pool.pack(data(LEND))
    array = borrowed.view(ME, place, LEND, lambda: ended.append(1))
    views = [array.view(np.float32), array.view(np.ndarray).view(np.int16).reshape(2, -1)[1], array[5:].reshape(-1)[3:]]
    del array
    while views:
        gc.collect()
        assert not ended
        views.pop()
    gc.collect()
    assert ended == [1]


def test_a_token_tells_whether_memory_is_shared() -> None:
    pool = Pool()
    (fd, _, _), _ = pool.pack(np.frombuffer(b"token" + bytes(SMALL), np.uint8))
    assert can_read(ME, fd, b"token")
    assert not can_read(ME, fd, b"other") and not can_read(ME, fd, b"") and not can_read(ME, 9999, b"token")
    assert not can_read(2**22 + 1, fd, b"token")


def test_mapped_segments_of_peers_are_bounded() -> None:
    pool, borrowed = Pool(), Borrowed()
    places = [pool.pack(data(SMALL + 1, i))[0] for i in range(140)]
    for i, place in enumerate(places):
        assert borrowed.view(ME, place, 1)[0] == i
    assert len(borrowed.maps) <= 129
