"""Elements in order: sorting, the first few, running sums and products, counting."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions import as_tensor, axis_spelling, both, function
from gt.client.functions.reductions import Extreme
from gt.ops.rules import axis_of
from gt.ops.table import TABLE
from gt.spec import int64


class Sorted(NamedTuple):
    """Values in order, and where they stood."""

    values: Tensor
    indices: Tensor


def _axis(x: Tensor, axis: Any, dim: Any, otherwise: int = -1) -> int:
    axis = axis_spelling(axis, dim)
    return axis_of(otherwise if axis is None else axis, x.handle.spec.ndim)


@both
def sort(x: Tensor, axis: Any = None, descending: bool = False, stable: bool = True, *, dim: Any = None) -> Sorted:
    """The elements of each line along an axis (the last) in order, and where they stood. Equals keep their order."""
    return Sorted(*apply(TABLE["sort"], (x,), (_axis(x, axis, dim), bool(descending))))


@both
def argsort(x: Tensor, axis: Any = None, descending: bool = False, stable: bool = True, *, dim: Any = None) -> Tensor:
    """Where the elements in order stand."""
    return sort(x, axis, descending, dim=dim).indices


@both
def msort(x: Tensor) -> Tensor:
    return sort(x, 0).values


@both
def topk(x: Tensor, k: int, axis: Any = None, largest: bool = True, sorted: bool = True, *, dim: Any = None) -> Sorted:
    """The `k` largest or smallest along an axis (the last), in order, and where they stand."""
    return Sorted(*apply(TABLE["topk"], (x,), (int(k), _axis(x, axis, dim), bool(largest))))


@both
def kthvalue(x: Tensor, k: int, axis: Any = None, keepdims: bool = False, *, dim: Any = None, keepdim: bool = False) -> Any:
    """The k-th smallest along an axis (the last), from 1, and where it stands."""
    at = _axis(x, axis, dim)
    found = topk(x, k, at, largest=False)
    last = [t.narrow(at, k - 1, 1) if x.ndim else t for t in found]
    return Extreme(*(last if keepdims or keepdim or not x.ndim else [t.squeeze(at) for t in last]))


@both
def cumsum(x: Tensor, axis: Any = None, *, dim: Any = None, dtype: Any = None) -> Tensor:
    """The sum of each element and those before it along an axis; without one, of all in a row, as NumPy has it."""
    return _running("cumsum", x, axis, dim, dtype)


@both
def cumprod(x: Tensor, axis: Any = None, *, dim: Any = None, dtype: Any = None) -> Tensor:
    """The product of each element and those before it along an axis."""
    return _running("cumprod", x, axis, dim, dtype)


def _running(name: str, x: Tensor, axis: Any, dim: Any, dtype: Any) -> Tensor:
    x = x if dtype is None else x.to(dtype)
    axis = axis_spelling(axis, dim)
    if axis is None:
        x, axis = x.reshape(-1), 0
    return apply(TABLE[name], (x,), (axis_of(axis, x.handle.spec.ndim),))


@both
def diff(x: Tensor, n: int = 1, dim: int = -1) -> Tensor:
    """Each element less the one before it, `n` times over."""
    at = axis_of(dim, x.ndim)
    for _ in range(n):
        size = x.shape[at] - 1
        x = x.narrow(at, 1, size) - x.narrow(at, 0, size)
    return x


@function
def searchsorted(sorted_sequence: Tensor, values: Any, *, right: bool = False, side: str | None = None) -> Tensor:
    """Where each value would be put among sorted ones: before its equals, or, with `right`, after them."""
    right = side == "right" if side is not None else right
    values = as_tensor(values)
    shape = values.shape
    found = apply(TABLE["searchsorted"], (sorted_sequence, values if values.ndim else values.reshape(1)), (bool(right),))
    return found.reshape(shape)


@function
def bucketize(values: Tensor, boundaries: Tensor, *, right: bool = False) -> Tensor:
    return searchsorted(boundaries, values, right=right)


@both
def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """How often each whole number from 0 stands here. The largest is read, since it decides the shape."""
    size = max(int(x.amax().item()) + 1 if x.numel() else 0, minlength)
    return apply(TABLE["bincount"], (x,) if weights is None else (x, weights), (size,))


@function
def histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements lie in each of equal bins between the ends, or between the least and the greatest, which are read."""
    flat = x.reshape(-1)
    low, high = (min, max) if min != max else (flat.amin().item(), flat.amax().item())
    if low == high:
        low, high = low - 1, high + 1
    inside = ((flat >= low) & (flat <= high)).to(x.dtype)
    place = ((flat - low) * (bins / (high - low))).floor().clamp(0, bins - 1).to(int64)
    return apply(TABLE["bincount"], (place, inside), (bins,)).to(x.dtype)


@both
def unique(x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,
           dim: int | None = None) -> Any:  # fmt: skip
    """The different elements, in order. They are read, since their number decides the shape."""
    values, inverse, counts = np.unique(x.numpy(), return_inverse=True, return_counts=True, axis=dim)
    found = [as_tensor(values).to(x.dtype)]
    if return_inverse:
        found.append(as_tensor(inverse.reshape(x.shape if dim is None else -1).astype(np.int64)))
    if return_counts:
        found.append(as_tensor(counts.astype(np.int64)))
    return found[0] if len(found) == 1 else tuple(found)
