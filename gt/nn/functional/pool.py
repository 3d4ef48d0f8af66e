"""Pooling over the last one to three axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.create import zeros
from gt.client.saved import note_saved
from gt.errors import ArgumentError
from gt.nn.functional.conv import named, ranked, spread
from gt.ops.table import TABLE


def _steps(size: tuple[int, ...], stride: Any) -> tuple[int, ...]:
    """The stride, by default the window's size."""
    return size if stride is None or stride == () else spread(stride, len(size), "stride")


def _max_pool(n: int) -> Callable:
    name = f"max_pool{n}d"

    def pool(
        input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:  # fmt: skip
        single = ranked(input, n, name)
        if 0 in input.shape[0 if single else 1 :]:
            raise ArgumentError(f"{name}: expected channels and non-empty axes, got {input.shape}")
        size = spread(kernel_size, n, "kernel_size")
        edges, gaps = spread(padding, n, "padding"), spread(dilation, n, "dilation")
        found = apply(TABLE["max_pool"], (input,), (size, _steps(size, stride), edges, gaps, bool(ceil_mode)))
        note_saved(found, input)
        return found if return_indices else found[0]

    return named(pool, name)


def _averaged(n: int, input: Tensor, kernel: Any, stride: Any, padding: Any, ceil: bool, padded: bool, divisor: Any) -> Tensor:
    ranked(input, n, f"avg_pool{n}d")
    if divisor == 0:
        raise ArgumentError(f"avg_pool{n}d: divisor_override must not be 0")
    size = spread(kernel, n, "kernel_size")
    statics = (size, _steps(size, stride), spread(padding, n, "padding"), bool(ceil), bool(padded), divisor or 0)
    return note_saved(apply(TABLE["avg_pool"], (input,), statics), input)


def avg_pool1d(
    input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:  # fmt: skip
    return _averaged(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


def _avg_pool(n: int) -> Callable:
    def pool(
        input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Tensor:  # fmt: skip
        return _averaged(n, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)

    return named(pool, f"avg_pool{n}d")


def _wanted(input: Tensor, n: int, size: Any, name: str) -> tuple[int, ...]:
    """An output size, with the input's in place of None."""
    ranked(input, n, name)
    want = (size,) * n if size is None or isinstance(size, int) else tuple(size)
    if len(want) != n:
        raise ArgumentError(f"an output size is one number or {n}, not {want}")
    return tuple(d if w is None else w for w, d in zip(want, input.shape[-n:]))


def _adaptive_avg_pool(n: int) -> Callable:
    name = f"adaptive_avg_pool{n}d"

    def pool(input: Tensor, output_size: Any) -> Tensor:
        return note_saved(apply(TABLE["adaptive_avg_pool"], (input,), (_wanted(input, n, output_size, name),)), input)

    return named(pool, name)


def _adaptive_max_pool(n: int) -> Callable:
    name = f"adaptive_max_pool{n}d"

    def pool(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        found = apply(TABLE["adaptive_max_pool"], (input,), (_wanted(input, n, output_size, name),))
        note_saved(found, input)
        return found if return_indices else found[0]

    return named(pool, name)


max_pool1d, max_pool2d, max_pool3d = map(_max_pool, (1, 2, 3))
avg_pool2d, avg_pool3d = map(_avg_pool, (2, 3))
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = map(_adaptive_avg_pool, (1, 2, 3))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = map(_adaptive_max_pool, (1, 2, 3))


def _lp_pool(n: int) -> Callable:
    averaged = avg_pool1d if n == 1 else _avg_pool(n)

    def pool(input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Tensor:
        """The norm of each window."""
        count = math.prod(spread(kernel_size, n, "kernel_size"))
        means = averaged(input**norm_type, kernel_size, stride, 0, ceil_mode)
        return (means.sign() * means.abs().relu() * count) ** (1.0 / norm_type)

    return named(pool, f"lp_pool{n}d")


lp_pool1d, lp_pool2d, lp_pool3d = map(_lp_pool, (1, 2, 3))


def _max_unpool(n: int) -> Callable:
    name = f"max_unpool{n}d"

    def unpool(
        input: Tensor, indices: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
    ) -> Tensor:
        """The maxima of windows at their positions, zeros elsewhere."""
        ranked(input, n, name)
        if indices.shape != input.shape:
            raise ArgumentError(f"{name}: expected indices of the input's shape {input.shape}, got {indices.shape}")
        size = spread(kernel_size, n, "kernel_size")
        by, edges = _steps(size, stride), spread(padding, n, "padding")
        least = tuple((d - 1) * s - 2 * p + k for d, s, p, k in zip(input.shape[-n:], by, edges, size))
        want = least if output_size is None else tuple(output_size)[-n:]
        lead = input.shape[:-n]
        flat = zeros(*lead, math.prod(want), dtype=input.dtype)
        return flat.scatter(len(lead), indices.reshape(*lead, -1), input.reshape(*lead, -1)).reshape(*lead, *want)

    return named(unpool, name)


max_unpool1d, max_unpool2d, max_unpool3d = map(_max_unpool, (1, 2, 3))
