"""Random numbers on a GPU, one Triton kernel each: the Philox numbers of `gt.ops.random`, generated inside the kernel.

Seed and number may be 0-d tensors, as in CUDA graphs. With TRITON_INTERPRET=1 the same source runs on the CPU."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

COUNTERS = 512  # Philox counters per program: 2048 words
DROPOUT_COUNTERS = 256  # of 2048 numbers of 16 bits
VECTOR = 16  # elements: where all programs begin at multiples, memory is accessed by vectors
MULTIPLE = tl.constexpr(VECTOR)
WARPS, NORMAL_WARPS = 4, 2  # a normal number takes three times the instructions of a uniform one
OPTIONS = {"enable_fp_fusion": False}  # normal numbers have the same bits as in C, which writes each fused operation


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
    c0, c1 = counter.to(tl.uint32), (counter >> 32).to(tl.uint32)
    c2, c3 = c0 * 0 + n.to(tl.uint32), c0 * 0 + (n >> 32).to(tl.uint32)
    k0, k1 = s.to(tl.uint32), (s >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        p0, p1 = c0.to(tl.uint64) * 0xD2511F53, c2.to(tl.uint64) * 0xCD9E8D57  # one instruction for both halves of each
        c0, c2 = (p1 >> 32).to(tl.uint32) ^ c1 ^ k0, (p0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c1, c3 = p1.to(tl.uint32), p0.to(tl.uint32)
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def in_order(w0, w1, w2, w3):
    """The words of all counters in order."""
    return tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))


@triton.jit
def place(first_counter, first, count, each: tl.constexpr, counters: tl.constexpr, whole: tl.constexpr):
    """Where the elements of this program begin, which may be before the first, and which of them there are. `whole` are first
    and count that are multiples of VECTOR."""
    origin = (first_counter + tl.program_id(0).to(tl.int64) * counters) * each - first
    low = tl.maximum(-origin, 0).to(tl.int32)
    high = tl.minimum(count - origin, each * counters).to(tl.int32)
    if whole:
        origin, low, high = tl.multiple_of(origin, MULTIPLE), tl.multiple_of(low, MULTIPLE), tl.multiple_of(high, MULTIPLE)
    i = tl.arange(0, each * counters)
    return origin, i, (i >= low) & (i < high)


@triton.jit
def fraction(words, added: tl.constexpr = 0.0):
    """24 bits as a number in [0, 1), and an addend with which the sum is exact."""
    return tl.fma((words >> 8).to(tl.float32), 1.0 / 16777216.0, added)


@triton.jit(do_not_specialize=["seed", "number", "first", "count"])
def uniform_kernel(
    y_ptr, count, first, seed, number, seed_is_tensor: tl.constexpr, number_is_tensor: tl.constexpr, counters: tl.constexpr,
    whole: tl.constexpr,
):  # fmt: skip
    w0, w1, w2, w3 = four_words(first // 4, seed, number, seed_is_tensor, number_is_tensor, counters)
    origin, i, inside = place(first // 4, first, count, 4, counters, whole)
    tl.store(y_ptr + origin + i, fraction(in_order(w0, w1, w2, w3)), mask=inside)


@triton.jit
def squared_radius(u):
    """-2 log(u) of u in (0, 1], as in philox.c."""
    bits = u.to(tl.int32, bitcast=True)
    e = (bits - 0x3F3504F3) & -0x800000
    f = (bits - e).to(tl.float32, bitcast=True) - 1.0
    p = tl.fma(f, -2.0 * 7.0376836292e-2, 2.0 * 1.1514610310e-1)
    p = tl.fma(p, f, -2.0 * 1.1676998740e-1)
    p = tl.fma(p, f, 2.0 * 1.2420140846e-1)
    p = tl.fma(p, f, -2.0 * 1.4249322787e-1)
    p = tl.fma(p, f, 2.0 * 1.6668057665e-1)
    p = tl.fma(p, f, -2.0 * 2.0000714765e-1)
    p = tl.fma(p, f, 2.0 * 2.4999993993e-1)
    p = tl.fma(p, f, -2.0 * 3.3333331174e-1)
    p = tl.fma(p, f, 1.0)
    p = tl.fma(p, f, -2.0)
    return tl.fma(p, f, e.to(tl.float32) * (-2.0 * 0.6931471805599453 / 8388608.0))


@triton.jit
def sine_of_turn(v):
    """sin(2 pi v) for v in [-0.25, 0.25], as in philox.c."""
    z = v * v
    p = tl.fma(z, 40.803658, -76.71898)
    p = tl.fma(p, z, 81.60829)
    p = tl.fma(p, z, -41.341763)
    p = tl.fma(p, z, 6.2831855)
    return v * p


@triton.jit
def square_root(a):
    """Rounded as by C, of zero or a number that has an inverse: the hardware's inverse of the root and a step of Newton's."""
    inverse = tl.rsqrt(tl.maximum(a, 1e-30))
    y = a * inverse
    return tl.fma(tl.fma(-y, y, a), 0.5 * inverse, y)


@triton.jit
def box_muller(word, following):
    """A pair of normal numbers."""
    radius = square_root(squared_radius(fraction(word, 1.0 / 16777216.0)))
    turn = fraction(following, -0.5)
    across = tl.abs(turn) - 0.25
    along = (0.25 - tl.abs(across)).to(tl.uint32, bitcast=True) | (turn.to(tl.uint32, bitcast=True) & 0x80000000)
    return radius * sine_of_turn(across), radius * sine_of_turn(along.to(tl.float32, bitcast=True))


@triton.jit(do_not_specialize=["seed", "number", "first", "count"])
def normal_kernel(
    y_ptr, count, first, seed, number, seed_is_tensor: tl.constexpr, number_is_tensor: tl.constexpr, counters: tl.constexpr,
    whole: tl.constexpr,
):  # fmt: skip
    w0, w1, w2, w3 = four_words(first // 4, seed, number, seed_is_tensor, number_is_tensor, counters)
    n0, n1 = box_muller(w0, w1)
    n2, n3 = box_muller(w2, w3)
    origin, i, inside = place(first // 4, first, count, 4, counters, whole)
    tl.store(y_ptr + origin + i, in_order(n0, n1, n2, n3), mask=inside)


@triton.jit(do_not_specialize=["seed", "number", "first", "count", "least", "scale"])
def dropout_kernel(
    a_ptr, y_ptr, count, first, least, scale, seed, number, seed_is_tensor: tl.constexpr, number_is_tensor: tl.constexpr,
    counters: tl.constexpr, whole: tl.constexpr,
):  # fmt: skip
    """Eight numbers of 16 bits for each counter: an element is kept if its number is at least `least`."""
    w0, w1, w2, w3 = four_words(first // 8, seed, number, seed_is_tensor, number_is_tensor, counters)
    words = in_order(w0, w1, w2, w3)
    lanes = tl.interleave(words & 0xFFFF, words >> 16).to(tl.int32)
    origin, i, inside = place(first // 8, first, count, 8, counters, whole)
    a = tl.load(a_ptr + origin + i, mask=inside, other=0.0).to(tl.float32)
    y = tl.where(lanes >= least, a * scale, 0.0)
    tl.store(y_ptr + origin + i, y.to(y_ptr.dtype.element_ty), mask=inside)


def _programs(first: int, count: int, each: int, counters: int) -> tuple[int]:
    """The number of Triton programs for these elements, of which a counter gives `each`."""
    return (triton.cdiv(-(-(first + count) // each) - first // each, counters),)


def _is_whole(first: int, count: int) -> bool:
    return first % VECTOR == count % VECTOR == 0


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def uniform(seed: Any, number: Any, first: int, count: int, device: torch.device) -> torch.Tensor:
    """float32 in [0, 1), `count` of them from element `first` on."""
    y = torch.empty(count, dtype=torch.float32, device=device)
    uniform_kernel[_programs(first, count, 4, COUNTERS)](
        y, count, first, seed, number, _is_tensor(seed), _is_tensor(number), COUNTERS, _is_whole(first, count), num_warps=WARPS,
        **OPTIONS,
    )  # fmt: skip
    return y


def normal(seed: Any, number: Any, first: int, count: int, device: torch.device) -> torch.Tensor:
    y = torch.empty(count, dtype=torch.float32, device=device)
    normal_kernel[_programs(first, count, 4, COUNTERS)](
        y, count, first, seed, number, _is_tensor(seed), _is_tensor(number), COUNTERS, _is_whole(first, count),
        num_warps=NORMAL_WARPS, **OPTIONS,
    )  # fmt: skip
    return y


def dropout(a: torch.Tensor, p: float, seed: Any, number: Any, first: int) -> torch.Tensor:
    """For floats of 16 and 32 bits."""
    a = a.contiguous()
    y = torch.empty_like(a)
    dropout_kernel[_programs(first, a.numel(), 8, DROPOUT_COUNTERS)](
        a, y, a.numel(), first, round(p * (1 << 16)), 1.0 / (1.0 - p) if p < 1 else 0.0, seed, number, _is_tensor(seed),
        _is_tensor(number), DROPOUT_COUNTERS, _is_whole(first, a.numel()), num_warps=WARPS, **OPTIONS,
    )  # fmt: skip
    return y
