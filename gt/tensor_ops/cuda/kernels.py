"""Triton kernels for silu, gelu and rms_norm on torch tensors.

The maths is that of the C++ kernels. Under TRITON_INTERPRET=1 the same source runs on the CPU, which is how it is
tested without a GPU.
"""

from typing import Any

import triton
import triton.language as tl
from triton.language.extra import libdevice

BLOCK = 2048
OPTIONS = {"enable_fp_fusion": True}  # explicit, since Triton's default is about to change, with a warning
WHOLE_ROW = 16384  # longer rows do not fit a program's registers and are read in pieces


@triton.jit
def exp_minus(a, rest):
    """exp(-(a + rest)) for float32 and small rest. ln(2) is cut where its products with n are exact."""
    a = tl.where(a < 87.0, a, 87.0)
    n = tl.floor(a * -1.44269504 + 0.5)
    q = (n * -2.12194440e-4) + (n * 0.693359375 + a) + rest
    return tl.exp(-q) * tl.exp2(n)


@triton.jit
def gate(x, a, edge: tl.constexpr, plain: tl.constexpr):
    """x * sigmoid(a). Below the edge exp(-a) overflows; the result there is as good as zero. The hardware's exp is `plain`
    enough for 64 bits, where it is exact, and for results of 16, which do not see its error."""
    if plain:
        e = tl.exp(-a)
    else:
        e = exp_minus(a, 0.0)
    return tl.where(x < edge, 0.0, x / (1.0 + e))


@triton.jit
def erf_form(x):
    """x * Phi(x) = max(x, 0) - |x| / 2 * erfc(|x| / sqrt(2)), and erfc is exp(-t^2) * P((t-2) / (t+2)) / (1 + 2t)."""
    a = tl.abs(x)
    a = tl.where(a < 15.0, a, 15.0)
    t = a * 0.707106781
    s = (t - 2.0) / (t + 2.0)
    p = 8.06256479505e-5 * s + 0.000172223353327
    p = p * s - 0.000399907185781
    p = p * s - 0.00142316590445
    p = p * s + 0.00125119765069
    p = p * s + 0.00870969170279
    p = p * s - 0.00803032943895
    p = p * s - 0.0542178675874
    p = p * s + 0.164050974698
    p = p * s - 0.166030522527
    p = p * s - 0.0927638186159
    p = p * s + 1.27697838271
    # The square of a's upper 12 bits is exact; the remainder is added once the argument is small.
    upper = (a.to(tl.int32, bitcast=True) & -4096).to(tl.float32, bitcast=True)
    high = upper * upper
    e = exp_minus(0.5 * high, 0.5 * (a - upper) * (a + upper))
    rest = tl.where(high > 174.0, 0.0, 0.5 * a * e * p / (1.0 + 2.0 * t))
    return tl.where(x < 0.0, 0.0, x) - rest


@triton.jit
def silu(x, wide: tl.constexpr, narrow: tl.constexpr, on_cpu: tl.constexpr):
    return gate(x, x, -708.0 if wide else -88.0, wide or narrow)


@triton.jit
def gelu_tanh(x, wide: tl.constexpr, narrow: tl.constexpr, on_cpu: tl.constexpr):
    a = x * (1.5957691216057308 + 0.07135481627260025 * (x * x))
    return gate(x, a, -21.1 if wide else -10.02, wide or narrow)


@triton.jit
def gelu_erf(x, wide: tl.constexpr, narrow: tl.constexpr, on_cpu: tl.constexpr):
    if not wide:
        y = erf_form(x)
    else:
        # The interpreter has no libdevice; 1 + erf loses the tail, where erfc does not.
        if on_cpu:
            tail = 1.0 + tl.erf(x * 0.70710678118654752)
        else:
            tail = libdevice.erfc(x * -0.70710678118654752)
        y = tl.where(x < -40.0, 0.0, 0.5 * x * tail)
    return y


OPS = {"silu": silu, "gelu_tanh": gelu_tanh, "gelu_erf": gelu_erf}


