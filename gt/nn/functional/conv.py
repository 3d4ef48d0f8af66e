"""Convolutions over one to three axes, and their windows as columns."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.create import from_numpy, zeros
from gt.client.functions.movement import pad
from gt.errors import ArgumentError
from gt.ops.table import TABLE

INTEGERS = frozenset((int,))
MOST = 256  # different settings of convolutions that are remembered


def spread(value: Any, n: int, name: str = "a size") -> tuple[int, ...]:
    """One number for all axes, or one for each."""
    if type(value) is tuple and len(value) == n and INTEGERS.issuperset(map(type, value)):  # as modules have it
        return value
    if isinstance(value, int):
        return (value,) * n
    out = tuple(int(v) for v in value)
    if len(out) == 1:
        return out * n
    if len(out) != n:
        raise ArgumentError(f"{name} is one number or {n}, not {out}")
    return out


def ranked(input: Tensor, n: int, name: str) -> bool:
    """Whether the batch is missing from (batch, channels, ...) with n axes more."""
    axes = input.ndim
    if axes not in (n + 1, n + 2):
        raise ArgumentError(f"{name}: expected (channels, ...) or (batch, channels, ...) with {n} more axes, got {input.shape}")
    return axes == n + 1


def named(f: Callable, name: str) -> Callable:
    f.__name__ = f.__qualname__ = name
    return f


def _over(row: str, x: Tensor, weight: Tensor, bias: Tensor | None, single: bool, statics: tuple) -> Tensor:
    operands = (x.unsqueeze(0) if single else x, weight, *(() if bias is None else (bias,)))
    y = apply(TABLE[row], operands, statics)
    return y.squeeze(0) if single else y


def _same(x: Tensor, size: Any, stride: Any, dilation: Any) -> tuple[Tensor, tuple[int, ...]]:
    """The input and the padding for an output of the input's size."""
    if any(s != 1 for s in stride):
        raise ArgumentError(f"padding='same' needs a stride of 1, not {tuple(stride)}")
    totals = [d * (k - 1) for d, k in zip(dilation, size)]
    uneven = [t % 2 for t in totals]
    if any(uneven):  # the odd element is padded at the end, as in PyTorch
        x = pad(x, [w for u in reversed(uneven) for w in (0, u)])
    return x, tuple(t // 2 for t in totals)


def _conv(n: int) -> Callable:
    name, row = f"conv{n}d", TABLE["conv"]
    statics: dict[tuple, tuple] = {}  # checked settings

    def conv(
        input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:  # fmt: skip
        if type(stride) is type(padding) is type(dilation) is tuple and len(input.handle.spec.shape) == n + 2:  # by a module
            known = statics.get((stride, padding, dilation, groups))
            if known is not None:
                return apply(row, (input, weight) if bias is None else (input, weight, bias), known)
        single = ranked(input, n, name)
        stride, dilation = spread(stride, n, "stride"), spread(dilation, n, "dilation")
        if padding == "same":
            input, padding = _same(input, weight.shape[2:], stride, dilation)
        edges = spread(0 if padding == "valid" else padding, n, "padding")
        if type(padding) is tuple and len(statics) < MOST:
            statics[stride, padding, dilation, groups] = (stride, edges, dilation, groups)
        return _over("conv", input, weight, bias, single, (stride, edges, dilation, groups))

    return named(conv, name)


def _transpose(n: int) -> Callable:
    name = f"conv_transpose{n}d"

    def conv(
        input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
        groups: int = 1, dilation: Any = 1,
    ) -> Tensor:  # fmt: skip
        single = ranked(input, n, name)
        stride, padding, dilation = spread(stride, n, "stride"), spread(padding, n, "padding"), spread(dilation, n, "dilation")
        extra = spread(output_padding, n, "output_padding")
        for e, s, d in zip(extra, stride, dilation):
            if e >= max(s, d):
                raise ArgumentError(f"output_padding: expected less than stride {stride} or dilation {dilation}, got {extra}")
        size = tuple(
            (d - 1) * s - 2 * p + e * (k - 1) + o + 1
            for d, s, p, e, k, o in zip(input.shape[-n:], stride, padding, dilation, weight.shape[2:], extra)
        )
        return _over("conv_transpose", input, weight, bias, single, (size, stride, padding, dilation, groups))

    return named(conv, name)


conv1d, conv2d, conv3d = map(_conv, (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_transpose, (1, 2, 3))


def _windows(size: tuple[int, ...], kernel: Any, dilation: Any, stride: Any) -> tuple[np.ndarray, int]:
    """The flat indices of each window's elements in an image of this size: (elements of a window, windows)."""
    counts = [(d - e * (k - 1) - 1) // s + 1 for d, k, e, s in zip(size, kernel, dilation, stride)]
    if min(counts) < 1:
        raise ArgumentError(f"a window of {kernel} with dilation {dilation} does not fit into {size}")
    first = np.array([[i * e for i, e in zip(at, dilation)] for at in product(*map(range, kernel))])
    moved = np.array([[i * s for i, s in zip(at, stride)] for at in product(*map(range, counts))])
    places = first[:, None] + moved[None]
    return np.ravel_multi_index(tuple(np.moveaxis(places, -1, 0)), size).reshape(-1), len(moved)


def unfold(input: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """The windows of a convolution as columns: (batch, channels * elements of a window, windows)."""
    single = ranked(input, 2, "unfold")
    kernel, by, gaps, edges = (spread(v, 2) for v in (kernel_size, stride, dilation, padding))
    x = pad(input.unsqueeze(0) if single else input, [p for e in reversed(edges) for p in (e, e)])
    places, n = _windows(x.shape[2:], kernel, gaps, by)
    flat = x.reshape(*x.shape[:2], x.shape[2] * x.shape[3])
    found = flat.index_select(2, from_numpy(places)).reshape(x.shape[0], x.shape[1] * len(places) // n, n)
    return found.squeeze(0) if single else found


def fold(input: Tensor, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """The inverse of `unfold`, with overlapping columns added."""
    if input.ndim not in (2, 3):
        raise ArgumentError(
            f"fold: expected (channels * elements of a window, windows), with or without a batch, got {input.shape}"
        )
    x = input.unsqueeze(0) if input.ndim == 2 else input
    size, kernel, by, gaps, edges = (spread(v, 2) for v in (output_size, kernel_size, stride, dilation, padding))
    wide = tuple(d + 2 * e for d, e in zip(size, edges))
    places, n = _windows(wide, kernel, gaps, by)
    each = len(places) // n
    if x.shape[1] % each or x.shape[2] != n:
        raise ArgumentError(
            f"fold to {size} by windows of {kernel}: expected (.., a multiple of {each}, {n}), got {input.shape}"
        )
    channels = x.shape[1] // each
    flat = zeros(x.shape[0], channels, wide[0] * wide[1], dtype=x.dtype)
    found = flat.index_add(2, from_numpy(places), x.reshape(x.shape[0], channels, -1)).reshape(*flat.shape[:2], *wide)
    found = found[:, :, edges[0] : edges[0] + size[0], edges[1] : edges[1] + size[1]]
    return found.squeeze(0) if input.ndim == 2 else found
