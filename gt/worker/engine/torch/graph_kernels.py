"""Triton kernels that CUDA graphs take instead of PyTorch's: with a launch that costs nothing, and time to compile before the
capture, they gain by fusing memory traffic. With TRITON_INTERPRET=1 the same source runs on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from gt.ops import Kind
from gt.ops.activation import GELU_ZERO
from gt.spec import float32
from gt.worker.engine.torch.dtypes import TORCH
from gt.worker.engine.torch.kernels import SUMMED
from gt.worker.engine.torch.ones import ones

Array = torch.Tensor
TILE = 2048  # elements that a program has in registers at a time, and of a gradient
GRADIENT_TILE = 4096
PROGRAMS = 256  # most programs, each with its sums of the rows that it has seen
WIDEST = 4096  # most columns
LEAST = 1 << 16  # elements: PyTorch's kernels for fewer take no longer
COLUMNS = 16  # columns of a program that adds up sums
BLOCK = 1024
LOOKS = 1 << 20  # most indices that the rows of a table look at
MOST_GRADIENTS = 1 << 30  # elements, so that indices have 32 bits
PLACES, TABLE_COLUMNS = 128, 64  # of a tile
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@triton.jit
def norm_kernel(
    a_ptr, b_ptr, w_ptr, bias_ptr, sum_ptr, y_ptr, mean_ptr, rstd_ptr, rows, columns, eps, tile: tl.constexpr,
    wide: tl.constexpr,
):  # fmt: skip
    """The sum of two tensors, and its layer norm."""
    at = tl.arange(0, wide)
    inside = at < columns
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    offset = row[:, None].to(tl.int64) * columns + at[None, :]
    both = (row < rows)[:, None] & inside[None, :]
    w = tl.load(w_ptr + at, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + at, mask=inside, other=0.0).to(tl.float32)
    a = tl.load(a_ptr + offset, mask=both, other=0.0).to(tl.float32)
    total = (a + tl.load(b_ptr + offset, mask=both, other=0.0).to(tl.float32)).to(sum_ptr.dtype.element_ty)
    tl.store(sum_ptr + offset, total, mask=both)
    x = total.to(tl.float32)
    mean = tl.sum(x, 1) / columns
    centred = tl.where(inside[None, :], x - mean[:, None], 0.0)
    rstd = 1.0 / tl.sqrt_rn(tl.sum(centred * centred, 1) / columns + eps)
    y = centred * rstd[:, None] * w[None, :] + bias[None, :]
    tl.store(y_ptr + offset, y.to(y_ptr.dtype.element_ty), mask=both)
    tl.store(mean_ptr + row, mean, mask=row < rows)
    tl.store(rstd_ptr + row, rstd, mask=row < rows)


@triton.jit
def norm_grad_kernel(
    other_ptr, g_ptr, a_ptr, mean_ptr, rstd_ptr, w_ptr, y_ptr, sums_ptr, rows, columns, adds: tl.constexpr,
    tile: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """The gradient of the input, added to another one if it `adds`, and for each program the sums over its rows for weight and
    bias, one behind the other."""
    at = tl.arange(0, wide)
    inside = at < columns
    w = tl.load(w_ptr + at, mask=inside, other=0.0).to(tl.float32)
    of_weight = tl.zeros((wide,), tl.float32)
    of_bias = tl.zeros((wide,), tl.float32)
    for first in range(tl.program_id(0) * tile, rows, tl.num_programs(0) * tile):
        row = first + tl.arange(0, tile)
        offset = row[:, None].to(tl.int64) * columns + at[None, :]
        both = (row < rows)[:, None] & inside[None, :]
        g = tl.load(g_ptr + offset, mask=both, other=0.0).to(tl.float32)
        a = tl.load(a_ptr + offset, mask=both, other=0.0).to(tl.float32)
        mean = tl.load(mean_ptr + row, mask=row < rows, other=0.0)
        rstd = tl.load(rstd_ptr + row, mask=row < rows, other=0.0)
        hat = (a - mean[:, None]) * rstd[:, None]
        slope = g * w[None, :]
        along = tl.sum(slope * hat, 1) / columns
        level = tl.sum(slope, 1) / columns
        y = (slope - hat * along[:, None] - level[:, None]) * rstd[:, None]
        if adds:
            y = y.to(y_ptr.dtype.element_ty).to(tl.float32)
            y += tl.load(other_ptr + offset, mask=both, other=0.0).to(tl.float32)
        tl.store(y_ptr + offset, y.to(y_ptr.dtype.element_ty), mask=both)
        of_weight += tl.sum(g * hat, 0)
        of_bias += tl.sum(g, 0)
    offset = tl.program_id(0).to(tl.int64) * 2 * columns + at
    tl.store(sums_ptr + offset, of_weight, mask=inside)
    tl.store(sums_ptr + offset + columns, of_bias, mask=inside)


@triton.jit
def sum_kernel(sums_ptr, y_ptr, rows, columns, most: tl.constexpr, wide: tl.constexpr):
    """The sums over rows, of which there are at most `most`."""
    row = tl.arange(0, most)
    at = tl.program_id(0) * wide + tl.arange(0, wide)
    both = (row < rows)[:, None] & (at < columns)[None, :]
    found = tl.sum(tl.load(sums_ptr + row[:, None] * columns + at[None, :], mask=both, other=0.0), 0)
    tl.store(y_ptr + at, found.to(y_ptr.dtype.element_ty), mask=at < columns)


def is_fused(kind: Kind) -> bool:
    """Whether there is a kernel for a norm, or its gradient, of this kind, with a sum or without."""
    of, ndim = kind.outs[0], kind.settings["ndim"]
    has_bias = kind.settings["bias"] if "bias" in kind.settings else len(kind.ins) - kind.ins.index(float) == 3
    columns = math.prod(of.shape[of.ndim - ndim :])
    return has_bias and TORCH[of.dtype] in DTYPES and of.numel >= LEAST and columns <= WIDEST


def _tiles(a: Array, ndim: int, elements: int) -> tuple[int, int, int, int]:
    """Rows, columns, rows of a program, and columns rounded up to a power of two."""
    columns = math.prod(a.shape[a.ndim - ndim :])
    wide = triton.next_power_of_2(columns)
    return a.numel() // columns, columns, max(1, elements // wide), wide


def add_layer_norm(a: Array, b: Array, eps: float, *parts: Array, ndim: int) -> tuple[Array, ...]:
    a, b, w, bias = (x.contiguous() for x in (a, b, *parts))
    rows, columns, tile, wide = _tiles(a, ndim, TILE)
    total, y = torch.empty_like(a), torch.empty_like(a)
    mean, rstd = (a.new_empty((*a.shape[: a.ndim - ndim], *[1] * ndim), dtype=torch.float32) for _ in range(2))
    norm_kernel[(triton.cdiv(rows, tile),)](a, b, w, bias, total, y, mean, rstd, rows, columns, eps, tile, wide, num_warps=4)
    return total, y, mean, rstd


def add_layer_norm_grad(
    other: Array | None, g: Array, a: Array, mean: Array, rstd: Array, weight: Array, *, ndim: int, bias: bool
) -> tuple[Array, ...]:  # fmt: skip
    """The gradients of input, weight and bias in one pass over memory, and one over the sums of at most 256 programs."""
    g, a, mean, rstd, w = (x.contiguous() for x in (g, a, mean, rstd, weight))
    other = None if other is None else other.contiguous()
    rows, columns, tile, wide = _tiles(a, ndim, GRADIENT_TILE)
    programs = min(PROGRAMS, triton.cdiv(rows, tile))
    y, sums = torch.empty_like(a), a.new_empty((programs, 2, *w.shape), dtype=torch.float32)
    norm_grad_kernel[(programs,)](
        g if other is None else other, g, a, mean, rstd, w, y, sums, rows, columns, other is not None, tile, wide, num_warps=4
    )
    found = torch.empty((2, *w.shape), dtype=w.dtype, device=w.device)
    most = triton.next_power_of_2(programs)
    sum_kernel[(triton.cdiv(2 * columns, COLUMNS),)](sums, found, programs, 2 * columns, most, COLUMNS, num_warps=4)
    return y, found[0], found[1]


@triton.jit
def gelu_kernel(a_ptr, y_ptr, count, least, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    a = tl.load(a_ptr + at, mask=at < count, other=0.0).to(tl.float32)
    a = tl.where(a < least, least, a)  # NaN stays
    y = a * 0.5 * (1.0 + tl.erf(a * 0.7071067811865476))
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=at < count)


def gelu(a: Array, *, tanh: bool) -> Array:
    """gelu of the clamped input in one kernel."""
    if tanh or a.dtype not in DTYPES or not a.is_contiguous() or not a.numel():
        return torch.nn.functional.gelu(a.clamp(min=GELU_ZERO), approximate="tanh" if tanh else "none")
    y = torch.empty_like(a)
    gelu_kernel[(triton.cdiv(a.numel(), BLOCK),)](a, y, a.numel(), GELU_ZERO, BLOCK, num_warps=4)
    return y


def is_channel_sum(kind: Kind) -> bool:
    """Whether it is the sum of images over all but their channels, as the gradient of a convolution's bias."""
    a, axis = kind.ins[0], kind.settings["axis"]
    return a.ndim == 4 and tuple(axis) == (0, 2, 3) and a.dtype is float32 and LEAST <= a.numel <= SUMMED


