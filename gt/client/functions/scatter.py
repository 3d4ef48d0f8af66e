"""Values put at places where they meet others, and running, common and middle elements along an axis."""

from __future__ import annotations

import math
from typing import Any

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions import FUNCTIONS, axis_spelling, both, function, method
from gt.client.functions.create import full, ones, zeros
from gt.client.functions.dtype_info import iinfo
from gt.client.functions.index_arrays import places
from gt.client.functions.operators import assign
from gt.client.functions.reduce import Extreme
from gt.client.functions.sort import Sorted
from gt.client.session import last_id
from gt.client.views import own
from gt.errors import ArgumentError
from gt.ops.rules import axis_of
from gt.ops.table import TABLE
from gt.spec import bool_, int64

REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def _neutral(how: str, x: Tensor) -> Any:
    """What changes nothing when it meets others."""
    if how in ("sum", "mean"):
        return 0
    if how == "prod":
        return 1
    if x.dtype.rank == 2:
        return float("-inf") if how == "amax" else float("inf")
    if x.dtype is bool_:
        return how == "amin"
    ends = iinfo(x.dtype)
    return ends.min if how == "amax" else ends.max


@both
def scatter_reduce(input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """At each place the sum, product, mean or extreme of all values put there and, unless told not to, the one before."""
    if reduce not in REDUCTIONS:
        raise ArgumentError(f"no reduction {reduce!r}: known are {', '.join(REDUCTIONS)}")
    axis, index = axis_of(dim, input.ndim), places(index)
    base = input if include_self else apply(TABLE["scatter"], (input, index, _neutral(reduce, input)), (axis,))
    if reduce not in ("sum", "mean"):
        return apply(TABLE["scatter_reduce"], (base, index, src), (axis, reduce))
    total = apply(TABLE["scatter_add"], (base, index, src), (axis,))
    if reduce == "sum":
        return total
    count = ones(*input.shape, dtype=input.dtype)
    if not include_self:
        count = apply(TABLE["scatter"], (count, index, 0), (axis,))
    count = apply(TABLE["scatter_add"], (count, index, ones(*index.shape, dtype=input.dtype)), (axis,)).maximum(1)
    return total / count if input.dtype.rank == 2 else total // count


@both
def index_reduce(input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    """`scatter_reduce` of whole slices along an axis."""
    if not input.ndim:
        line = index_reduce(input.reshape(1), 0, index, source.reshape(1), reduce, include_self=include_self)
        return line.reshape(())
    axis = axis_of(dim, input.ndim)
    if source.shape != (want := (*input.shape[:axis], index.numel(), *input.shape[axis + 1 :])):
        raise ArgumentError(
            f"index_reduce along axis {axis} of {input.shape} at {index.numel()} places wants {want}, not {source.shape}"
        )
    shape = (1,) * axis + (-1,) + (1,) * (input.ndim - axis - 1)
    return scatter_reduce(input, axis, index.reshape(shape).expand(source.shape), source, reduce, include_self=include_self)


@both
def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """With values at places among all elements, row by row."""
    flat = apply(TABLE["index_put"], (input.reshape(-1), source.reshape(-1), index.reshape(-1)), ((0,), accumulate))
    return flat.reshape(input.shape)


for _name, _f in (("scatter_reduce_", scatter_reduce), ("index_reduce_", index_reduce), ("put_", put)):

    def _change(self: Tensor, *args: Any, _f: Any = _f, **settings: Any) -> Tensor:
        since = last_id(self.handle.session)
        return assign(self, _f(self, *args, **settings), since=since)

    _change.__name__ = _change.__qualname__ = _name
    _change.__doc__ = f"`{_name[:-1]}`, into this variable."
    method(_change)


@both
def cummax(input: Tensor, dim: int) -> Sorted:
    """The largest so far along an axis, and where it stands."""
    return Sorted(*apply(TABLE["cummax"], (input,), (axis_of(dim, input.ndim),)))


@both
def cummin(input: Tensor, dim: int) -> Sorted:
    """The least so far along an axis, and where it stands."""
    return Sorted(*apply(TABLE["cummin"], (input,), (axis_of(dim, input.ndim),)))


@both
def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """The logarithm of the running sum of exponentials along an axis."""
    return apply(TABLE["logcumsumexp"], (input,), (axis_of(dim, input.ndim),))


@both
def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> Extreme:
    """The commonest element along an axis, the least of equally common ones, and where it stands last."""
    return Extreme(*apply(TABLE["mode"], (input,), (axis_of(dim, input.ndim), bool(keepdim))))


@both
def nanmedian(input: Tensor, axis: Any = None, keepdims: bool = False, *, dim: Any = None, keepdim: bool = False) -> Any:
    """The middle one of those elements that are numbers."""
    axis = axis_spelling(axis, dim)
    if axis is None:
        return nanmedian(input.reshape(-1), 0).values
    at, keep = axis_of(axis, input.ndim), bool(keepdims or keepdim)
    values, places = input.sort(at)  # nans come last
    middle = ((input == input).to(int64).sum(at, keepdim=True) - 1).clamp(min=0) // 2
    found = [t.gather(at, middle) for t in (values, places)]
    return Extreme(*(found if keep else [t.squeeze(at) for t in found]))


def _edges(line: Tensor, bins: Any, range: Any) -> tuple[Tensor, Any, Any]:
    """The edges of bins, the least and the greatest: those given, or those of the elements, which are read."""
    from gt.client.functions.create import linspace

    if isinstance(bins, Tensor):
        return bins, bins[0], bins[-1]
    low, high = range if range is not None else (line.amin().item(), line.amax().item())
    low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
    return linspace(low, high, int(bins) + 1, dtype=line.dtype), low, high


class Histogram(Sorted):
    """Counts, and the edges between which they are."""

    hist = property(lambda self: self[0])
    bin_edges = property(lambda self: self[1])


@both
def histogram(input: Tensor, bins: Any, *, range: Any = None, weight: Tensor | None = None, density: bool = False) -> Any:
    """How much lies in each bin, and the edges of the bins. Without a range, the least and the greatest are read."""
    from gt.client.functions.sort import searchsorted

    flat = input.reshape(-1)
    edges, low, high = _edges(flat, bins, range)
    n = edges.shape[0] - 1
    place = searchsorted(edges, flat, right=True) - 1
    inside = (flat >= low) & (flat <= high)
    what = ones(flat.shape[0], dtype=input.dtype) if weight is None else weight.reshape(-1)
    counts = zeros(n, dtype=input.dtype).index_add(0, place.clamp(0, n - 1), inside.pick(what, 0.0))
    if density:
        counts = counts / (edges[1:] - edges[:-1]) / counts.sum()
    return Histogram(counts, own(edges, bins))


class HistogramDD(Sorted):
    """Counts, and the edges along each axis between which they are."""

    hist = property(lambda self: self[0])
    bin_edges = property(lambda self: self[1])


@function
def histogramdd(
    input: Tensor, bins: Any, *, range: Any = None, weight: Tensor | None = None, density: bool = False
) -> HistogramDD:
    """How much lies in each box of a grid, of points along the last axis. Without a range, the ends are read."""
    points = input.reshape(-1, input.shape[-1])
    n = points.shape[1]
    each = [bins] * n if isinstance(bins, int) else list(bins)
    if len(each) != n:
        raise ArgumentError(f"histogramdd of points with {n} numbers wants as many bins, not {len(each)}")
    place: Any = 0
    inside: Any = True
    edges, sizes = [], []
    for i, b in enumerate(each):
        line = points.select(1, i)
        along, low, high = _edges(line, b, None if range is None else tuple(range[2 * i : 2 * i + 2]))
        size = along.shape[0] - 1
        at = FUNCTIONS["searchsorted"](along, line.contiguous(), right=True) - 1
        inside = (line >= low) & (line <= high) & inside
        place = place * size + at.clamp(0, size - 1)
        edges.append(along)
        sizes.append(size)
    what = ones(points.shape[0], dtype=input.dtype) if weight is None else weight.reshape(-1)
    counts = zeros(math.prod(sizes), dtype=input.dtype).index_add(0, place, inside.pick(what, 0.0)).reshape(*sizes)
    if density:
        counts = counts / counts.sum()
        for i, along in enumerate(edges):
            counts = counts / (along[1:] - along[:-1]).reshape((-1,) + (1,) * (n - i - 1))
    return HistogramDD(counts, tuple(edges))  # type: ignore[arg-type]


@both
def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Slices along an axis that are longer than `maxnorm` made that long."""
    if input.ndim < 2:
        raise ArgumentError(f"renorm wants at least two axes, not {input.shape}")
    at = axis_of(dim, input.ndim)
    size = input.norm(float(p), dim=tuple(i for i, _ in enumerate(input.shape) if i != at), keepdim=True)
    return input * (size > maxnorm).pick(maxnorm / (size + 1e-7), full((), 1.0, dtype=input.dtype))
