"""Values written at indices with a reduction: the product or the extreme of all values of one index."""

from __future__ import annotations

from gt.ops.index_arrays import FLAT, I45, SMALL, SRC, _along, _along_rules, _corner, _grid
from gt.ops.table import op
from gt.spec import Spec, float32

KINDS = ("prod", "amax", "amin")


def _check(a, index, source, *, axis: int, reduce: str):
    if reduce not in KINDS:
        raise ValueError(f"no reduction {reduce!r}: known are {', '.join(KINDS)}")
    return _along("scatter_reduce")(a, index, source, axis=axis)


def _reduced(xp, a, index, source, *, axis, reduce):
    if not a.ndim:
        flat = _reduced(xp, xp.reshape(a, (1,)), xp.reshape(index, (-1,)), xp.reshape(source, (-1,)), axis=0, reduce=reduce)
        return xp.reshape(flat, ())
    return xp.reduce_at(xp.copy(a), _grid(xp, index, axis), _corner(source, index), reduce)


def _narrowed(source, index):
    """The part of the values that the indices use, as a tensor."""
    take = tuple((d, 1) for d in index.shape)
    return source if source.shape == index.shape else source.op("slice", *[0] * index.ndim, take=take)


def _widened(g, source):
    take = tuple((d, 1) for d in g.shape)
    return g if g.shape == source.shape else g.op("slice_grad", *[0] * g.ndim, shape=source.shape, take=take)


def _pull(gs, ys, ins, axis, reduce):
    g, y, (a, index, source) = gs[0], ys[0], ins
    part = _narrowed(source, index)
    if reduce == "prod":
        own, there = _product_grads(g, y, a, index, part, axis)
    else:  # equal values share the gradient
        hit = (part == y.op("gather", index, axis=axis)).to(g.dtype)
        mine = (a == y).to(g.dtype)
        share = g / mine.op("scatter_add", index, hit, axis=axis)
        own, there = mine * share, hit * share.op("gather", index, axis=axis)
    return [own, None, _widened(there, source)]


def _product_grads(g, y, a, index, part, axis):
    """The product of the other values: by division, or, for a single zero, without it."""
    zero, nought = (a == 0).to(g.dtype), (part == 0).to(g.dtype)
    zeros = zero.op("scatter_add", index, nought, axis=axis)
    rest = (a == 0).pick(1.0, a).op("scatter_reduce", index, (part == 0).pick(1.0, part), axis=axis, reduce="prod")
    alone = (zeros == 1).pick(g * rest, 0.0)
    own = (a == 0).pick(alone, g * y / (a == 0).pick(1.0, a))
    there = (part == 0).pick(
        alone.op("gather", index, axis=axis), (g * y).op("gather", index, axis=axis) / (part == 0).pick(1.0, part)
    )
    return own, there


op("scatter_reduce", shape=_check, shard=_along_rules, keep="inputs outputs", grad=_pull,
   tries=(((FLAT, I45, SRC), {"axis": 1, "reduce": "prod"}),
          ((FLAT, SMALL, Spec((2, 5), float32)), {"axis": 0, "reduce": "amax"}),
          ((FLAT, I45, SRC), {"axis": 1, "reduce": "amin"})),
   kernel=_reduced)  # fmt: skip