def channel_sums(a: Array, *, axis: tuple[int, ...], keepdims: bool) -> Array:
    """As products with ones: on an H200 6.3 us for 64 x 64 x 32 x 32, where the sum takes 19.5."""
    if a.is_contiguous():
        of_image = torch.mv(a.view(-1, a.shape[2] * a.shape[3]), ones(a.shape[2] * a.shape[3], a))
        found = torch.mv(of_image.view(a.shape[:2]).t(), ones(len(a), a))
    else:
        rows = a.permute(0, 2, 3, 1).reshape(-1, a.shape[1])  # without a copy where the channels are last
        found = torch.mv(rows.t(), ones(len(rows), a))
    return found.reshape(1, -1, 1, 1) if keepdims else found


@triton.jit
def embedding_grad_kernel(g_ptr, index_ptr, y_ptr, count, columns, padding, tile: tl.constexpr, wide: tl.constexpr):
    """Columns of one of the table's rows: the sum of the gradients of the places that have its index."""
    row = tl.program_id(0)
    at = tl.program_id(1) * wide + tl.arange(0, wide)
    total = tl.zeros((tile, wide), tl.float32)
    for begin in range(0, count, tile):
        i = begin + tl.arange(0, tile)
        here = tl.load(index_ptr + i, mask=i < count, other=-1) == row
        if tl.max(here.to(tl.int32), 0) > 0:
            both = here[:, None] & (at < columns)[None, :]
            total += tl.load(g_ptr + i[:, None] * columns + at[None, :], mask=both, other=0.0).to(tl.float32)
    found = tl.where(row == padding, 0.0, tl.sum(total, 0))
    tl.store(y_ptr + row * columns + at, found.to(y_ptr.dtype.element_ty), mask=at < columns)


