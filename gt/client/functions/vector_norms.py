"""Norms of vectors and matrices, and distances."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.create import from_numpy, full
from gt.client.functions.in_place import in_place
from gt.client.functions.linalg import LINALG, inverse, linalg, svdvals
from gt.client.functions.reduce import axes_for
from gt.client.functions.registry import both, function, method
from gt.client.saved import saves
from gt.errors import ArgumentError
from gt.ops.rules import axis_of
from gt.ops.table import TABLE

_ORDERS = {None: 2.0, "fro": 2.0, "inf": float("inf"), "-inf": float("-inf")}


@both
def norm(input: Tensor, p: Any = "fro", axis: Any = None, keepdims: bool = False, *, dim: Any = None, keepdim: bool = False,
         dtype: Any = None) -> Tensor:  # fmt: skip
    """The norm of order `p` (2) of all elements, or along an axis or several."""
    if p == "nuc":
        over = axis if dim is None else dim
        given = input if dtype is None else input.to(dtype)
        return matrix_norm(given, "nuc", (-2, -1) if over is None else over, keepdims or keepdim)
    if isinstance(p, str) and p not in _ORDERS:
        raise ArgumentError(f"no norm {p!r}: known are fro, nuc, inf, -inf and numbers")
    order = _ORDERS[p] if p is None or isinstance(p, str) else float(p)
    input = input if dtype is None else input.to(dtype)
    return apply(TABLE["norm"], (input,), (order, axes_for(input, axis, dim), bool(keepdims or keepdim)))


@both
def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    return norm(input - other, p)


@function
def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """The distance of each row of one to each row of the other."""
    return (x1.unsqueeze(-2) - x2.unsqueeze(-3)).norm(float(p), dim=-1)


@function
@saves("input")
def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The distance of each row to each later row."""
    i, j = np.triu_indices(input.shape[0], 1)
    first, second = (input.index_select(0, from_numpy(k.astype(np.int64))) for k in (i, j))
    return (first - second).norm(float(p), dim=-1)


@both
def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Slices along an axis scaled to a norm of at most `maxnorm`."""
    if input.ndim < 2:
        raise ArgumentError(f"renorm: expected at least two axes, got {input.shape}")
    at = axis_of(dim, input.ndim)
    size = input.norm(float(p), dim=tuple(i for i, _ in enumerate(input.shape) if i != at), keepdim=True)
    return input * (size > maxnorm).pick(maxnorm / (size + 1e-7), full((), 1.0, dtype=input.dtype))


@linalg
def vector_norm(x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False) -> Tensor:
    """The norm of vectors along one or several axes, or of all elements."""
    return norm(x, ord, dim, keepdim)


@linalg
def matrix_norm(A: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False) -> Tensor:
    """The norm of matrices: fro, nuc, 1, -1, 2, -2, inf, -inf."""
    rows, columns = (axis_of(d, A.ndim) for d in dim)
    if ord == "fro":
        return norm(A, 2, (rows, columns), keepdim)
    if ord in ("nuc", 2, -2):
        s = svdvals(A.movedim((rows, columns), (-2, -1)))
        found = s.sum(-1) if ord == "nuc" else s.amax(-1) if ord == 2 else s.amin(-1)
    elif abs(ord) in (1, float("inf")):
        over, then = (rows, columns) if abs(ord) == 1 else (columns, rows)
        sums = A.abs().sum(over, keepdims=True)
        found = (sums.amax if ord > 0 else sums.amin)(then, keepdims=True)
        return found if keepdim else found.squeeze((rows, columns))
    else:
        raise ArgumentError(f"no matrix norm {ord!r}: known are fro, nuc, 1, -1, 2, -2, inf, -inf")
    if keepdim:
        for axis in sorted((rows, columns)):
            found = found.unsqueeze(axis)
    return found


def _norm(A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False) -> Tensor:
    """The norm of a vector or a matrix."""
    matrix = isinstance(dim, (tuple, list)) and len(dim) == 2 or dim is None and A.ndim == 2
    if ord is None or not matrix:
        return norm(A, 2 if ord is None else ord, dim, keepdim)
    return matrix_norm(A, ord, (-2, -1) if dim is None else dim, keepdim)


LINALG["norm"] = _norm


@linalg
def cond(A: Tensor, p: Any = None) -> Tensor:
    """The condition number of matrices."""
    if p in (None, 2, -2):
        s = svdvals(A)
        return s.amin(-1) / s.amax(-1) if p == -2 else s.amax(-1) / s.amin(-1)
    return matrix_norm(A, p) * matrix_norm(inverse(A), p)


for _f in (renorm,):
    method(in_place(_f.__name__, _f))
