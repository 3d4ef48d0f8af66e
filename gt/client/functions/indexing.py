"""Picking elements: ints, slices, `...` and None become one `slice` op and a reshape."""

from __future__ import annotations

from typing import Any

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions import both, method
from gt.ops.rules import axis_of
from gt.ops.table import TABLE


@method
def slice_(self: Tensor, starts: Any, take: tuple) -> Tensor:
    return apply(TABLE["slice"], (self, *starts), (take,))


@method
def slice_grad(self: Tensor, starts: Any, shape: tuple, take: tuple) -> Tensor:
    return apply(TABLE["slice_grad"], (self, *starts), (shape, take))


Tensor.slice = slice_
del Tensor.slice_


@method
def __getitem__(self: Tensor, index: Any) -> Tensor:
    parts = index if isinstance(index, tuple) else (index,)
    shape = self.data.spec.shape
    used = sum(p is not None and p is not Ellipsis for p in parts)
    if used > len(shape):
        raise IndexError(f"too many indices for a tensor of {len(shape)} dimensions: {used}")
    starts: list[int] = []
    take: list[tuple[int, int]] = []
    out: list[int] = []  # the result's shape, with the axes that None adds
    axis = 0
    for p in _spelled_out(parts, len(shape) - used):
        if p is None:
            out.append(1)
            continue
        size = shape[axis]
        if isinstance(p, slice):
            start, stop, step = p.indices(size)
            n = len(range(start, stop, step))
            starts.append(start if n else 0)
            take.append((n, step))
            out.append(n)
        else:
            starts.append(_position(p, size, axis, shape))
            take.append((-1, 1))
        axis += 1
    whole = all(t == (d, 1) for t, d in zip(take, shape))
    picked = self if whole else apply(TABLE["slice"], (self, *starts), (tuple(take),))
    return picked.reshape(out)


def _spelled_out(parts: tuple, missing: int) -> list:
    """The index with `...`, or its absence at the end, written as whole slices."""
    if sum(p is Ellipsis for p in parts) > 1:
        raise IndexError("an index has at most one ...")
    out: list = []
    for p in parts if any(p is Ellipsis for p in parts) else (*parts, Ellipsis):
        out.extend([slice(None)] * missing if p is Ellipsis else [p])
    return out


def _position(p: Any, size: int, axis: int, shape: tuple) -> int:
    if isinstance(p, Tensor) and p.data.spec.ndim == 0 and p.data.spec.dtype.rank == 1:
        p = p.item()
    if not hasattr(p, "__index__") or isinstance(p, bool):
        raise TypeError(f"cannot index by {type(p).__name__}: want ints, slices, ... and None")
    i = p.__index__()
    if not -size <= i < size:
        raise IndexError(f"index {i} is out of range for axis {axis} of {shape}: want {-size} to {size - 1}")
    return i % size


@both
def narrow(self: Tensor, axis: int, start: int, length: int) -> Tensor:
    """`length` elements of an axis, from `start` on."""
    at = axis_of(axis, self.data.spec.ndim)
    return self[(slice(None),) * at + (slice(start, start + length),)]
