"""Ops that make one element of many."""

from __future__ import annotations

from gt.ops.rules import reduced, without
from gt.ops.table import Kind, Rule, op
from gt.spec import Partial, Shard, Spec, float32, int64


def reduction_rules(*kinds: str):
    """Cut along a kept axis, or, for a reduction that has terms, along a reduced one."""

    def rules(kind: Kind) -> list[Rule]:
        axes, keep = kind.settings["axis"], kind.settings["keepdims"]
        found: list[Rule] = []
        for at in range(len(kind.ins[0].shape)):
            if at not in axes:
                out = at if keep else at - sum(a < at for a in axes)
                found.append(((Shard(at),), (Shard(out),)))
            elif kinds:
                found.append(((Shard(at),), (Partial(kinds[0]),)))
        found += [((Partial(r),), (Partial(r),)) for r in kinds]
        return found

    return rules


def _sum(a: Spec, *, axis, keepdims) -> Spec:
    return Spec(without(a.shape, axis, keepdims), a.dtype if a.dtype.rank == 2 else int64)


def _mean(a: Spec, *, axis, keepdims) -> Spec:
    if a.dtype.rank != 2:
        raise TypeError(f"mean wants a floating-point tensor, not {a.dtype.name}: cast with .float() first")
    return reduced(a, axis=axis, keepdims=keepdims)


def _nonempty(a: Spec, *, axis, keepdims) -> Spec:
    if any(a.shape[i] == 0 for i in axis):
        raise ValueError(f"cannot take the largest or smallest of no elements: shape {a.shape}, axes {axis}")
    return reduced(a, axis=axis, keepdims=keepdims)


def _spread(g, a, axis, keepdims):
    """A gradient of a reduction, back in the input's shape."""
    return (g if keepdims else g.reshape(without(a.shape, axis, True))).expand(a.shape)


def count(shape, axis) -> int:
    n = 1
    for i in axis:
        n *= shape[i]
    return n


def _extreme_grad(g, y, a, axis, keepdims):
    """Equal largest elements share the gradient."""
    hit = (a == _spread(y, a, axis, keepdims)).to(g.dtype)
    return hit / hit.sum(axis=axis, keepdims=True) * _spread(g, a, axis, keepdims)


X = Spec((3, 4), float32)
TRIES = (((X,), {"axis": (0,), "keepdims": False}), ((X,), {"axis": (0, 1), "keepdims": True}))

op("sum", shape=_sum, shard=reduction_rules("sum"), tries=TRIES,
   kernel=lambda xp, a, *, axis, keepdims: xp.sum(a, axis=axis, keepdims=keepdims),
   grad=(lambda g, sa, axis, keepdims: _spread(g, sa, axis, keepdims),))  # fmt: skip
op("mean", shape=_mean, shard=reduction_rules(), tries=TRIES,
   kernel=lambda xp, a, *, axis, keepdims: xp.mean(a, axis=axis, keepdims=keepdims),
   lower=lambda a, *, axis, keepdims: a.sum(axis=axis, keepdims=keepdims) * (1.0 / count(a.shape, axis)),
   grad=(lambda g, sa, axis, keepdims: _spread(g * (1.0 / max(count(sa.shape, axis), 1)), sa, axis, keepdims),))  # fmt: skip
op("amax", shape=_nonempty, shard=reduction_rules("max"), tries=TRIES, grad=(_extreme_grad,),
   kernel=lambda xp, a, *, axis, keepdims: xp.max(a, axis=axis, keepdims=keepdims))  # fmt: skip
op("amin", shape=_nonempty, shard=reduction_rules("min"), tries=TRIES, grad=(_extreme_grad,),
   kernel=lambda xp, a, *, axis, keepdims: xp.min(a, axis=axis, keepdims=keepdims))  # fmt: skip


def _arg(a: Spec, *, axis, keepdims) -> Spec:
    return Spec(_nonempty(a, axis=axis, keepdims=keepdims).shape, int64)


ARG_TRIES = (((X,), {"axis": (1,), "keepdims": False}),)

op("argmax", shape=_arg, shard=reduction_rules(), tries=ARG_TRIES,
   kernel=lambda xp, a, *, axis, keepdims: xp.argmax(a, axis=axis[0], keepdims=keepdims))  # fmt: skip
op("argmin", shape=_arg, shard=reduction_rules(), tries=ARG_TRIES,
   kernel=lambda xp, a, *, axis, keepdims: xp.argmin(a, axis=axis[0], keepdims=keepdims))  # fmt: skip
