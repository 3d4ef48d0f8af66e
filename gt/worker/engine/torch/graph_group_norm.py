"""Triton kernels of CUDA graphs for group norm and its gradient: a program has a whole group of one image in registers, and
reads it once. With TRITON_INTERPRET=1 the same source runs on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

from gt.ops import Kind
from gt.spec import Spec, float32
from gt.worker.engine.torch.packed import packed

Array = torch.Tensor
GROUP = 16384  # most elements of a group that a program can have in registers
FEW = 4096  # elements of a group for four warps; a larger one has more
BATCH = 256  # most images, whose sums are added up by one program
EPS = 1e-5  # of the zeros
LEAST = 1 << 16  # elements: PyTorch's kernels for fewer take no longer
PARTS = 2  # weight and bias
COLUMNS = 16  # columns of a program that adds up sums


@triton.jit
def group_tile(
    channels: tl.constexpr, size: tl.constexpr, groups: tl.constexpr, channels_wide: tl.constexpr, wide: tl.constexpr
):
    """The channels of a program's group, which of them there are, the places of its elements, and which of these there are."""
    in_group = channels // groups
    row = tl.arange(0, channels_wide)
    column = tl.arange(0, wide)
    channel = tl.program_id(0) % groups * in_group + row
    first = tl.program_id(0).to(tl.int64) * in_group * size
    inside = (row < in_group)[:, None] & (column < size)[None, :]
    return channel, row < in_group, first + row[:, None] * size + column[None, :], inside