@triton.jit
def elementwise(x_ptr, y_ptr, count, of: tl.constexpr, wide: tl.constexpr, block: tl.constexpr, on_cpu: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * block
    at = tl.arange(0, block)
    inside = at < count - base
    x = tl.load(x_ptr + base + at, mask=inside)
    if not wide:
        x = x.to(tl.float32)
    y = of(x, wide, x_ptr.dtype.element_ty.primitive_bitwidth == 16, on_cpu)
    tl.store(y_ptr + base + at, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def unit_of(largest, root: tl.constexpr, wide: tl.constexpr):
    """The divisor of a row that keeps its squares in range; finite, so that an infinite row is not all NaN."""
    unit = tl.maximum(largest, root)
    return tl.minimum(unit, 1.7976931348623157e308 if wide else 3.4028234663852886e38)


@triton.jit
def in_range(mean, wide: tl.constexpr):
    """Whether no square overflowed or underflowed; false for NaN."""
    return (mean > (1e-280 if wide else 1e-30)) & (mean < (1e300 if wide else 1e37))


@triton.jit
def rms_row(x_ptr, w_ptr, y_ptr, r_ptr, columns, root: tl.constexpr, wide: tl.constexpr, block: tl.constexpr):
    """One program a row, the row in registers. One whose squares leave the range is divided by its largest magnitude."""
    base = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, block)
    inside = at < columns
    x = tl.load(x_ptr + base + at, mask=inside, other=0.0)
    w = tl.load(w_ptr + at, mask=inside, other=0.0)
    if not wide:
        x = x.to(tl.float32)
    mean = tl.sum(x * x, axis=0) / columns + root * root
    scale = 1.0 / tl.sqrt(mean)
    rstd = scale
    if not in_range(mean, wide):
        unit = unit_of(tl.max(tl.abs(x), axis=0), root, wide)
        x = x / unit
        scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / columns + (root / unit) * (root / unit))
        rstd = scale / unit
    if r_ptr is not None:
        tl.store(r_ptr + tl.program_id(0), rstd)
    y = x * scale * w.to(x.dtype)
    tl.store(y_ptr + base + at, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def rms_long_row(x_ptr, w_ptr, y_ptr, r_ptr, columns, root: tl.constexpr, wide: tl.constexpr, block: tl.constexpr):
    """As rms_row, in pieces: one pass for the squares and one for the result, between them two more out of range."""
    base = tl.program_id(0).to(tl.int64) * columns
    lane = tl.arange(0, block)
    sums = tl.zeros([block], dtype=tl.float64 if wide else tl.float32)
    for start in range(0, columns, block):
        x = tl.load(x_ptr + base + start + lane, mask=start + lane < columns, other=0.0).to(sums.dtype)
        sums += x * x
    mean = tl.sum(sums, axis=0) / columns + root * root
    unit = tl.full([], 1.0, sums.dtype)
    if not in_range(mean, wide):
        largest = tl.zeros([block], dtype=sums.dtype)
        for start in range(0, columns, block):
            x = tl.load(x_ptr + base + start + lane, mask=start + lane < columns, other=0.0)
            largest = tl.maximum(largest, tl.abs(x.to(sums.dtype)))
        unit = unit_of(tl.max(largest, axis=0), root, wide)
        sums = tl.zeros([block], dtype=sums.dtype)
        for start in range(0, columns, block):
            z = tl.load(x_ptr + base + start + lane, mask=start + lane < columns, other=0.0).to(sums.dtype) / unit
            sums += z * z
        mean = tl.sum(sums, axis=0) / columns + (root / unit) * (root / unit)
    scale = 1.0 / tl.sqrt(mean)
    if r_ptr is not None:
        tl.store(r_ptr + tl.program_id(0), scale / unit)
    for start in range(0, columns, block):
        inside = start + lane < columns
        x = tl.load(x_ptr + base + start + lane, mask=inside, other=0.0).to(sums.dtype)
        w = tl.load(w_ptr + start + lane, mask=inside, other=0.0).to(sums.dtype)
        tl.store(y_ptr + base + start + lane, (x / unit * scale * w).to(y_ptr.dtype.element_ty), mask=inside)


def warps_for(block: int, x: Any) -> int:
    """Two vectors of 16 bytes a thread: on an H200 more or less of either costs up to a tenth of the bandwidth."""
    return min(16, max(1, block * x.element_size() // (32 * 32)))


def run_elementwise(op: str, x: Any, out: Any, wide: bool) -> None:
    """x and out are contiguous torch tensors of one dtype on one device."""
    grid, warps = (triton.cdiv(x.numel(), BLOCK),), warps_for(BLOCK, x)
    elementwise[grid](x, out, x.numel(), OPS[op], wide, BLOCK, not x.is_cuda, num_warps=warps, **OPTIONS)


def run_rms_norm(x: Any, weight: Any, out: Any, eps: float, wide: bool, rstd: Any = None) -> None:
    """x and out are contiguous (rows, columns) tensors, and so is weight, of any float dtype. `rstd`, if given,
    becomes 1 / sqrt(mean(x^2) + eps) of each row: float32, or float64 where x is.

    The root of eps is compiled in: as an argument it would be rounded to float32 for float64 rows too.
    """
    rows, columns = x.shape
    kernel = rms_row if columns <= WHOLE_ROW else rms_long_row
    block = min(max(triton.next_power_of_2(columns), 16), WHOLE_ROW)
    root, warps = eps**0.5, warps_for(block, x)
    kernel[(rows,)](x, weight, out, rstd, columns, root, wide, block, num_warps=warps, **OPTIONS)
