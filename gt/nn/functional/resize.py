"""Resizing and rearranging images."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gt.client.autograd import Tensor
from gt.client.functions.create import from_numpy
from gt.client.views import own
from gt.errors import ArgumentError, UnsupportedDTypeError
from gt.nn.functional.pool import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d
from gt.spec import int32, uint8

LINEAR = {"linear": 1, "bilinear": 2, "trilinear": 3, "bicubic": 2}


def _cubic(t: np.ndarray) -> list[np.ndarray]:
    """The cubic weights of the four elements around a position at `t` after the second."""
    a = -0.75
    near = [((a + 2) * x - (a + 3)) * x * x + 1 for x in (t, 1 - t)]
    far = [((a * x - 5 * a) * x + 8 * a) * x - 4 * a for x in (t + 1, 2 - t)]
    return [far[0], near[0], near[1], far[1]]


def _taps(d: int, n: int, scale: float | None, mode: str, corners: bool) -> list[tuple[np.ndarray, Any]]:
    """For an axis resized from d to n elements: the source elements of each, and their weights."""
    step = d / n if scale is None else 1.0 / scale
    i = np.arange(n)
    if mode == "nearest":
        return [(np.minimum(np.floor(i * np.float32(step)), d - 1), None)]
    if mode == "nearest-exact":
        return [(np.minimum(np.floor((i + 0.5) * step), d - 1), None)]
    at = i * ((d - 1) / (n - 1) if n > 1 else 0.0) if corners else (i + 0.5) * step - 0.5
    if mode == "bicubic":
        low = np.floor(at)
        return [(np.clip(low + k - 1, 0, d - 1), w) for k, w in enumerate(_cubic(at - low))]
    at = np.maximum(at, 0.0)
    low = np.minimum(np.floor(at), d - 1)
    return [(low, 1.0 - (at - low)), (np.minimum(low + 1, d - 1), at - low)]


def _along(x: Tensor, axis: int, taps: list[tuple[np.ndarray, Any]]) -> Tensor:
    total: Any = None
    for places, weight in taps:
        part = x.index_select(axis, from_numpy(places.astype(np.int64)))
        if weight is not None:
            part = part * from_numpy(weight.reshape((-1,) + (1,) * (x.ndim - axis - 1))).to(x.dtype)
        total = part if total is None else total + part
    return total


def _whole_taps(taps: list[tuple[np.ndarray, Any]], d: int) -> tuple[list[tuple[np.ndarray, Any]], int]:
    """The weights as integers, and by how many bits they are larger: PyTorch resizes images of bytes in fixed point. Elements
    past an end are its last element, whose weights are added up before they are rounded."""
    n = len(taps[0][0])
    weights, rows = np.zeros((n, d)), np.arange(n)
    for places, weight in taps:
        np.add.at(weights, (rows, places.astype(int)), weight)
    bits = next(b for b in range(23) if b == 22 or int(0.5 + weights.max() * (2 << b)) >= 1 << 15)
    rounded = np.trunc(weights * (1 << bits) + np.copysign(0.5, weights))
    found, seen = [], np.zeros((n, d), bool)
    for places, _ in taps:
        at = (rows, places.astype(int))
        found.append((places, np.where(seen[at], 0, rounded[at])))
        seen[at] = True
    return found, bits


def _bytes_along(x: Tensor, axis: int, taps: list[tuple[np.ndarray, Any]]) -> Tensor:
    taps, bits = _whole_taps(taps, x.shape[axis])
    return ((_along(x, axis, taps) + (1 << bits - 1)) >> bits).clamp(0, 255)


def interpolate(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> Tensor:  # fmt: skip
    """Resize (batch, channels, ...) to a size or by a factor."""
    n = input.ndim - 2
    if not 1 <= n <= 3:
        raise UnsupportedDTypeError(
            f"interpolate: expected (batch, channels, ...) with one to three more axes, got {input.shape}"
        )
    if mode not in ("nearest", "nearest-exact", "area", *LINEAR):
        raise ArgumentError(f"no mode {mode!r}: known are nearest, nearest-exact, area, {', '.join(LINEAR)}")
    if LINEAR.get(mode, n) != n:
        raise ArgumentError(f"mode {mode!r} is for {LINEAR[mode]} axes besides batch and channels, not {input.shape}")
    if (size is None) == (scale_factor is None):
        raise ArgumentError("interpolate: expected either a size or a scale_factor")
    if antialias:
        raise NotImplementedError("interpolate: antialias=True is not supported")
    if align_corners is not None and mode not in LINEAR:
        raise ArgumentError(f"align_corners needs a mode of {', '.join(LINEAR)}, got {mode}")
    old = input.shape[2:]
    scales: list[float | None] = [None] * n
    if size is None:
        scales = list(scale_factor) if isinstance(scale_factor, (tuple, list)) else [float(scale_factor)] * n
        want = tuple(math.floor(d * s) for d, s in zip(old, scales))
        scales = [None] * n if recompute_scale_factor else scales
    else:
        want = (size,) * n if isinstance(size, int) else tuple(size)
    if len(want) != n or min(want) < 1:
        raise ArgumentError(f"interpolate of {input.shape}: expected {n} sizes of 1 or more, got {want}")
    if mode == "area":
        return (adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d)[n - 1](input, want)
    whole = input.dtype.rank == 1 and mode in LINEAR
    if whole and (input.dtype is not uint8 or n != 2):
        raise UnsupportedDTypeError(f"interpolate by {mode}: expected floats, or an image of uint8, got {input.dtype.name}")
    x, along = (input.to(int32), _bytes_along) if whole else (input, _along)
    for i, (d, w, s) in [*enumerate(zip(old, want, scales))][:: -1 if whole else 1]:
        if d != w or s not in (None, 1.0):
            x = along(x, 2 + i, _taps(d, w, s, mode, bool(align_corners)))
    return x.to(input.dtype)


def upsample(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None
) -> Tensor:
    return interpolate(input, size, scale_factor, mode, align_corners)


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """(.., channels * r * r, h, w) as (.., channels, h * r, w * r)."""
    r, (*lead, c, h, w) = upscale_factor, input.shape
    if r < 1 or c % (r * r):
        raise ArgumentError(f"pixel_shuffle by {r}: expected a multiple of {r * r} channels, got {c} of {input.shape}")
    n = len(lead)
    x = input.reshape(*lead, c // (r * r), r, r, h, w)
    return own(x.permute(*range(n), n, n + 3, n + 1, n + 4, n + 2).reshape(*lead, c // (r * r), h * r, w * r), input)


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """(.., channels, h * r, w * r) as (.., channels * r * r, h, w)."""
    r, (*lead, c, h, w) = downscale_factor, input.shape
    if r < 1 or h % r or w % r:
        raise ArgumentError(f"pixel_unshuffle by {r}: expected height and width that are multiples of it, got {input.shape}")
    n = len(lead)
    x = input.reshape(*lead, c, h // r, r, w // r, r)
    return own(x.permute(*range(n), n, n + 2, n + 4, n + 1, n + 3).reshape(*lead, c * r * r, h // r, w // r), input)


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """The channels of all groups, interleaved."""
    b, c, *rest = input.shape
    if groups < 1 or c % groups:
        raise ArgumentError(f"{c} channels cannot be divided into {groups} groups")
    return own(input.reshape(b, groups, c // groups, *rest).transpose(1, 2).reshape(input.shape), input)
