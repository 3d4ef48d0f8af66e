"""Random numbers on a GPU, one Triton kernel each: the Philox numbers of `gt.ops.random`, generated inside the kernel.

Seed and number may be 0-d tensors, as in CUDA graphs. With TRITON_INTERPRET=1 the same source runs on the CPU."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

COUNTERS = 256  # Philox counters per program: 1024 words, 2048 numbers of 16 bits
WARPS = 4
OPTIONS = {"enable_fp_fusion": True}


@triton.jit
def four_words(
    first_counter, seed, number, seed_is_tensor: tl.constexpr, number_is_tensor: tl.constexpr, counters: tl.constexpr
):
    """The four words of each counter of this program."""
    if seed_is_tensor:
        s = tl.load(seed).to(tl.uint64)
    else:
        s = tl.cast(seed, tl.int64).to(tl.uint64)
    if number_is_tensor:
        n = tl.load(number).to(tl.uint64)
    else:
        n = tl.cast(number, tl.int64).to(tl.uint64)
    counter = (first_counter + tl.program_id(0).to(tl.int64) * counters + tl.arange(0, counters)).to(tl.uint64)
    low = (counter & 0xFFFFFFFF).to(tl.uint32)
    high = (counter >> 32).to(tl.uint32)
    zero = low * 0
    c2 = zero + (n & 0xFFFFFFFF).to(tl.uint32)
    c3 = zero + (n >> 32).to(tl.uint32)
    k0 = zero + (s & 0xFFFFFFFF).to(tl.uint32)
    k1 = zero + (s >> 32).to(tl.uint32)
    return tl.philox_impl(low, high, c2, c3, k0, k1, 10)


@triton.jit
def in_order(w0, w1, w2, w3):
    """The words of all counters in order."""
    return tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))


@triton.jit
def fraction(words):
    """24 bits as a number in [0, 1)."""
    return (words >> 8).to(tl.float32) * (1.0 / 16777216.0)


@triton.jit(do_not_specialize=["seed", "number", "first", "count"])
def uniform_kernel(
    y_ptr, count, first, seed, number, seed_is_tensor: tl.constexpr, number_is_tensor: tl.constexpr, counters: tl.constexpr
):
    begin = first // 4
    w0, w1, w2, w3 = four_words(begin, seed, number, seed_is_tensor, number_is_tensor, counters)
    found = fraction(in_order(w0, w1, w2, w3))
    at = (begin + tl.program_id(0).to(tl.int64) * counters) * 4 - first + tl.arange(0, 4 * counters)
    tl.store(y_ptr + at, found, mask=(at >= 0) & (at < count))


@triton.jit
def box_muller(u, v, on_cpu: tl.constexpr):
    """`u` and `v` in [0, 1). Just below 1 the hardware's logarithm has an error larger than the result; libdevice's has not."""
    u = u + 1.0 / 16777216.0
    angle = v * 6.283185307179586
    if on_cpu:
        return tl.sqrt(-2.0 * tl.log(u)) * tl.cos(angle)
    return tl.sqrt_rn(-2.0 * libdevice.log(u)) * libdevice.cos(angle)


@triton.jit(do_not_specialize=["seed", "number", "first", "count"])
def normal_kernel(
    y_ptr, count, first, seed, number, seed_is_tensor: tl.constexpr, number_is_tensor: tl.constexpr, counters: tl.constexpr,
    on_cpu: tl.constexpr,
):  # fmt: skip
    """Each number uses two words, so a counter gives two numbers."""
    begin = first // 2
    w0, w1, w2, w3 = four_words(begin, seed, number, seed_is_tensor, number_is_tensor, counters)
    even, odd = box_muller(fraction(w0), fraction(w1), on_cpu), box_muller(fraction(w2), fraction(w3), on_cpu)
    at = (begin + tl.program_id(0).to(tl.int64) * counters) * 2 - first + tl.arange(0, 2 * counters)
    tl.store(y_ptr + at, tl.interleave(even, odd), mask=(at >= 0) & (at < count))


@triton.jit(do_not_specialize=["seed", "number", "first", "count", "least", "scale"])
def dropout_kernel(
    a_ptr, y_ptr, count, first, least, scale, seed, number, seed_is_tensor: tl.constexpr, number_is_tensor: tl.constexpr,
    counters: tl.constexpr,
):  # fmt: skip
    """Eight numbers of 16 bits for each counter: an element is kept if its number is at least `least`."""
    begin = first // 8
    w0, w1, w2, w3 = four_words(begin, seed, number, seed_is_tensor, number_is_tensor, counters)
    words = in_order(w0, w1, w2, w3)
    lanes = tl.interleave(words & 0xFFFF, words >> 16).to(tl.int32)
    at = (begin + tl.program_id(0).to(tl.int64) * counters) * 8 - first + tl.arange(0, 8 * counters)
    inside = (at >= 0) & (at < count)
    a = tl.load(a_ptr + at, mask=inside, other=0.0).to(tl.float32)
    y = tl.where(lanes >= least, a * scale, 0.0)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=inside)


def _programs(first: int, count: int, each: int) -> tuple[int]:
    """The number of Triton programs for these elements, of which a counter gives `each`."""
    return (triton.cdiv(-(-(first + count) // each) - first // each, COUNTERS),)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def uniform(seed: Any, number: Any, first: int, count: int, device: torch.device) -> torch.Tensor:
    """float32 in [0, 1), `count` of them from element `first` on."""
    y = torch.empty(count, dtype=torch.float32, device=device)
    uniform_kernel[_programs(first, count, 4)](
        y, count, first, seed, number, _is_tensor(seed), _is_tensor(number), COUNTERS, num_warps=WARPS, **OPTIONS
    )
    return y


def normal(seed: Any, number: Any, first: int, count: int, device: torch.device) -> torch.Tensor:
    y = torch.empty(count, dtype=torch.float32, device=device)
    normal_kernel[_programs(first, count, 2)](
        y, count, first, seed, number, _is_tensor(seed), _is_tensor(number), COUNTERS, not y.is_cuda, num_warps=WARPS, **OPTIONS
    )
    return y


def dropout(a: torch.Tensor, p: float, seed: Any, number: Any, first: int) -> torch.Tensor:
    """For floats of 16 and 32 bits."""
    a = a.contiguous()
    y = torch.empty_like(a)
    dropout_kernel[_programs(first, a.numel(), 8)](
        a, y, a.numel(), first, round(p * (1 << 16)), 1.0 / (1.0 - p) if p < 1 else 0.0, seed, number, _is_tensor(seed),
        _is_tensor(number), COUNTERS, num_warps=WARPS, **OPTIONS,
    )  # fmt: skip
    return y
