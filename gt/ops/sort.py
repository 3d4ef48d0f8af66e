"""Ops that order elements along an axis: sort, topk, median, extremes with their indices, and the search in sorted elements."""

from __future__ import annotations

from gt.errors import NoElements
from gt.ops.norm import along
from gt.ops.rules import axis_of, without
from gt.ops.table import Kind, Rule, Values, op
from gt.spec import REPLICATE, Shape, Shard, Spec, bool_, float32, int32, int64

X = Spec((3, 5), float32)


def _pull(gs, ys, ins, axis, **statics):
    """Each value's gradient goes to its index."""
    g, places = gs[0], ys[1]
    if statics.get("keepdims") is False:
        g, places = g.unsqueeze(axis), places.unsqueeze(axis)
    return [g.op("gather_grad", places, shape=ins[0].shape, axis=axis)]


def _sorted(a: Spec, *, axis, descending) -> tuple[Spec, Spec]:
    axis_of(axis, a.ndim)
    return a, Spec(a.shape, int64)


def _sort(xp, a, *, axis, descending):
    """Stable; a nan counts as the largest."""
    if not a.ndim:
        return a, xp.zeros((), dtype=xp.dtype(int64.code))
    if descending:  # sort the reversed elements and reverse: equal elements keep their order
        places = xp.flip(xp.argsort(xp.flip(a, (axis,)), axis=axis, stable=True), (axis,))
        places = a.shape[axis] - 1 - places
    else:
        places = xp.argsort(a, axis=axis, stable=True)
    return xp.take_along_axis(a, places, axis), places


def _first(a: Spec, *, k, axis, largest) -> tuple[Spec, Spec]:
    size = a.shape[axis_of(axis, a.ndim)] if a.ndim else 1
    if not 0 <= k <= size:
        raise ValueError(f"cannot take the first {k} of {size} elements along axis {axis} of {a.shape}")
    if a.dtype is bool_:
        raise TypeError("topk does not order booleans: cast first")
    shape: Shape = (*a.shape[:axis], k, *a.shape[axis + 1 :]) if a.ndim else ()
    return Spec(shape, a.dtype), Spec(shape, int64)


def _topk(xp, a, *, k, axis, largest):
    values, places = _sort(xp, a, axis=axis, descending=largest)
    index = (slice(None),) * axis + (slice(0, k),)
    return (values[index], places[index]) if a.ndim else (values, places)


def _picked(a: Spec, *, axis, keepdims) -> tuple[Spec, Spec]:
    axis_of(axis, a.ndim)
    if a.ndim and a.shape[axis] == 0:
        raise NoElements(f"cannot choose one of no elements: axis {axis} of {a.shape}")
    shape = without(a.shape, (axis,), keepdims) if a.ndim else ()
    return Spec(shape, a.dtype), Spec(shape, int64)


def _pick(xp, a, places, axis, keepdims):
    values = xp.take_along_axis(a, places, axis)
    if keepdims:
        return values, places
    shape = without(tuple(a.shape), (axis,), False)
    return xp.reshape(values, shape), xp.reshape(places, shape)


def _extreme(largest: bool):
    def kernel(xp, a, *, axis, keepdims):
        if not a.ndim:
            return a, xp.zeros((), dtype=xp.dtype(int64.code))
        return _pick(xp, a, (xp.argmax if largest else xp.argmin)(a, axis=axis, keepdims=True), axis, keepdims)

    return kernel


def _median(xp, a, *, axis, keepdims):
    """The lower of two middle elements; nan if there is one."""
    if not a.ndim:
        return a, xp.zeros((), dtype=xp.dtype(int64.code))
    values, places = _sort(xp, a, axis=axis, descending=False)
    n = a.shape[axis]
    middle, last = (_at(places, i, axis) for i in ((n - 1) // 2, n - 1))
    if values.dtype in (xp.float32, xp.float64):
        nans = xp.isnan(values)
        first = xp.argmax(xp.cast(nans, int32.code), axis=axis, keepdims=True)
        middle = xp.where(xp.isnan(_at(values, n - 1, axis)), xp.take_along_axis(places, first, axis), middle)
    return _pick(xp, a, middle, axis, keepdims)


def _at(a, i: int, axis: int):
    return a[(slice(None),) * axis + (slice(i, i + 1),)]


op("sort", unchecked="y0", shape=_sorted, shard=along, keep="outputs", grad=_pull,
   tries=(((X,), {"axis": 1, "descending": False}), ((X,), {"axis": 0, "descending": True})),
   kernel=_sort)  # fmt: skip
op("topk", unchecked="y0", shape=_first, shard=along, keep="outputs", grad=_pull,
   tries=(((X,), {"k": 2, "axis": 1, "largest": True}), ((X,), {"k": 3, "axis": 0, "largest": False})),
   kernel=_topk)  # fmt: skip


def _kept(kind: Kind) -> list[Rule]:
    """All axes except the removed one may be sharded."""
    axis, keep = kind.settings["axis"], kind.settings["keepdims"]
    return [((Shard(i),), (Shard(i if keep or i < axis else i - 1),) * 2)
            for i in range(kind.ins[0].ndim) if i != axis]  # fmt: skip


PICK = (((X,), {"axis": 1, "keepdims": False}), ((X,), {"axis": 0, "keepdims": True}))

op("max_at", unchecked="y0", shape=_picked, shard=_kept, keep="outputs", grad=_pull, tries=PICK, kernel=_extreme(True))
op("min_at", unchecked="y0", shape=_picked, shard=_kept, keep="outputs", grad=_pull, tries=PICK, kernel=_extreme(False))
op("median", unchecked="y0",
   shape=_picked, shard=_kept, keep="outputs", grad=_pull, tries=(*PICK, ((X,), {"axis": 0, "keepdims": False})),
   kernel=_median)  # fmt: skip


def _searched(edges: Spec, values: Spec, *, right: bool) -> Spec:
    if edges.ndim != 1 and edges.shape[:-1] != values.shape[:-1]:
        raise ValueError(f"searchsorted: expected edges (n,) or with the axes of the values {values.shape}, got {edges.shape}")
    return Spec(values.shape, int64)


def _search(xp, edges, values, *, right):
    side = "right" if right else "left"
    if edges.ndim == 1:
        return xp.searchsorted(edges, values, side=side)
    flat = xp.reshape(edges, (-1, edges.shape[-1])), xp.reshape(values, (-1, values.shape[-1]))
    return xp.reshape(xp.stack([xp.searchsorted(e, v, side=side) for e, v in zip(*flat)]), values.shape)


def _search_rules(kind: Kind) -> list[Rule]:
    edges, values = kind.ins
    shared = values.ndim if edges.ndim == 1 else values.ndim - 1
    return [((REPLICATE if edges.ndim == 1 else Shard(i), Shard(i)), (Shard(i),))
            for i in range(shared)]  # fmt: skip


ORDERED = Values(Spec((4,), float32), 0.0, 0.0)  # equal edges are in order, and tell left from right

op("searchsorted", shape=_searched, shard=_search_rules,
   tries=(((ORDERED, X), {"right": False}), ((ORDERED, Values(X, 0.0, 0.0)), {"right": True})),
   kernel=_search)  # fmt: skip
