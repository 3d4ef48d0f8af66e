"""Sampling images between their pixels."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import arange
from gt.client.functions.elementwise import where
from gt.client.functions.join import stack
from gt.client.saved import saves
from gt.errors import ArgumentError
from gt.nn.functional.resize import interpolate
from gt.spec import int64

MODES, PADDINGS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


def affine_grid(theta: Tensor, size: Any, align_corners: bool | None = None) -> Tensor:
    """The sampling grid (batch, ..., axes) for images of this size, by affine matrices (batch, axes, axes + 1)."""
    n = len(size) - 2
    if n not in (2, 3) or theta.shape[1:] != (n, n + 1):
        raise ArgumentError(f"affine_grid for {tuple(size)}: expected matrices (batch, {n}, {n + 1}), got {theta.shape}")
    if theta.shape[0] != size[0] or min(size) < 1:
        raise ArgumentError(f"affine_grid: expected a matrix for each of {size[0]} non-empty images, got {theta.shape}")
    axes = [_centres(d, theta, bool(align_corners)) for d in size[2:]]
    shape = tuple(size[2:])
    spread = [a.reshape((-1,) + (1,) * (n - i - 1)).expand(shape) for i, a in enumerate(axes)]
    base = stack([*reversed(spread), axes[0].new_ones(shape)], axis=-1).reshape(1, -1, n + 1)  # x first
    return (base @ theta.mT).reshape(size[0], *shape, n)


def _centres(d: int, like: Tensor, corners: bool) -> Tensor:
    """The positions of pixels from -1 to 1, where the ends are the outermost pixels or their outer edges."""
    at = arange(d, dtype=like.dtype)
    if corners:
        return at * (2.0 / (d - 1)) - 1.0 if d > 1 else at * 0.0
    return (at * 2.0 + 1.0) * (1.0 / d) - 1.0


@saves("input", "grid")
def grid_sample(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Tensor:
    """Sample images (batch, channels, ...) at the positions of a grid (batch, ..., axes), from -1 to 1, x first."""
    n = input.ndim - 2
    if mode not in MODES or padding_mode not in PADDINGS:
        raise ValueError(f"no mode {mode!r} or padding {padding_mode!r}: known are {', '.join(MODES)}; {', '.join(PADDINGS)}")
    if n not in (2, 3) or grid.ndim != input.ndim or grid.shape[-1] != n or grid.shape[0] != input.shape[0]:
        raise ArgumentError(f"grid_sample of {input.shape}: expected a grid (batch, ..., {n}), got {grid.shape}")
    if mode == "bicubic" and n != 2:
        raise ArgumentError("grid_sample has bicubic for images of two axes only")
    if not input.numel() and min(input.shape[2:]) == 0:
        raise ArgumentError(f"grid_sample: expected non-empty images, got {input.shape}")
    corners = bool(align_corners)
    sizes = input.shape[2:]
    at = [_unscaled(grid.select(-1, n - 1 - i), d, corners) for i, d in enumerate(sizes)]  # (batch, ...) for each axis
    if mode == "bicubic":
        return _cubic(input, at, padding_mode, corners)
    at = [_inside(a, d, padding_mode, corners) for a, d in zip(at, sizes)]
    if mode == "nearest":
        return _picked(input, [a.round() for a in at])
    low = [a.floor().detach() for a in at]
    total: Any = None
    for corner in product((0, 1), repeat=n):
        weight: Any = None
        for a, f, c in zip(at, low, corner):
            share = a - f if c else 1.0 - (a - f)
            weight = share if weight is None else weight * share
        part = _picked(input, [f + float(c) for f, c in zip(low, corner)]) * weight.unsqueeze(1)
        total = part if total is None else total + part
    return total


def _unscaled(x: Tensor, d: int, corners: bool) -> Tensor:
    """Positions from -1 to 1 as pixel coordinates."""
    return (x + 1.0) * ((d - 1) / 2.0) if corners else ((x + 1.0) * float(d) - 1.0) * 0.5


def _inside(x: Tensor, d: int, padding: str, corners: bool) -> Tensor:
    """Positions beyond the edges, mapped back by the padding mode."""
    if padding == "border":
        return _clipped(x, d)
    if padding == "reflection":
        return _clipped(_reflected(x, 0.0 if corners else -0.5, d - 1.0 if corners else d - 0.5), d)
    return x


def _clipped(x: Tensor, d: int) -> Tensor:
    """Clipped to 0 to d - 1; at the ends and beyond them the gradient is 0, as in PyTorch."""
    kept = (x > 0.0) & (x < d - 1.0)
    return where(kept, x, x.detach().clamp(0.0, d - 1.0))


def _reflected(x: Tensor, low: float, high: float) -> Tensor:
    span = high - low
    if span <= 0:
        return x * 0.0
    away = (x - low).abs()
    turns = (away / span).floor().detach()
    rest = away - turns * span
    return where(turns.remainder(2.0) == 0, rest + low, high - rest)


def _picked(input: Tensor, at: list[Tensor]) -> Tensor:
    """Pixels (batch, channels, ...) at integral positions; 0 outside."""
    lead, sizes = input.shape[:2], input.shape[2:]
    there: Any = None
    flat_index: Any = None
    for a, d in zip(at, sizes):
        a = a.detach()
        inside = (a >= 0) & (a <= d - 1)
        there = inside if there is None else there & inside
        step = a.clamp(0, d - 1).nan_to_num(0.0).to(int64)
        flat_index = step if flat_index is None else flat_index * d + step
    flat = flat_index.reshape(lead[0], 1, -1).expand(*lead, flat_index[0].numel())
    found = input.reshape(*lead, -1).gather(2, flat).reshape(*lead, *flat_index.shape[1:])
    return where(there.unsqueeze(1), found, 0.0)


def _cubic(input: Tensor, at: list[Tensor], padding: str, corners: bool) -> Tensor:
    low = [a.floor().detach() for a in at]
    weights = [_cubic_weights(a - f) for a, f in zip(at, low)]
    total: Any = None
    for i, j in product(range(4), repeat=2):
        places = [_inside(f + (k - 1.0), d, padding, corners) for f, k, d in zip(low, (i, j), input.shape[2:])]
        part = _picked(input, [p.round() for p in places]) * (weights[0][i] * weights[1][j]).unsqueeze(1)
        total = part if total is None else total + part
    return total


def _cubic_weights(t: Tensor) -> list[Tensor]:
    """The cubic weights of the four elements around a position at `t` after the second."""
    a = -0.75
    near: Callable[[Tensor], Tensor] = lambda x: ((a + 2) * x - (a + 3)) * x * x + 1
    far: Callable[[Tensor], Tensor] = lambda x: ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]


def grid_sampler(input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    """`grid_sample`, with numbers for the modes."""
    return grid_sample(input, grid, MODES[interpolation_mode], PADDINGS[padding_mode], align_corners)


grid_sampler_2d = grid_sampler_3d = grid_sampler


def upsample_nearest(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    return interpolate(input, size, scale_factor, "nearest")


def upsample_bilinear(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    return interpolate(input, size, scale_factor, "bilinear", True)
