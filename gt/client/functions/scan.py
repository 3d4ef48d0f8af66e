"""Cumulative sums, products and extremes along an axis."""

from __future__ import annotations

from typing import Any

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.in_place import in_place
from gt.client.functions.reduce import Extreme
from gt.client.functions.registry import axis_spelling, both, method
from gt.client.functions.sort import Sorted
from gt.ops.rules import axis_of
from gt.ops.table import TABLE


@both
def cumsum(input: Tensor, axis: Any = None, *, dim: Any = None, dtype: Any = None) -> Tensor:
    """The cumulative sum along an axis; without one, of the flattened tensor, as in NumPy."""
    return _running("cumsum", input, axis, dim, dtype)


@both
def cumprod(input: Tensor, axis: Any = None, *, dim: Any = None, dtype: Any = None) -> Tensor:
    """The cumulative product along an axis."""
    return _running("cumprod", input, axis, dim, dtype)


def _running(name: str, x: Tensor, axis: Any, dim: Any, dtype: Any) -> Tensor:
    x = x if dtype is None else x.to(dtype)
    axis = axis_spelling(axis, dim)
    if axis is None:
        x, axis = x.reshape(-1), 0
    found = apply(TABLE[name], (x,), (axis_of(axis, x.handle.spec.ndim),))
    return found if dtype is None else found.to(dtype)


@both
def cummax(input: Tensor, dim: int) -> Sorted:
    """The cumulative maximum along an axis, and its indices."""
    return Sorted(*apply(TABLE["cummax"], (input,), (axis_of(dim, input.ndim),)))


@both
def cummin(input: Tensor, dim: int) -> Sorted:
    """The cumulative minimum along an axis, and its indices."""
    return Sorted(*apply(TABLE["cummin"], (input,), (axis_of(dim, input.ndim),)))


@both
def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """The logarithm of the cumulative sum of exponentials along an axis."""
    return apply(TABLE["logcumsumexp"], (input,), (axis_of(dim, input.ndim),))


@both
def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> Extreme:
    """The most common element along an axis, the smallest of equally common ones, and its last index."""
    return Extreme(*apply(TABLE["mode"], (input,), (axis_of(dim, input.ndim), bool(keepdim))))


for _f in (cumsum, cumprod):
    method(in_place(_f.__name__, _f))
