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
BLOCK = 1 << 16  # counters a round works on at once: small enough to stay in a core's cache


def philox(xp: Any, counter: Any, seed: int, number: int) -> list[Any]:
    """Four words of 32 random bits, in int64, for each counter."""
    c = [counter & MASK, counter >> 32, number & MASK, (number >> 32) & MASK]
    k0, k1 = seed & MASK, (seed >> 32) & MASK
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57  # wraps to 64 bits; the shifts below read them as unsigned
        c = [((p1 >> 32) & MASK) ^ c[1] ^ k0, p1 & MASK, ((p0 >> 32) & MASK) ^ c[3] ^ k1, p0 & MASK]
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c


def _words(xp: Any, seed: int, number: int, shape, whole, start) -> Any:
    """A word for each element of this piece: word i % 4 of counter i // 4, i being its index in the whole."""
    n = 1
    for d in shape:
        n *= d
    if n == 0:
        return xp.zeros((0,), dtype=xp.int64)
    if tuple(shape[1:]) == tuple(whole[1:]):  # rows of the whole: consecutive elements
        row = n // shape[0] if shape else 1
        first = start[0] * row if shape else 0
        counters = xp.arange(first // 4, (first + n + 3) // 4)
        parts = []
        for at in range(0, len(counters), BLOCK):
            words = philox(xp, counters[at : at + BLOCK], seed, number)
            parts.append(xp.reshape(xp.stack(words, axis=1), (-1,)))
        flat = xp.concat(parts) if len(parts) > 1 else parts[0]
        return flat[first % 4 : first % 4 + n]
    index: Any = 0
    for axis, d in enumerate(shape):
        stride = 1
        for e in whole[axis + 1 :]:
            stride *= e
        along = xp.arange(start[axis], start[axis] + d) * stride
        index = index + xp.reshape(along, (-1,) + (1,) * (len(shape) - axis - 1))
    index = xp.reshape(index, (-1,))
    w = philox(xp, index >> 2, seed, number)
    lane = index & 3
    return xp.where(lane < 2, xp.where(lane == 0, w[0], w[1]), xp.where(lane == 2, w[2], w[3]))


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
    words = _words(xp, seed, number, tuple(a.shape), whole, start)
    kept = xp.reshape(words >= int(p * (1 << 32)), tuple(a.shape))
    return xp.where(kept, a * (1.0 / (1.0 - p) if p < 1 else 0.0), xp.zeros((), dtype=a.dtype))


def _kept_axis(kind: Kind) -> list[Rule]:
    rest = [REPLICATE] * (len(kind.ins) - 1)
    return [((Shard(i), *rest), (Shard(i),)) for i in range(kind.outs[0].ndim)]


# The gradient drops what was dropped: the same numbers for the same places.
table.op("dropout", shape=floats("dropout"), shard=_kept_axis, random=True, kernel=_dropout,
         tries=(((Spec((2, 3), float32), 0.4, 7, 1), {"whole": (4, 3), "start": (1, 0)}),),
         grad=(lambda g, b, c, d, whole, start: g.op("dropout", b, c, d, whole=whole, start=start),
               None, None, None))  # fmt: skip
