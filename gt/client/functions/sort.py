"""Sorting, searching and unique elements."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.create import as_tensor, full
from gt.client.functions.dtype_info import result_type
from gt.client.functions.reduce import Extreme
from gt.client.functions.registry import axis_spelling, both, function
from gt.client.saved import note_saved
from gt.errors import ArgumentError, ArgumentTypeError
from gt.ops.rules import axis_of
from gt.ops.table import TABLE
from gt.spec import int32, int64, promote_types


class Sorted(NamedTuple):
    """Sorted values, and their indices."""

    values: Tensor
    indices: Tensor


def _axis(x: Tensor, axis: Any, dim: Any, otherwise: int = -1) -> int:
    axis = axis_spelling(axis, dim)
    return axis_of(otherwise if axis is None else axis, x.handle.spec.ndim)


@both
def sort(input: Tensor, axis: Any = None, descending: bool = False, stable: bool = True, *, dim: Any = None) -> Sorted:
    """Elements sorted along an axis (the last), and their indices. The sort is stable."""
    return Sorted(*apply(TABLE["sort"], (input,), (_axis(input, axis, dim), bool(descending))))


@both
def argsort(input: Tensor, axis: Any = None, descending: bool = False, stable: bool = True, *, dim: Any = None) -> Tensor:
    """The indices of the sorted elements."""
    return sort(input, axis, descending, dim=dim).indices


@both
def median(input: Tensor, axis: Any = None, keepdims: bool = False, *, dim: Any = None, keepdim: bool = False) -> Any:
    """The median, the lower of two, of all elements, or along an axis with the indices."""
    axis = axis_spelling(axis, dim)
    if axis is None:
        if not input.handle.spec.numel and input.handle.spec.dtype.rank == 2:
            return input.sum() * math.nan
        found = apply(TABLE["median"], (input.reshape(-1),), (0, False))[0]
        return note_saved(found, input, found)
    return Extreme(*apply(TABLE["median"], (input,), (axis_of(axis, input.handle.spec.ndim), bool(keepdims or keepdim))))


@both
def msort(input: Tensor) -> Tensor:
    return sort(input, 0).values


@both
def topk(input: Tensor, k: int, axis: Any = None, largest: bool = True, sorted: bool = True, *, dim: Any = None) -> Sorted:
    """The `k` largest or smallest elements along an axis (the last), sorted, and their indices."""
    return Sorted(*apply(TABLE["topk"], (input,), (int(k), _axis(input, axis, dim), bool(largest))))


@both
def kthvalue(input: Tensor, k: int, axis: Any = None, keepdims: bool = False, *, dim: Any = None, keepdim: bool = False) -> Any:
    """The k-th smallest element along an axis (the last), counted from 1, and its index."""
    at = _axis(input, axis, dim)
    found = topk(input, k, at, largest=False)
    last = [t.narrow(at, k - 1, 1) if input.ndim else t for t in found]
    return Extreme(*(last if keepdims or keepdim or not input.ndim else [t.squeeze(at) for t in last]))


@function
def searchsorted(
    sorted_sequence: Tensor, values: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The index at which each value would be inserted in a sorted sequence: before equal elements, or, with `right`, after
    them. A `sorter` holds the indices that sort the sequence."""
    if side not in (None, "left", "right") or right and side == "left":
        raise ArgumentError(f"searchsorted with side={side!r} and right={right}: expected 'left' or 'right', and both to agree")
    right = side == "right" if side is not None else right
    if not isinstance(values, Tensor):
        sorted_sequence = sorted_sequence.to(result_type(sorted_sequence, values))
    given = values if isinstance(values, Tensor) else full((), values, dtype=sorted_sequence.dtype)
    if isinstance(values, Tensor) and values.dtype is not sorted_sequence.dtype:
        raise ArgumentTypeError(
            f"searchsorted: expected values of the sequence's dtype {sorted_sequence.dtype.name}, got {values.dtype.name}"
        )
    if sorter is not None:
        if sorter.shape != sorted_sequence.shape or sorter.dtype is not int64:
            raise ArgumentError(f"expected a sorter of int64 indices of shape {sorted_sequence.shape}, got {sorter.shape}")
        sorted_sequence = sorted_sequence.gather(-1, sorter)
    line = given if given.ndim else given.reshape(1)
    found = apply(TABLE["searchsorted"], (sorted_sequence, line), (bool(right),)).reshape(given.shape)
    return found.to(int32) if out_int32 else found


@function
def bucketize(input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """The index of the interval between boundaries that contains each value."""
    if boundaries.ndim != 1:
        raise ArgumentError(f"bucketize: expected one axis of boundaries, got {boundaries.shape}")
    if isinstance(input, Tensor) and input.dtype is not boundaries.dtype:
        common = promote_types(input.dtype, boundaries.dtype)
        input, boundaries = input.to(common), boundaries.to(common)
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


@both
def unique(input: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,
           dim: int | None = None) -> Any:  # fmt: skip
    """The unique elements, sorted. Reads the tensor, which determines the shape."""
    # Every nan is an element of its own, as in PyTorch.
    values, inverse, counts = np.unique(input.numpy(), return_inverse=True, return_counts=True, axis=dim, equal_nan=False)
    found = [as_tensor(values).to(input.dtype)]
    if return_inverse:
        found.append(as_tensor(inverse.reshape(input.shape if dim is None else -1).astype(np.int64)))
    if return_counts:
        found.append(as_tensor(counts.astype(np.int64)))
    return found[0] if len(found) == 1 else tuple(found)


@both
def unique_consecutive(input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    """The elements, or slices along an axis, without those equal to the previous one. Reads the tensor, which determines the
    shape."""
    array = input.numpy()
    at = 0 if dim is None else axis_of(dim, input.ndim)
    lines = array.reshape(-1, 1) if dim is None else np.moveaxis(array, at, 0).reshape(array.shape[at], -1)
    new = np.concatenate([np.ones(min(len(lines), 1), bool), (lines[1:] != lines[:-1]).any(axis=1)])
    kept = as_tensor(np.flatnonzero(new).astype(np.int64))
    found = [input.detach().reshape(-1)[kept] if dim is None else input.detach().index_select(dim, kept)]
    if return_inverse:
        inverse = np.cumsum(new, dtype=np.int64) - 1
        found.append(as_tensor(inverse.reshape(input.shape) if dim is None else inverse))
    if return_counts:
        found.append(as_tensor(np.diff(np.append(np.flatnonzero(new), len(lines))).astype(np.int64)))
    return found[0] if len(found) == 1 else tuple(found)


@function
def isin(elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """Whether each element is among others."""
    x, among = as_tensor(elements), as_tensor(test_elements).reshape(-1)
    found = (x.unsqueeze(-1) == among).any(-1) if among.numel() else full(x.shape, False)
    return ~found if invert else found
