"""Differences, gradients and integrals of sampled functions."""

from __future__ import annotations

from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import full
from gt.client.functions.registry import FUNCTIONS, both, function
from gt.errors import ArgumentError
from gt.ops.rules import axis_of
from gt.spec import bool_


@both
def diff(input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
    """The difference of each element and the one before it, repeated `n` times, after `prepend` and `append` are
    concatenated."""
    if n < 0:
        raise ArgumentError(f"diff: expected n of 0 or more, got {n}")
    if not input.ndim:
        raise ArgumentError("diff: expected at least one axis, got a 0-d tensor")
    at = axis_of(dim, input.ndim)
    parts = [t for t in (prepend, input, append) if t is not None]
    input = FUNCTIONS["cat"](parts, at) if len(parts) > 1 else input
    for _ in range(n):
        size = max(input.shape[at] - 1, 0)
        after, before = input.narrow(at, min(1, input.shape[at]), size), input.narrow(at, 0, size)
        input = after ^ before if input.dtype is bool_ else after - before
    return input if n else input.clone()


@function
def gradient(input: Tensor, *, spacing: Any = 1, dim: Any = None, edge_order: int = 1) -> list[Tensor]:
    """Gradients along each axis by central differences; at the ends by one-sided differences of first or, with `edge_order=2`,
    second order. `spacing` is the distance of points, or tensors with the coordinates along each axis."""
    spacing = 1 if spacing is None else spacing
    axes = range(input.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    where = [axis_of(d, input.ndim) for d in axes]
    if len(set(where)) != len(where):
        raise ArgumentError(f"gradient: expected different axes, got {tuple(axes)}")
    if edge_order not in (1, 2):
        raise ArgumentError(f"gradient: expected an edge_order of 1 or 2, got {edge_order}")
    apart = list(spacing) if isinstance(spacing, (tuple, list)) else [spacing] * len(where)
    if len(apart) != len(where):
        raise ArgumentError(f"gradient along {len(where)} axes: expected as many spacings, got {len(apart)}")
    for at, by in zip(where, apart):
        if input.shape[at] <= edge_order:
            raise ArgumentError(
                f"gradient: expected more than {edge_order} points along axis {at}, got a tensor of {input.shape}"
            )
        if isinstance(by, Tensor) and by.ndim and by.shape != (input.shape[at],):
            raise ArgumentError(f"gradient: expected a point for each of {input.shape[at]} elements, got {by.shape}")
    return [_slopes(input, at, by, edge_order) for at, by in zip(where, apart)]


def _slopes(x: Tensor, at: int, by: Any, edge_order: int) -> Tensor:
    n = x.shape[at]
    gaps = _gaps(x, at, by)  # the slope between neighbours
    steps = x.narrow(at, 1, n - 1) - x.narrow(at, 0, n - 1)
    each = steps / gaps  # the slope between neighbours
    first, last = each.narrow(at, 0, 1), each.narrow(at, n - 2, 1)
    if n == 2:
        return FUNCTIONS["cat"]([first, last], at)
    before, after = gaps.narrow(0, 0, n - 2), gaps.narrow(0, 1, n - 2)
    low, high = each.narrow(at, 0, n - 2), each.narrow(at, 1, n - 2)
    inner = (low * after + high * before) / (before + after)
    if edge_order == 2:
        first = first + (first - each.narrow(at, 1, 1)) * _share(gaps, 0, 1)
        last = last + (last - each.narrow(at, n - 3, 1)) * _share(gaps, n - 2, n - 3)
    return FUNCTIONS["cat"]([first, inner, last], at)


def _share(gaps: Tensor, near: int, far: int) -> Tensor:
    a, b = gaps.narrow(0, near, 1), gaps.narrow(0, far, 1)
    return a / (a + b)


def _gaps(x: Tensor, at: int, by: Any) -> Tensor:
    """The distances of neighbours along the axis, shaped to broadcast against the tensor."""
    n, shape = x.shape[at], (-1,) + (1,) * (x.ndim - at - 1)
    if isinstance(by, Tensor) and by.ndim:
        return (by.narrow(0, 1, n - 1) - by.narrow(0, 0, n - 1)).reshape(shape)
    if isinstance(by, Tensor):
        return by.expand(n - 1).reshape(shape)
    return full((n - 1,), float(by), dtype=x.dtype if x.dtype.rank >= 2 else None).reshape(shape)


@function
def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1, dim: int = -1) -> Tensor:
    """The integral by the trapezoidal rule."""
    return _slabs(y, x, dim).sum(dim) * (dx / 2 if x is None else 0.5)


@function
def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1, dim: int = -1) -> Tensor:
    return _slabs(y, x, dim).cumsum(dim) * (dx / 2 if x is None else 0.5)


FUNCTIONS["trapz"] = trapezoid


def _slabs(y: Tensor, x: Tensor | None, dim: int) -> Tensor:
    """Twice the area between neighbours, which are 1 apart or have the coordinates `x`."""
    at = axis_of(dim, y.ndim)
    n = max(y.shape[at] - 1, 0)
    both = y.narrow(at, min(1, y.shape[at]), n) + y.narrow(at, 0, n)
    if x is None:
        return both
    if x.ndim == 1:
        x = x.reshape((-1,) + (1,) * (y.ndim - at - 1))
        return both * (x.narrow(0, 1, n) - x.narrow(0, 0, n))
    return both * (x.narrow(at, 1, n) - x.narrow(at, 0, n))
