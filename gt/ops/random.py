"""Counter-based random numbers: Philox 4x32 over (seed, op number, index of the element in the whole tensor), so that any
placement and every engine draw the same ones."""

from __future__ import annotations

from functools import partial
from typing import Any

from gt.ops import table
from gt.ops.activation import floats
from gt.ops.create import F32, I64, any_axis, made
from gt.ops.table import Kind, Rule
from gt.spec import REPLICATE, Shard, Spec, float32

MASK = 0xFFFFFFFF


def philox(xp: Any, counter: Any, seed: int, number: int) -> list[Any]:
    """Four words of 32 random bits, in int64, for each counter."""
    c0, c1, c2, c3 = counter & MASK, counter >> 32, number & MASK, (number >> 32) & MASK
    if not isinstance(number, int):
        c2 = c2 + (counter & 0)  # a number that came as a 0-d tensor, once for each counter
    k0, k1 = seed & MASK, (seed >> 32) & MASK
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57  # wraps to 64 bits; the shifts below read them as unsigned
        c0, c2 = p1 >> 32, p0 >> 32
        c0 &= MASK  # in place, for these passes over memory are all the cost
        c0 ^= c1
        c0 ^= k0
        c2 &= MASK
        c2 ^= c3
        c2 ^= k1
        p1 &= MASK
        p0 &= MASK
        c1, c3 = p1, p0
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return [c0, c1, c2, c3]


def _words(xp: Any, seed: int, number: int, shape, whole, start) -> Any:
    """32 bits for each element of this piece: word i % 4 of counter i // 4, i being its index in the whole."""
    return _drawn(xp, seed, number, shape, whole, start, 4, lambda words: words)


def _halves(xp: Any, seed: int, number: int, shape, whole, start) -> Any:
    """16 bits for each element, where those are enough: half a word each, so eight of a counter."""
    return _drawn(xp, seed, number, shape, whole, start, 8, lambda w: [h for x in w for h in (x & 0xFFFF, x >> 16)])


def _drawn(xp: Any, seed: int, number: int, shape, whole, start, lanes: int, cut) -> Any:
    """Element i of the whole has lane i % `lanes` of what `cut` makes of the words of counter i // `lanes`."""
    n = 1
    for d in shape:
        n *= d
    if n == 0:
        return xp.zeros((0,), dtype=xp.int64)
    if tuple(shape[1:]) == tuple(whole[1:]):  # rows of the whole: consecutive elements
        row = n // shape[0] if shape else 1
        first = start[0] * row if shape else 0
        counters = xp.arange(first // lanes, (first + n + lanes - 1) // lanes)
        parts = []
        for at in range(0, len(counters), xp.block):
            words = cut(philox(xp, counters[at : at + xp.block], seed, number))
            parts.append(xp.reshape(xp.stack(words, axis=1), (-1,)))
        flat = xp.concat(parts) if len(parts) > 1 else parts[0]
        return flat[first % lanes : first % lanes + n]
    index: Any = 0
    for axis, d in enumerate(shape):
        stride = 1
        for e in whole[axis + 1 :]:
            stride *= e
        along = xp.arange(start[axis], start[axis] + d) * stride
        index = index + xp.reshape(along, (-1,) + (1,) * (len(shape) - axis - 1))
    index = xp.reshape(index, (-1,))
    words = cut(philox(xp, index // lanes, seed, number))
    found, lane = words[0], index % lanes
    for i in range(1, lanes):
        found = xp.where(lane == i, words[i], found)
    return found


def _uniform(xp, seed, number, *, shape, whole, start, dtype):
    words = _words(xp, seed, number, shape, whole, start)
    return xp.cast(xp.reshape(xp.cast(words >> 8, F32) * (1.0 / (1 << 24)), shape), dtype)


def _normal(xp, seed, number, *, shape, whole, start, dtype):
    """Box and Muller, with both numbers of an element drawn from its own counter, so that no pair straddles two pieces."""
    u = _words(xp, seed, number, shape, whole, start)
    v = _words(xp, seed, number | (1 << 62), shape, whole, start)
    radius = xp.sqrt(-2.0 * xp.log((xp.cast(u >> 8, F32) + 1.0) * (1.0 / (1 << 24))))
    angle = xp.cast(v >> 8, F32) * (6.283185307179586 / (1 << 24))
    return xp.cast(xp.reshape(radius * xp.cos(angle), shape), dtype)


def _integers(xp, seed, number, low, high, *, shape, whole, start, dtype):
    words = _words(xp, seed, number, shape, whole, start)
    return xp.cast(xp.reshape(low + words % (high - low), shape), dtype)


op = partial(table.op, shape=made, shard=any_axis, random=True)
PIECE = {"shape": (2, 3), "whole": (4, 3), "start": (1, 0)}

op("uniform", kernel=_uniform, tries=(((7, 1), {**PIECE, "dtype": F32}),))
op("normal", kernel=_normal, tries=(((7, 1), {**PIECE, "dtype": F32}),))
op("integers", kernel=_integers, tries=(((7, 1, -2, 9), {**PIECE, "dtype": I64}),))


def _dropout(xp, a, p, seed, number, *, whole, start):
    """Each element is kept or not by the number that belongs to its place in the whole."""
    kept = xp.reshape(_halves(xp, seed, number, tuple(a.shape), whole, start) >= round(p * (1 << 16)), tuple(a.shape))
    return xp.where(kept, a * (1.0 / (1.0 - p) if p < 1 else 0.0), xp.zeros((), dtype=a.dtype))


def _kept_axis(kind: Kind) -> list[Rule]:
    rest = [REPLICATE] * (len(kind.ins) - 1)
    return [((Shard(i), *rest), (Shard(i),)) for i in range(kind.outs[0].ndim)]


# The gradient drops what was dropped: the same numbers for the same places.
table.op("dropout", shape=floats("dropout"), shard=_kept_axis, random=True, kernel=_dropout,
         tries=(((Spec((2, 3), float32), 0.4, 7, 1), {"whole": (4, 3), "start": (1, 0)}),),
         grad=(lambda g, b, c, d, whole, start: g.op("dropout", b, c, d, whole=whole, start=start),
               None, None, None))  # fmt: skip
