"""Counter-based random numbers: Philox 4x32 over (seed, op number, index of the element in the whole tensor), so that they are
the same for every placement and engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from gt.ops import table
from gt.ops.activation import floats
from gt.ops.create import F32, I64, any_axis, made
from gt.ops.table import Kind, Rule
from gt.spec import REPLICATE, Shape, Shard, Spec, float32

MASK = 0xFFFFFFFF
ROWS = 1 << 20  # elements to draw at once if a piece has only a part of each row


def philox(xp: Any, counter: Any, seed: int, number: int) -> list[Any]:
    """Four words of 32 random bits, in int64, for each counter."""
    c0, c1, c2, c3 = counter & MASK, counter >> 32, number & MASK, (number >> 32) & MASK
    if not isinstance(number, int):
        c2 = c2 + (counter & 0)  # a number that may be a 0-d tensor, broadcast to each counter
    k0, k1 = seed & MASK, (seed >> 32) & MASK
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57  # wraps to 64 bits; the shifts below read them as unsigned
        c0, c2 = p1 >> 32, p0 >> 32
        c0 &= MASK  # in place, as passes over memory take most of the time
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


def lanes(xp: Any, seed: Any, number: Any, first: int, count: int, bits: int) -> Any:
    """`count` integers of this many bits, from index `first`: the reference for engines without a faster one. A counter gives
    four words of 32 bits, each two of 16, the lower first."""
    each = 128 // bits
    begin, end = first // each, -(-(first + count) // each)
    counters = xp.arange(begin, end)
    parts = []
    for i in range(0, end - begin, xp.block):
        found = philox(xp, counters[i : i + xp.block], seed, number)
        if bits == 16:
            found = [half for w in found for half in (w & 0xFFFF, w >> 16)]
        parts.append(xp.reshape(xp.stack(found, axis=1), (-1,)))
    flat = xp.concat(parts) if len(parts) > 1 else parts[0]
    return flat[first - begin * each :][:count]


def words(xp: Any, seed: Any, number: Any, first: int, count: int) -> Any:
    """Integers of 32 bits."""
    return lanes(xp, seed, number, first, count, 32)


def fractions(xp: Any, seed: Any, number: Any, first: int, count: int) -> Any:
    """Numbers of 24 bits, uniform in [0, 1)."""
    return xp.cast(words(xp, seed, number, first, count) >> 8, F32) * (1.0 / (1 << 24))


def bernoulli(xp: Any, seed: Any, number: Any, first: int, count: int, least: int) -> Any:
    """Whether numbers of 16 bits are at least a threshold."""
    return lanes(xp, seed, number, first, count, 16) >= least


def normals(xp: Any, seed: Any, number: Any, first: int, count: int) -> Any:
    """Box and Muller: the uniform numbers 2j and 2j + 1 of the whole tensor give its normal numbers 2j and 2j + 1, so a piece
    that begins or ends inside a pair computes both. The two are -cosine and sine of a turn, each as the sine of the distance to
    the nearest turn where it is zero: these distances are exact."""
    begin, end = first // 2, -(-(first + count) // 2)
    pair = xp.reshape(xp.fractions(seed, number, 2 * begin, 2 * (end - begin)), (-1, 2))
    radius = xp.sqrt(-2.0 * xp.log(pair[:, 0] + 1.0 / (1 << 24)))
    turn = pair[:, 1] - 0.5
    across = xp.abs(turn) - 0.25
    along = 0.25 - xp.abs(across)
    turns = xp.stack([across, xp.where(turn < 0, -along, along)], axis=1)
    made = xp.reshape(radius, (-1, 1)) * xp.sin(turns * (2.0 * math.pi))
    return xp.reshape(made, (-1,))[first - 2 * begin :][:count]


def _kept(xp: Any, a: Any, p: Any, kept: Any) -> Any:
    return xp.where(kept, a * (1.0 / (1.0 - p) if p < 1 else 0.0), xp.zeros((), dtype=a.dtype))


def dropped(xp: Any, a: Any, p: Any, seed: Any, number: Any, first: int) -> Any:
    """Each element kept or dropped by the random number of its index; the elements of `a` are consecutive from `first`."""
    count = math.prod(a.shape)
    kept = xp.bernoulli(seed, number, first, count, round(p * (1 << 16)))
    return _kept(xp, a, p, xp.reshape(kept, tuple(a.shape)))


def _piece(xp: Any, draw: Callable[[int, int], Any], shape: Shape, whole: Shape, start: Shape) -> Any:
    """The draws `draw(first, count)` for the elements of this piece, by their index in the whole tensor."""
    if not math.prod(shape):
        return xp.reshape(draw(0, 1)[:0], shape)
    if not shape:
        return xp.reshape(draw(0, 1), ())
    row = math.prod(whole[1:])
    if tuple(shape[1:]) == tuple(whole[1:]):
        return xp.reshape(draw(start[0] * row, shape[0] * row), shape)
    inner = tuple(slice(s, s + d) for s, d in zip(start[1:], shape[1:]))
    step = max(1, ROWS // row)
    parts = []
    for at in range(0, shape[0], step):
        n = min(step, shape[0] - at)
        rows = xp.reshape(draw((start[0] + at) * row, n * row), (n, *whole[1:]))
        parts.append(rows[(slice(None), *inner)])
    return xp.concat(parts) if len(parts) > 1 else parts[0]


def _uniform(xp, seed, number, *, shape, whole, start, dtype):
    return xp.cast(_piece(xp, partial(xp.fractions, seed, number), shape, whole, start), dtype)


def _normal(xp, seed, number, *, shape, whole, start, dtype):
    return xp.cast(_piece(xp, partial(xp.normals, seed, number), shape, whole, start), dtype)


def _integers(xp, seed, number, low, high, *, shape, whole, start, dtype):
    drawn = _piece(xp, partial(xp.words, seed, number), shape, whole, start)
    return xp.cast(low + drawn % (high - low), dtype)


op = partial(table.op, shape=made, shard=any_axis, random=True)
PIECE = {"shape": (2, 3), "whole": (4, 3), "start": (1, 0)}

op("uniform", kernel=_uniform, tries=(((7, 1), {**PIECE, "dtype": F32}),))
op("normal", kernel=_normal, tries=(((7, 1), {**PIECE, "dtype": F32}),))
op("integers", kernel=_integers, tries=(((7, 1, -2, 9), {**PIECE, "dtype": I64}),))


def _dropout(xp, a, p, seed, number, *, whole, start):
    """Each element is kept or dropped by the random number of its index in the whole tensor."""
    shape = tuple(a.shape)
    if shape and shape[1:] == tuple(whole[1:]) and math.prod(shape):
        return xp.dropped(a, p, seed, number, start[0] * math.prod(shape[1:]))
    least = round(p * (1 << 16))
    return _kept(xp, a, p, _piece(xp, lambda at, n: xp.bernoulli(seed, number, at, n, least), shape, whole, start))


def _dropped(a: Spec, *numbers: type, whole: Shape, start: Shape) -> Spec:
    inside = len(whole) == len(start) == a.ndim and all(0 <= s <= s + d <= w for s, d, w in zip(start, a.shape, whole))
    if not inside:
        raise ValueError(f"dropout: expected a piece of {whole} from {start}, got {a.shape}")
    return floats("dropout")(a)


def _kept_axis(kind: Kind) -> list[Rule]:
    rest = [REPLICATE] * (len(kind.ins) - 1)
    return [((Shard(i), *rest), (Shard(i),)) for i in range(kind.outs[0].ndim)]


# The gradient drops the same elements: the same numbers for the same indices.
table.op("dropout", shape=_dropped, shard=_kept_axis, random=True, kernel=_dropout,
         tries=(((Spec((2, 3), float32), 0.4, 7, 1), {"whole": (4, 3), "start": (1, 0)}),),
         grad=(lambda g, b, c, d, whole, start: g.op("dropout", b, c, d, whole=whole, start=start),
               None, None, None))  # fmt: skip