@triton.jit
def group_norm_kernel(
    a_ptr, w_ptr, bias_ptr, y_ptr, mean_ptr, rstd_ptr, eps, channels: tl.constexpr, size: tl.constexpr, groups: tl.constexpr,
    channels_wide: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    channel, there, at, inside = group_tile(channels, size, groups, channels_wide, wide)
    count = channels // groups * size
    a = tl.load(a_ptr + at, mask=inside, other=0.0)
    mean = tl.sum(tl.sum(a, 1), 0) / count
    centred = tl.where(inside, a - mean, 0.0)
    rstd = 1.0 / tl.sqrt_rn(tl.sum(tl.sum(centred * centred, 1), 0) / count + eps)
    w = tl.load(w_ptr + channel, mask=there, other=0.0)
    bias = tl.load(bias_ptr + channel, mask=there, other=0.0)
    tl.store(y_ptr + at, centred * rstd * w[:, None] + bias[:, None], mask=inside)
    tl.store(mean_ptr + tl.program_id(0), mean)
    tl.store(rstd_ptr + tl.program_id(0), rstd)


@triton.jit
def group_norm_grad_kernel(
    g_ptr, a_ptr, mean_ptr, rstd_ptr, w_ptr, y_ptr, sums_ptr, channels: tl.constexpr, size: tl.constexpr, groups: tl.constexpr,
    channels_wide: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """The gradient of the input, and for each image the sums over its elements for weight and bias, one behind the other."""
    channel, there, at, inside = group_tile(channels, size, groups, channels_wide, wide)
    count = channels // groups * size
    mean, rstd = tl.load(mean_ptr + tl.program_id(0)), tl.load(rstd_ptr + tl.program_id(0))
    w = tl.load(w_ptr + channel, mask=there, other=0.0)
    g = tl.load(g_ptr + at, mask=inside, other=0.0)
    hat = tl.where(inside, (tl.load(a_ptr + at, mask=inside, other=0.0) - mean) * rstd, 0.0)
    of_weight, of_bias = tl.sum(g * hat, 1), tl.sum(g, 1)
    along, level = tl.sum(of_weight * w, 0) / count, tl.sum(of_bias * w, 0) / count
    tl.store(y_ptr + at, (g * w[:, None] - hat * along - level) * rstd, mask=inside)
    into = sums_ptr + tl.program_id(0) // groups * 2 * channels + channel
    tl.store(into, of_weight, mask=there)
    tl.store(into + channels, of_bias, mask=there)


@triton.jit(do_not_specialize=["images"])
def batch_sum_kernel(sums_ptr, y_ptr, images, columns: tl.constexpr, most: tl.constexpr, wide: tl.constexpr):
    """The sums over images, of which there are at most `most`."""
    image = tl.arange(0, most)
    at = tl.program_id(0) * wide + tl.arange(0, wide)
    inside = (image < images)[:, None] & (at < columns)[None, :]
    found = tl.sum(tl.load(sums_ptr + image[:, None] * columns + at[None, :], mask=inside, other=0.0), 0)
    tl.store(y_ptr + at, found, mask=at < columns)


def is_fused(kind: Kind) -> bool:
    """Whether there is a kernel for a group norm, or its gradient, of this kind."""
    of, groups = kind.outs[0], kind.settings["groups"]
    tensors = [s for s in kind.ins if type(s) is Spec]
    has_bias = kind.settings["bias"] if "bias" in kind.settings else len(tensors) == 1 + PARTS
    if not has_bias or of.ndim < 2 or of.numel < LEAST or any(s.dtype is not float32 for s in tensors):
        return False
    return of.shape[0] <= BATCH and _tile(of.shape, groups)[0] * _tile(of.shape, groups)[1] <= GROUP


def _tile(shape: tuple[int, ...], groups: int) -> tuple[int, int]:
    """Channels of a group and elements of a channel, rounded up to powers of two."""
    return triton.next_power_of_2(shape[1] // groups), triton.next_power_of_2(math.prod(shape[2:]))


def _given(a: Array, groups: int) -> tuple[Any, ...]:
    """The kernels' sizes, and the tile with its warps."""
    tile = _tile(tuple(a.shape), groups)
    return a.shape[1], math.prod(a.shape[2:]), groups, tile, min(16, max(4, 4 * tile[0] * tile[1] // FEW))


def group_norm(a: Array, eps: float, w: Array, bias: Array, *, groups: int) -> tuple[Array, ...]:
    a, w, bias = (packed(x) for x in (a, w, bias))
    channels, size, groups, tile, warps = _given(a, groups)
    y, (mean, rstd) = torch.empty_like(a), (a.new_empty((len(a), groups)) for _ in range(2))
    grid = (len(a) * groups,)
    group_norm_kernel[grid](a, w, bias, y, mean, rstd, eps, channels, size, groups, *tile, num_warps=warps)
    return y, mean, rstd


def group_norm_grad(
    g: Array, a: Array, mean: Array, rstd: Array, w: Array, *, groups: int, bias: bool
) -> tuple[Array, ...]:  # fmt: skip
    """The gradients of input, weight and bias in one pass over memory, and one over the sums of the images."""
    g, a, mean, rstd, w = (packed(x) for x in (g, a, mean, rstd, w))
    channels, size, groups, tile, warps = _given(a, groups)
    y, sums, found = torch.empty_like(a), a.new_empty((len(a), PARTS, channels)), a.new_empty((PARTS, channels))
    grid, columns = (len(a) * groups,), PARTS * channels
    group_norm_grad_kernel[grid](g, a, mean, rstd, w, y, sums, channels, size, groups, *tile, num_warps=warps)
    batch_sum_kernel[(triton.cdiv(columns, COLUMNS),)](sums, found, len(a), columns, BATCH, COLUMNS, num_warps=4)
    return y, found[0], found[1]


KERNELS: dict[str, Callable[..., tuple[Array, ...]]] = {"group_norm": group_norm, "group_norm_grad": group_norm_grad}


class GroupNormKernel:
    """The kernel of a kind. `is_ready` when it is compiled, `is_done` also when its compilation failed."""

    is_ready = is_done = False

    def __init__(self, kind: Kind) -> None:
        self.kind, self.run = kind, partial(KERNELS[kind.row.name], **kind.settings)

    def compile(self, at: torch.device) -> None:
        """Compile it and load it onto the device, for one image of zeros."""
        images = self.kind.outs[0].shape[0]
        shapes = [
            (1, *s.shape[1:]) if s.ndim > 1 and s.shape[0] == images else s.shape for s in self.kind.ins if type(s) is Spec
        ]
        tensors = iter([torch.zeros(shape, device=at) for shape in shapes])
        self.run(*[next(tensors) if type(s) is Spec else EPS for s in self.kind.ins])

    def __call__(self, *operands: Any) -> tuple[Array, ...]:
        return self.run(*operands)


def kernel(kind: Kind, ask: Callable[[Any, Callable[[], Any]], Any]) -> Any:
    """The kernel that graphs have for a kind, compiled or not; None of other kinds."""
    if kind.row.name not in KERNELS or not is_fused(kind):
        return None
    key = kind.row.name, kind.outs[0].shape[1:], kind.statics
    return ask(key, lambda: GroupNormKernel(kind))
