"""Cumulative sums, products, extremes and logsumexp, and the mode along an axis."""

from __future__ import annotations

from gt.ops.norm import along
from gt.ops.rules import axis_of, floats_only
from gt.ops.sort import PICK, X, _kept, _pick, _picked, _pull, _sort
from gt.ops.table import Kind, Rule, op
from gt.spec import Partial, Spec, float64, int64


def _running(a: Spec, *, axis: int) -> tuple[Spec, Spec]:
    axis_of(axis, a.ndim)
    return a, Spec(a.shape, int64)


def _places(xp, a, axis: int):
    """The index of each element along an axis."""
    shape = (1,) * axis + (-1,) + (1,) * (a.ndim - axis - 1)
    return xp.broadcast_to(xp.reshape(xp.arange(0, a.shape[axis]), shape), tuple(a.shape))


def _extreme(largest: bool):
    """The cumulative extreme, the last of equal elements; nan from the first nan on."""

    def kernel(xp, a, *, axis):
        if not a.ndim:
            return a, xp.zeros((), dtype=xp.dtype(int64.code))
        met = (xp.maximum if largest else xp.minimum).accumulate(a, axis=axis)
        hit = (a == met) | xp.isnan(a)
        places = xp.maximum.accumulate(xp.where(hit, _places(xp, a, axis), 0), axis=axis)
        return xp.take_along_axis(a, places, axis), places

    return kernel


def _back(gs, ys, ins, axis):
    """Each element gets the gradients of all indices at which it is the extreme."""
    g, places = gs[0], ys[1]
    return [g.op("gather_grad", places, shape=ins[0].shape, axis=axis) if g.ndim else g]


def _log_sums(xp, a, *, axis):
    return xp.logaddexp.accumulate(a, axis=axis) if a.ndim else a


def _log_sums_grad(g, y, a, axis):
    """Each element has the weight exp(a - y) in its own sum and in later ones; in float64, as the factors may differ
    greatly."""
    if not g.ndim:
        return g
    wide, met = a.to(float64), y.to(float64)
    top = met.op("amax", axis=(axis,), keepdims=True).detach()
    top = top.isfinite().pick(top, 0.0)
    reached = (y == float("-inf")).pick(0.0, g.to(float64) * (top - (y == float("-inf")).pick(0.0, met)).exp())
    return ((wide - top).exp() * _from_here(reached, axis)).to(a.dtype)


def _floats(a: Spec, *, axis: int) -> Spec:
    axis_of(axis, a.ndim)
    return floats_only("logcumsumexp")(a)


def _mode(xp, a, *, axis, keepdims):
    """The most common element, the smallest of equally common ones, and its last index."""
    if not a.ndim:
        return a, xp.zeros((), dtype=xp.dtype(int64.code))
    values, places = _sort(xp, a, axis=axis, descending=False)
    at = _places(xp, a, axis)
    before = xp.roll(values, 1, axis=axis)
    begins = (values != before) | (at == 0)
    run = at - xp.maximum.accumulate(xp.where(begins, at, 0), axis=axis)
    best = xp.argmax(run, axis=axis, keepdims=True)  # the end of the first of the longest runs
    return _pick(xp, a, xp.take_along_axis(places, best, axis), axis, keepdims)


def _accumulated(a: Spec, *, axis) -> Spec:
    axis_of(axis, a.ndim)
    return a if a.dtype.rank >= 2 else Spec(a.shape, int64)


def _cumulate(name: str):
    def kernel(xp, a, *, axis):
        return getattr(xp, name)(a, axis=axis) if a.ndim else a

    return kernel


def _terms(kind: Kind) -> list[Rule]:
    return [*along(kind), ((Partial(),), (Partial(),))]


def _cumprod_grad(g, y, a, axis):
    """Before the first zero, division gives the product of the others; at it they are computed with a 1 in its place; after it
    every product is zero."""
    if not g.ndim:
        return g
    zeros = (a == 0).to(int64).cumsum(axis=axis)
    first = (a == 0) & (zeros == 1)
    mended = first.pick(1.0, a).cumprod(axis=axis)
    return (zeros == 0).pick(_from_here(g * y, axis) / a, first.pick(_from_here(g * mended, axis), 0.0))


def _from_here(t, axis):
    """The reversed cumulative sum."""
    return t.op("flip", axes=(axis,)).cumsum(axis=axis).op("flip", axes=(axis,)) if t.ndim else t


for _name, _largest in (("cummax", True), ("cummin", False)):
    op(_name, unchecked="y0",
       shape=_running, shard=along, keep="outputs", grad=_back, tries=(((X,), {"axis": 1}), ((X,), {"axis": 0})),
       kernel=_extreme(_largest))  # fmt: skip
op("logcumsumexp", autocast="high", shape=_floats, shard=along, tries=(((X,), {"axis": 1}), ((X,), {"axis": 0})),
   kernel=_log_sums, grad=(_log_sums_grad,))  # fmt: skip
op("mode", unchecked="y0", shape=_picked, shard=_kept, keep="outputs", grad=_pull, tries=PICK, kernel=_mode)
op("cumsum", complex="analytic", autocast="high", shape=_accumulated, shard=_terms,
   tries=(((X,), {"axis": 1}), ((Spec((3, 2), int64),), {"axis": 0})),
   kernel=_cumulate("cumsum"),
   grad=(lambda g, axis: _from_here(g, axis),))  # fmt: skip
op("cumprod", complex="analytic", autocast="high", shape=_accumulated, shard=along,
   tries=(((X,), {"axis": 1}), ((Spec((3, 2), int64),), {"axis": 0})),
   kernel=_cumulate("cumprod"), grad=(_cumprod_grad,))  # fmt: skip
