"""Pooling by a given number of windows at random positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import arange, tensor
from gt.client.functions.random import rand
from gt.client.saved import note_saved
from gt.errors import ArgumentError
from gt.nn.functional.conv import named, ranked, spread
from gt.spec import int64


def _starts(sample: Tensor, d: int, n: int, kernel: int) -> Tensor:
    """The starts of the n windows of an axis of d elements, (..., n) for samples (...) from 0 to 1."""
    i = arange(n)
    if n == 1:
        return (sample.unsqueeze(-1) * 0.0).to(int64) + (d - kernel)
    step = (d - kernel) / (n - 1)
    u = sample.unsqueeze(-1)
    found = ((i.to(sample.dtype) + u) * step).to(int64) - (u * step).to(int64)
    return (i == n - 1).pick(d - kernel, found)


def _fractional(n: int) -> Callable:
    name = f"fractional_max_pool{n}d"

    def pool(
        input: Tensor, kernel_size: Any, output_size: Any = None, output_ratio: Any = None, return_indices: bool = False,
        _random_samples: Tensor | None = None,
    ) -> Any:  # fmt: skip
        single = ranked(input, n, name)
        x = input.unsqueeze(0) if single else input
        sizes, kernel = x.shape[2:], spread(kernel_size, n, "kernel_size")
        want = _wanted(name, sizes, output_size, output_ratio, n)
        for d, k, w in zip(sizes, kernel, want):
            if w + k - 1 > d or w < 1:
                raise ArgumentError(f"{name} of {input.shape} cannot give {want} by windows of {kernel}")
        samples = rand(*x.shape[:2], n, dtype=x.dtype) if _random_samples is None else _random_samples[: x.shape[0]]
        places = _places(samples, sizes, want, kernel)  # (batch, channels, windows, elements of a window)
        flat = x.reshape(*x.shape[:2], -1)
        met = flat.gather(2, places.reshape(*x.shape[:2], -1)).reshape(places.shape)
        values, which = met.max(-1)
        indices = places.gather(3, which.unsqueeze(-1)).squeeze(-1)
        found = [t.reshape(*x.shape[:2], *want) for t in (values, indices)]
        found = [t.squeeze(0) if single else t for t in found]
        note_saved(tuple(found), input, found[1])
        return tuple(found) if return_indices else found[0]

    pool.__doc__ = f"The maximum of each of a given number of windows over the last {n} axes, at random positions."
    return named(pool, name)


def _wanted(name: str, sizes: tuple[int, ...], size: Any, ratio: Any, n: int) -> tuple[int, ...]:
    if size is None and ratio is None:
        raise ArgumentError(f"{name} needs an output_size or an output_ratio")
    if size is not None:
        return spread(size, n, "output_size")
    ratios = (ratio,) * n if isinstance(ratio, (int, float)) else tuple(ratio)
    if len(ratios) != n:
        raise ArgumentError(f"an output_ratio is one number or {n}, not {ratios}")
    return tuple(int(d * r) for d, r in zip(sizes, ratios))


def _places(samples: Tensor, sizes: tuple[int, ...], want: tuple[int, ...], kernel: tuple[int, ...]) -> Tensor:
    """The flat indices of each window's elements. The first sample is the last axis's, as in PyTorch."""
    n, lead = len(sizes), samples.shape[:2]
    order = range(n) if n == 3 else reversed(range(n))
    starts = [_starts(samples.select(2, s), d, w, k) for s, d, w, k in zip(order, sizes, want, kernel)]
    first: Any = 0
    for axis, (start, d) in enumerate(zip(starts, sizes)):
        shape = (*lead, *(1,) * axis, want[axis], *(1,) * (n - axis - 1))
        first = first * d + start.reshape(shape)
    within = []
    for at in product(*map(range, kernel)):
        flat_index = 0
        for i, d in zip(at, sizes):
            flat_index = flat_index * d + i
        within.append(flat_index)
    flat = first.expand(*lead, *want).reshape(*lead, math.prod(want), 1)
    return flat + tensor(within, dtype=int64)


fractional_max_pool2d, fractional_max_pool3d = map(_fractional, (2, 3))
