"""Elements in order: sorting, the first few, running sums and products, counting."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions import FUNCTIONS, as_tensor, axis_spelling, both, function
from gt.client.functions.create import full
from gt.client.functions.reduce import Extreme
from gt.errors import ArgumentError, ArgumentTypeError
from gt.ops.rules import axis_of
from gt.ops.table import TABLE
from gt.spec import bool_, int32, int64, promote_types


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
    found = apply(TABLE[name], (x,), (axis_of(axis, x.handle.spec.ndim),))
    return found if dtype is None else found.to(dtype)


@both
def diff(x: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
    """Each element less the one before it, `n` times over, of what stands between `prepend` and `append`."""
    if n < 0:
        raise ArgumentError(f"diff is taken 0 times or more, not {n}")
    if not x.ndim:
        raise ArgumentError("diff wants at least one axis, not a tensor of none")
    at = axis_of(dim, x.ndim)
    parts = [t for t in (prepend, x, append) if t is not None]
    x = FUNCTIONS["cat"](parts, at) if len(parts) > 1 else x
    for _ in range(n):
        size = max(x.shape[at] - 1, 0)
        after, before = x.narrow(at, min(1, x.shape[at]), size), x.narrow(at, 0, size)
        x = after ^ before if x.dtype is bool_ else after - before
    return x if n else x.clone()


@function
def searchsorted(
    sorted_sequence: Tensor, values: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Where each value would be put among sorted ones: before its equals, or, with `right`, after them. With a `sorter`, the
    ones sorted are those it lists."""
    if side not in (None, "left", "right") or right and side == "left":
        raise ArgumentError(f"searchsorted with side={side!r} and right={right}: want 'left' or 'right', and both to agree")
    right = side == "right" if side is not None else right
    given = values if isinstance(values, Tensor) else full((), values, dtype=sorted_sequence.dtype)
    if isinstance(values, Tensor) and values.dtype is not sorted_sequence.dtype:
        raise ArgumentTypeError(
            f"searchsorted wants values of the sequence's dtype {sorted_sequence.dtype.name}, not {values.dtype.name}"
        )
    if sorter is not None:
        if sorter.shape != sorted_sequence.shape or sorter.dtype is not int64:
            raise ArgumentError(f"a sorter holds int64 places, one for each of {sorted_sequence.shape}, not {sorter.shape}")
        sorted_sequence = sorted_sequence.gather(-1, sorter)
    line = given if given.ndim else given.reshape(1)
    found = apply(TABLE["searchsorted"], (sorted_sequence, line), (bool(right),)).reshape(given.shape)
    return found.to(int32) if out_int32 else found


@function
def bucketize(input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """Which of the ranges between boundaries each value lies in."""
    if boundaries.ndim != 1:
        raise ArgumentError(f"bucketize wants one axis of boundaries, not {boundaries.shape}")
    if isinstance(input, Tensor) and input.dtype is not boundaries.dtype:
        common = promote_types(input.dtype, boundaries.dtype)
        input, boundaries = input.to(common), boundaries.to(common)
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


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


@both
def unique_consecutive(x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
    """The elements, or slices along an axis, without those equal to the one before. They are read, since their number
    decides the shape."""
    array = x.numpy()
    lines = array.reshape(-1, 1) if dim is None else np.moveaxis(array, axis_of(dim, x.ndim), 0).reshape(array.shape[dim], -1)
    new = np.concatenate([np.ones(min(len(lines), 1), bool), (lines[1:] != lines[:-1]).any(axis=1)])
    kept = as_tensor(np.flatnonzero(new).astype(np.int64))
    found = [x.detach().reshape(-1)[kept] if dim is None else x.detach().index_select(dim, kept)]
    if return_inverse:
        inverse = np.cumsum(new, dtype=np.int64) - 1
        found.append(as_tensor(inverse.reshape(x.shape) if dim is None else inverse))
    if return_counts:
        found.append(as_tensor(np.diff(np.append(np.flatnonzero(new), len(lines))).astype(np.int64)))
    return found[0] if len(found) == 1 else tuple(found)
