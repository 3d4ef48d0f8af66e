"""Diagonals and triangles of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.create import arange, as_tensor, full
from gt.client.functions.in_place import in_place
from gt.client.functions.index import put
from gt.client.functions.registry import FUNCTIONS, both, function, method
from gt.client.writes import assign
from gt.errors import ArgumentError
from gt.ops.rules import axis_of
from gt.ops.table import TABLE
from gt.spec import int64


@both
def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle, zeros above; `diagonal` shifts its edge up."""
    return apply(TABLE["tril"], (input, int(diagonal)))


@both
def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle, zeros below; `diagonal` shifts its edge up."""
    return apply(TABLE["triu"], (input, int(diagonal)))


@both
def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1, *, axis1: Any = None, axis2: Any = None) -> Tensor:
    """The diagonal of two axes, as the last axis."""
    dim1, dim2 = dim1 if axis1 is None else axis1, dim2 if axis2 is None else axis2
    return apply(TABLE["diagonal"], (input,), (int(offset), (axis_of(dim1, input.ndim), axis_of(dim2, input.ndim))))


@both
def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices with the last axis as their diagonal."""
    n = input.shape[-1] + abs(offset)
    axes = (axis_of(dim1, input.ndim + 1), axis_of(dim2, input.ndim + 1))
    rest = iter(input.shape[:-1])
    shape = tuple(n if i in axes else next(rest) for i in range(input.ndim + 1))
    return apply(TABLE["diagonal_grad"], (input,), (shape, int(offset), axes))


@both
def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """The diagonal of a matrix, or the matrix of a diagonal."""
    if input.ndim == 1:
        return diag_embed(input, diagonal)
    if input.ndim != 2:
        raise ArgumentError(f"diag: expected a vector or a matrix, got {input.shape}")
    return apply(TABLE["diagonal"], (input,), (int(diagonal), (0, 1))).clone()


@both
def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    return input.reshape(-1).diag(offset)


@both
def trace(input: Tensor) -> Tensor:
    if input.ndim != 2:
        raise ArgumentError(f"trace: expected a matrix, got {input.shape}")
    return diag(input).sum()


@both
def diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A copy with `src` as its diagonal."""
    axes = (axis_of(dim1, input.ndim), axis_of(dim2, input.ndim))
    statics = (input.shape, offset, axes)
    spot = apply(TABLE["diagonal_grad"], (full(src.shape, True),), statics)
    return spot.pick(apply(TABLE["diagonal_grad"], (src.to(input.dtype),), statics), input)


@method
def fill_diagonal_(self: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    n = min(self.shape)
    return assign(self, put(self, (arange(n),) * self.ndim, fill_value))


@function
def block_diag(*tensors: Tensor) -> Tensor:
    """Matrices along a diagonal, zeros elsewhere."""
    parts = [FUNCTIONS["atleast_2d"](t) for t in tensors]
    width, before, rows = sum(p.shape[1] for p in parts), 0, []
    for p in parts:
        rows.append(FUNCTIONS["pad"](p, (before, width - before - p.shape[1])))
        before += p.shape[1]
    return FUNCTIONS["cat"](rows)


@function
def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = int64, device: Any = None, layout: Any = None) -> Tensor:
    """The indices of a lower triangle."""
    return as_tensor(np.stack(np.tril_indices(row, offset, col)).astype(np.int64)).to(dtype)


@function
def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = int64, device: Any = None, layout: Any = None) -> Tensor:
    """The indices of an upper triangle."""
    return as_tensor(np.stack(np.triu_indices(row, offset, col)).astype(np.int64)).to(dtype)


for _f in (tril, triu):
    method(in_place(_f.__name__, _f))
