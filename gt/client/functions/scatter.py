"""Values written at indices, reduced with the previous value and with other values written there."""

from __future__ import annotations

from typing import Any

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.create import ones
from gt.client.functions.dtype_info import iinfo
from gt.client.functions.in_place import in_place
from gt.client.functions.index import put as put_at
from gt.client.functions.index_arrays import places
from gt.client.functions.registry import both, method
from gt.errors import ArgumentError
from gt.ops.rules import axis_of
from gt.ops.table import TABLE
from gt.spec import bool_

REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def _neutral(how: str, x: Tensor) -> Any:
    """The neutral element of a reduction."""
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
    """At each index the sum, product, mean or extreme of all values written there and, with include_self, the previous one."""
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
            f"index_reduce along axis {axis} of {input.shape} at {index.numel()} indices: expected {want}, got {source.shape}"
        )
    shape = (1,) * axis + (-1,) + (1,) * (input.ndim - axis - 1)
    return scatter_reduce(input, axis, index.reshape(shape).expand(source.shape), source, reduce, include_self=include_self)


@both
def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """A copy with values at indices of the flattened tensor."""
    flat = apply(TABLE["index_put"], (input.reshape(-1), source.reshape(-1), index.reshape(-1)), ((0,), accumulate))
    return flat.reshape(input.shape)


@both
def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy with `src` as one slice along an axis."""
    return put_at(input, (slice(None),) * axis_of(dim, input.ndim) + (index,), src)


@both
def slice_scatter(input: Tensor, src: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    """A copy with `src` as a range of an axis."""
    return put_at(input, (slice(None),) * axis_of(dim, input.ndim) + (slice(start, end, step),), src)


for _f in (scatter_reduce, index_reduce, put):
    method(in_place(_f.__name__, _f))