def is_small_table(kind: Kind) -> bool:
    """Whether it is the gradient of a table so small that each of its rows can look at all indices."""
    g, index = kind.ins[:2]
    rows = kind.outs[0].shape[0]
    return TORCH[g.dtype] in DTYPES and LEAST <= g.numel <= MOST_GRADIENTS and rows * index.numel <= LOOKS


def embedding_grad(g: Array, index: Array, *, shape: tuple[int, int], padding: int) -> Array:
    """Sums have one order: the same bits each time."""
    g, index, (rows, columns) = g.contiguous(), index.contiguous(), shape
    y = g.new_empty(shape)
    grid = (rows, triton.cdiv(columns, TABLE_COLUMNS))
    embedding_grad_kernel[grid](g, index, y, index.numel(), columns, padding, PLACES, TABLE_COLUMNS, num_warps=4)
    return y


class OfKind(NamedTuple):
    """`run` computes instructions of kinds of which `fits` is true."""

    run: Callable[..., Any]
    fits: Callable[[Kind], bool] = lambda kind: True


KERNELS: dict[str, OfKind] = {
    "layer_norm_grad": OfKind(partial(add_layer_norm_grad, None), is_fused), "add_layer_norm": OfKind(add_layer_norm, is_fused),
    "add_layer_norm_grad": OfKind(add_layer_norm_grad, is_fused), "gelu": OfKind(gelu),
    "sum": OfKind(channel_sums, is_channel_sum), "embedding_grad": OfKind(embedding_grad, is_small_table),
}  # fmt: skip


def kernel(kind: Kind) -> Callable[..., Any] | None:
    """The kernel that graphs have for a kind, if there is one."""
    found = KERNELS.get(kind.row.name)
    return partial(found.run, **kind.settings) if found is not None and found.fits(kind) else None
