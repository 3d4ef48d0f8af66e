"""Histograms: counts of values and of bins."""

from __future__ import annotations

import math
from typing import Any

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.create import linspace, ones, zeros
from gt.client.functions.registry import FUNCTIONS, both, function
from gt.client.functions.sort import Sorted, searchsorted
from gt.client.views import own
from gt.errors import ArgumentError
from gt.ops.table import TABLE
from gt.spec import int64


@both
def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """The count of each non-negative integer. Reads the largest element, which determines the shape."""
    size = max(int(input.amax().item()) + 1 if input.numel() else 0, minlength)
    return apply(TABLE["bincount"], (input,) if weights is None else (input, weights), (size,))


@both
def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """The counts of equal bins between the limits, or between the smallest and largest element, which are read."""
    flat = input.reshape(-1)
    if not flat.shape[0]:
        return zeros(bins, dtype=input.dtype)
    low, high = (min, max) if min != max else (flat.amin().item(), flat.amax().item())
    if low == high:
        low, high = low - 1, high + 1
    inside = ((flat >= low) & (flat <= high)).to(input.dtype)
    at = (inside != 0).pick((flat - low) * (bins / (high - low)), 0.0)  # nan has no bin
    bin_index = at.floor().clamp(0, bins - 1).to(int64)
    return apply(TABLE["bincount"], (bin_index, inside), (bins,)).to(input.dtype)


def _edges(line: Tensor, bins: Any, range: Any) -> tuple[Tensor, Any, Any]:
    """The edges of bins, and their limits: the given ones, or those of the elements, which are read."""
    if isinstance(bins, Tensor):
        return bins, bins[0], bins[-1]
    low, high = range if range is not None else (line.amin().item(), line.amax().item())
    low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
    return linspace(low, high, int(bins) + 1, dtype=line.dtype), low, high


class Histogram(Sorted):
    """Counts, and the edges of the bins."""

    hist = property(lambda self: self[0])
    bin_edges = property(lambda self: self[1])


@both
def histogram(input: Tensor, bins: Any, *, range: Any = None, weight: Tensor | None = None, density: bool = False) -> Any:
    """The counts or weights of each bin, and the edges of the bins. Without a range, the smallest and largest element are
    read."""
    flat = input.reshape(-1)
    edges, low, high = _edges(flat, bins, range)
    n = edges.shape[0] - 1
    bin_index = searchsorted(edges, flat, right=True) - 1
    inside = (flat >= low) & (flat <= high)
    what = ones(flat.shape[0], dtype=input.dtype) if weight is None else weight.reshape(-1)
    counts = zeros(n, dtype=input.dtype).index_add(0, bin_index.clamp(0, n - 1), inside.pick(what, 0.0))
    if density:
        counts = counts / (edges[1:] - edges[:-1]) / counts.sum()
    return Histogram(counts, own(edges, bins))


class HistogramDD(Sorted):
    """Counts, and the edges of the bins along each axis."""

    hist = property(lambda self: self[0])
    bin_edges = property(lambda self: self[1])


@function
def histogramdd(
    input: Tensor, bins: Any, *, range: Any = None, weight: Tensor | None = None, density: bool = False
) -> HistogramDD:
    """The counts or weights of points, given along the last axis, in each cell of a grid. Without a range, the limits are
    read."""
    points = input.reshape(-1, input.shape[-1])
    n = points.shape[1]
    each = [bins] * n if isinstance(bins, int) else list(bins)
    if len(each) != n:
        raise ArgumentError(f"histogramdd of points with {n} coordinates: expected as many bins, got {len(each)}")
    bin_index: Any = 0
    inside: Any = True
    edges, sizes = [], []
    for i, b in enumerate(each):
        line = points.select(1, i)
        along, low, high = _edges(line, b, None if range is None else tuple(range[2 * i : 2 * i + 2]))
        size = along.shape[0] - 1
        at = FUNCTIONS["searchsorted"](along, line.contiguous(), right=True) - 1
        inside = (line >= low) & (line <= high) & inside
        bin_index = bin_index * size + at.clamp(0, size - 1)
        edges.append(along)
        sizes.append(size)
    what = ones(points.shape[0], dtype=input.dtype) if weight is None else weight.reshape(-1)
    counts = zeros(math.prod(sizes), dtype=input.dtype).index_add(0, bin_index, inside.pick(what, 0.0)).reshape(*sizes)
    if density:
        counts = counts / counts.sum()
        for i, along in enumerate(edges):
            counts = counts / (along[1:] - along[:-1]).reshape((-1,) + (1,) * (n - i - 1))
    return HistogramDD(counts, tuple(edges))  # type: ignore[arg-type]
