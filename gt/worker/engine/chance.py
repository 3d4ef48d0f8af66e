"""Random bits on the CPU: NumPy's Philox, whose numbers are those of `gt.ops.random`, some of them by each thread."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

BLOCK = 1 << 14  # numbers of 64 bits at once, so that what is made of them finds them in a core's cache
SHARE = 1 << 16  # as many are worth a thread


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_threads(), "gt-chance")


def _threads() -> int:
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


def _each(seed: int, number: int, first: int, count: int, dtype: str, out: np.ndarray, make) -> None:
    """`make(lanes, part of out)` over the lanes of this dtype from the `first` on, in blocks."""
    size = 8 // np.dtype(dtype).itemsize
    begin = first // (4 * size)
    draw = np.random.Philox(key=[seed, number], counter=[begin, 0, 0, 0]).random_raw
    skip, at = first - begin * 4 * size, 0
    while at < count:
        found = draw(min(BLOCK, -(-(count - at + skip) // size))).view(dtype)[skip : skip + count - at]
        make(found, out[at : at + len(found)])
        at, skip = at + len(found), 0


def _filled(seed: int, number: int, first: int, count: int, dtype: str, out: np.ndarray, make) -> np.ndarray:
    seed, number = int(seed) % (1 << 64), int(number) % (1 << 64)
    parts = min(_threads(), max(1, count // SHARE))
    if parts == 1:
        _each(seed, number, first, count, dtype, out, make)
        return out
    edges = [count * i // parts for i in range(parts + 1)]
    jobs = [_pool().submit(_each, seed, number, first + a, b - a, dtype, out[a:b], make) for a, b in zip(edges, edges[1:])]
    for job in jobs:
        job.result()
    return out


def _fraction(words: np.ndarray, out: np.ndarray) -> None:
    words >>= np.uint32(8)
    np.multiply(words, np.float32(1.0 / (1 << 24)), out=out, dtype=np.float32, casting="unsafe")


def fractions(seed: int, number: int, first: int, count: int) -> np.ndarray:
    return _filled(seed, number, first, count, "<u4", np.empty(count, np.float32), _fraction)


def words(seed: int, number: int, first: int, count: int) -> np.ndarray:
    return _filled(seed, number, first, count, "<u4", np.empty(count, np.int64), lambda w, out: np.copyto(out, w))


def chances(seed: int, number: int, first: int, count: int, least: int) -> np.ndarray:
    if least > 0xFFFF:
        return np.zeros(count, bool)
    make = lambda w, out: np.greater_equal(w, np.uint16(least), out=out)  # noqa: E731
    return _filled(seed, number, first, count, "<u2", np.empty(count, bool), make)
