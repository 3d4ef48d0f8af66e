"""Random numbers of `gt.ops.random` on the CPU, generated in cache-sized blocks by several threads: in C (philox.c) if it was
built when GT was installed, else in NumPy. `GT_NATIVE=0` disables the C."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from gt.native_modules import native

NATIVE: Any = native("gt.worker.engine._philox")
FRACTIONS, WORDS, BERNOULLI, NORMAL, DROPOUT = range(5)  # as philox.c numbers them

BLOCK = 1 << 15  # counters per block: few enough for a core's cache, enough that threads rarely contend for the GIL
SHARE = 1 << 18  # least lanes per thread in NumPy
NATIVE_SHARE = 1 << 16  # least numbers per thread in C
TIMES = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
LOW, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
Make = Callable[[np.ndarray, np.ndarray], None]


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_threads(), "gt-philox")


def _threads() -> int:
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


class _Philox:
    """Philox 4x32 over consecutive counters, a block at a time, in preallocated memory."""

    def __init__(self, seed: int, number: int) -> None:
        self.number, self.keys, key = number, [], [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
        for _ in range(10):
            self.keys.append((np.uint64(key[0]), np.uint64(key[1])))
            key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
        self.room = np.empty((6, BLOCK), np.uint64)
        self.words = np.empty((BLOCK, 4), np.uint32)

    def block(self, first: int, n: int) -> np.ndarray:
        """The words of n consecutive counters."""
        c0, c1, c2, c3, p0, p1 = self.room[:, :n]
        c1[:] = np.arange(first, first + n, dtype=np.uint64)
        np.bitwise_and(c1, LOW, out=c0)
        np.right_shift(c1, HALF, out=c1)
        c2[:], c3[:] = self.number & 0xFFFFFFFF, (self.number >> 32) & 0xFFFFFFFF
        for k0, k1 in self.keys:
            np.multiply(c0, TIMES[0], out=p0)
            np.multiply(c2, TIMES[1], out=p1)
            np.right_shift(p1, HALF, out=c0)
            np.bitwise_xor(c0, c1, out=c0)
            np.bitwise_xor(c0, k0, out=c0)
            np.bitwise_and(p1, LOW, out=c1)
            np.right_shift(p0, HALF, out=c2)
            np.bitwise_xor(c2, c3, out=c2)
            np.bitwise_xor(c2, k1, out=c2)
            np.bitwise_and(p0, LOW, out=c3)
        words = self.words[:n]
        for i, c in enumerate((c0, c1, c2, c3)):
            words[:, i] = c
        return words


def _fill_blocks(seed: int, number: int, first: int, count: int, dtype: str, out: np.ndarray, make: Make) -> None:
    """Call `make(lanes, part of out)` block by block, for `count` lanes of this dtype from the lane `first` on."""
    each = 16 // np.dtype(dtype).itemsize
    at, done, philox = first // each, 0, _Philox(seed, number)
    skip = first - at * each
    while done < count:
        n = min(BLOCK, -(-(count - done + skip) // each))
        found = philox.block(at, n).reshape(-1).view(dtype)[skip : skip + count - done]
        make(found, out[done : done + len(found)])
        at, done, skip = at + n, done + len(found), 0


def _filled(seed: int, number: int, first: int, count: int, dtype: str, out: np.ndarray, make: Make) -> np.ndarray:
    parts = min(_threads(), max(1, count // SHARE))
    if parts == 1:
        _fill_blocks(seed, number, first, count, dtype, out, make)
        return out
    edges = [count * i // parts for i in range(parts + 1)]
    jobs = [
        _pool().submit(_fill_blocks, seed, number, first + a, b - a, dtype, out[a:b], make) for a, b in zip(edges, edges[1:])
    ]
    for job in jobs:
        job.result()
    return out


def _fraction(words: np.ndarray, out: np.ndarray) -> None:
    np.right_shift(words, np.uint32(8), out=words)
    np.multiply(words, np.float32(1.0 / (1 << 24)), out=out, dtype=np.float32, casting="unsafe")


def _native(
    distribution: int,
    seed: int,
    number: int,
    first: int,
    count: int,
    out: int,
    size: int,
    a: int = 0,
    least: int = 0,
    scale: float = 0.0,
) -> None:
    """Write `count` numbers from the number `first` on to the address `out`, elements of `size` bytes; dropout reads its input
    at the address `a`."""
    if count < 2 * NATIVE_SHARE:  # too few to divide: without a question to the system for its number of cores
        NATIVE.fill(distribution, seed, number, first, count, out, a, least, scale)
        return
    parts = min(_threads(), count // NATIVE_SHARE)
    edges = [count * i // parts for i in range(parts + 1)]

    def fill(begin: int, end: int) -> None:
        NATIVE.fill(distribution, seed, number, first + begin, end - begin, out + begin * size, a + begin * size, least, scale)

    jobs = [_pool().submit(fill, begin, end) for begin, end in zip(edges[1:], edges[2:])]
    fill(0, edges[1])
    for job in jobs:
        job.result()


KINDS = {"fractions": (FRACTIONS, 4), "words": (WORDS, 8), "bernoulli": (BERNOULLI, 1), "normals": (NORMAL, 4)}


def write(name: str, out: int, seed: int, number: int, first: int, count: int, least: int = 0) -> None:
    """The numbers of the function below with that name, written to the address `out`; in C only."""
    distribution, size = KINDS[name]
    if count < 2 * NATIVE_SHARE:  # at once: another call takes as long as a hundred numbers
        NATIVE.fill(distribution, seed, number, first, count, out, 0, least, 0.0)
    else:
        _native(distribution, seed, number, first, count, out, size, least=least)


def fractions(seed: int, number: int, first: int, count: int) -> np.ndarray:
    out = np.empty(count, np.float32)
    if NATIVE is None:
        return _filled(seed, number, first, count, "<u4", out, _fraction)
    _native(FRACTIONS, seed, number, first, count, out.ctypes.data, 4)
    return out


def words(seed: int, number: int, first: int, count: int) -> np.ndarray:
    out = np.empty(count, np.int64)
    if NATIVE is None:
        return _filled(seed, number, first, count, "<u4", out, lambda w, out: np.copyto(out, w))
    _native(WORDS, seed, number, first, count, out.ctypes.data, 8)
    return out


def bernoulli(seed: int, number: int, first: int, count: int, least: int) -> np.ndarray:
    if least > 0xFFFF:
        return np.zeros(count, bool)
    out = np.empty(count, bool)
    if NATIVE is None:
        make = lambda w, out: np.greater_equal(w, np.uint16(least), out=out)  # noqa: E731
        return _filled(seed, number, first, count, "<u2", out, make)
    _native(BERNOULLI, seed, number, first, count, out.ctypes.data, 1, least=least)
    return out


def normals(seed: int, number: int, first: int, count: int) -> np.ndarray:
    """Normally distributed numbers by the method of `gt.ops.random.normals`; in C only."""
    out = np.empty(count, np.float32)
    _native(NORMAL, seed, number, first, count, out.ctypes.data, 4)
    return out


def dropout(seed: int, number: int, first: int, count: int, out: int, a: int, least: int, scale: float) -> None:
    """Dropout of float32 elements at the address `a`, written to the address `out`; in C only."""
    _native(DROPOUT, seed, number, first, count, out, 4, a, least, scale)
