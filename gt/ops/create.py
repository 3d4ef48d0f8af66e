"""Ops that create tensors. Where a value depends on its position, `whole` is the shape of the whole tensor and `start` the
offset of this piece in it, so that each worker computes its own piece."""

from __future__ import annotations

from gt.ops.table import Kind, Rule, op
from gt.spec import DTYPES, REPLICATE, Partial, Shard, Spec, float32, float64, int64


def made(*numbers: type, shape, dtype: int, **_: object) -> Spec:
    return Spec(shape, DTYPES[dtype])


def any_axis(kind: Kind) -> list[Rule]:
    """Every axis may be sharded: each worker creates its own piece."""
    return [((REPLICATE,) * len(kind.ins), (Shard(i),)) for i in range(len(kind.outs[0].shape))]


F32, I64 = float32.code, int64.code


def _iota(xp, first, step, *, shape, whole, start, dtype):
    places = xp.arange(start[0], start[0] + shape[0])
    if DTYPES[dtype].rank == 2:  # in float64, as PyTorch would convert integers and a number to float32
        places = xp.cast(places, float64.code)
    return xp.cast(first + places * step, dtype)


op("full", shape=made, shard=any_axis, tries=(((float,), {"shape": (2, 3), "dtype": F32}),),
   kernel=lambda xp, value, *, shape, dtype: xp.full(shape, value, dtype=xp.dtype(dtype)))  # fmt: skip
op("iota", shape=made, shard=any_axis,
   tries=(((0.5, 2.0), {"shape": (3,), "whole": (5,), "start": (1,), "dtype": F32}),),
   kernel=_iota)  # fmt: skip
op("eye", shape=made, shard=any_axis,
   tries=(((), {"shape": (2, 3), "whole": (4, 3), "start": (1, 0), "dtype": F32}),),
   kernel=lambda xp, *, shape, whole, start, dtype: xp.cast(
       xp.reshape(xp.arange(start[0], start[0] + shape[0]), (-1, 1)) == xp.arange(start[1], start[1] + shape[1]),
       dtype))  # fmt: skip


def _any_place(kind: Kind) -> list[Rule]:
    """Its result has the placement of its input, whose values are not used; a partial input gives no partial result."""
    rules: list[Rule] = [((Shard(i), REPLICATE), (Shard(i),)) for i in range(kind.outs[0].ndim)]
    return rules + [((Partial(r), REPLICATE), (REPLICATE,)) for r in ("sum", "max", "min", "prod")]


# A tensor of one value with the placement of another.
op("full_like", complex="analytic", shape=lambda a, value, *, dtype: Spec(a.shape, DTYPES[dtype]), shard=_any_place,
   tries=(((Spec((2, 3), float32), 1.5), {"dtype": F32}), ((Spec((2, 3), float32), 2), {"dtype": I64})),
   kernel=lambda xp, a, value, *, dtype: xp.full(tuple(a.shape), value, dtype=xp.dtype(dtype)))  # fmt: skip
# A tensor of the client's bytes: numbers give their place (segment, offset), which the worker resolves.
op("load", shape=made, kernel=None, shard=any_axis, statics=("shape", "whole", "start", "dtype"))
