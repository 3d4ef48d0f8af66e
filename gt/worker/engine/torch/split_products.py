"""Float32 products by tensor cores, for CUDA graphs. Each factor is split into three bfloat16 numbers, which have all of its
bits, and the six larger ones of their nine products are added up. Tensor cores add up few terms of the largest, as they cut off
the bits that they cannot keep: float32 outside of them adds up the rest, so that errors are those of a product in float32. With
TRITON_INTERPRET=1 the same source runs on the CPU."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from gt.worker.engine.torch.packed import packed
from gt.worker.engine.torch.product_sizes import COLUMNS, DEPTH, ROWS, depth_parts, tile_count
from gt.worker.programs.passes.split_factors import PIECES, ProductSizes

Array = torch.Tensor
BLOCK = 1024
GROUP = 8  # rows of tiles that are computed together, as they read the same columns
LARGEST = tl.constexpr(3.3895313892515355e38)  # of bfloat16
INFINITY = tl.constexpr(float("inf"))


@triton.jit
def in_pieces(a):
    """The pieces of each number. One that is not finite has no others."""
    finite = tl.abs(a) < INFINITY
    high = a.to(tl.bfloat16).to(tl.float32)
    high = tl.where(finite, tl.minimum(tl.maximum(high, -LARGEST), LARGEST), a)
    rest = tl.where(finite, a - high, 0.0)
    middle = rest.to(tl.bfloat16)
    return high.to(tl.bfloat16), middle, (rest - middle.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def split_kernel(a_ptr, y_ptr, count, block: tl.constexpr):
    """The pieces of each number, one behind another."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    high, middle, low = in_pieces(tl.load(a_ptr + at, mask=at < count, other=0.0))
    tl.store(y_ptr + at, high, mask=at < count)
    tl.store(y_ptr + count + at, middle, mask=at < count)
    tl.store(y_ptr + 2 * count + at, low, mask=at < count)


@triton.jit
def tile_place(rows, columns, tile_rows: tl.constexpr, tile_columns: tl.constexpr, group: tl.constexpr):
    """The first row and column of a program's tile."""
    down, across = tl.cdiv(rows, tile_rows), tl.cdiv(columns, tile_columns)
    first = tl.program_id(0) // (group * across) * group
    high = min(down - first, group)
    within = tl.program_id(0) % (group * across)
    return (first + within % high) * tile_rows, within // high * tile_columns


@triton.jit
def tiles(a, at, k, size, depth, depth_last: tl.constexpr):
    """The tiles of all pieces at a place of a factor, which has `size` rows or columns, with the depth last."""
    if depth_last:
        return a.load([at, k]), a.load([size + at, k]), a.load([2 * size + at, k])
    else:
        return a.load([k, at]).T, a.load([depth + k, at]).T, a.load([2 * depth + k, at]).T


@triton.jit
def product_kernel(
    a, b, bias_ptr, y_ptr, rows, columns, depth, part, turned_a: tl.constexpr, turned_b: tl.constexpr, tile_rows: tl.constexpr,
    tile_columns: tl.constexpr, tile_depth: tl.constexpr, group: tl.constexpr, adds: tl.constexpr,
):  # fmt: skip
    """A tile of the sum over `part` of the depth; with `adds` plus a row. A factor that is not finite makes the products of
    smaller pieces infinite or NaN: that of the larger ones has the right result."""
    row, column = tile_place(rows, columns, tile_rows, tile_columns, group)
    total = tl.zeros((tile_rows, tile_columns), tl.float32)
    s0 = tl.zeros((tile_rows, tile_columns), tl.float32)  # a sum for each product: a dot waits for another one that it adds to
    s1 = tl.zeros((tile_rows, tile_columns), tl.float32)
    s2 = tl.zeros((tile_rows, tile_columns), tl.float32)
    s3 = tl.zeros((tile_rows, tile_columns), tl.float32)
    s4 = tl.zeros((tile_rows, tile_columns), tl.float32)
    begin = tl.program_id(1) * part
    for k in range(begin, begin + part, tile_depth):
        a0, a1, a2 = tiles(a, row, k, rows, depth, not turned_a)
        b0, b1, b2 = tiles(b, column, k, columns, depth, turned_b)
        large = tl.dot(a0, b0.T)
        s0 = tl.dot(a0, b1.T, s0)
        s1 = tl.dot(a1, b0.T, s1)
        s2 = tl.dot(a1, b1.T, s2)
        s3 = tl.dot(a0, b2.T, s3)
        s4 = tl.dot(a2, b0.T, s4)
        total = total - large  # Triton would leave an addition to the tensor cores
    small = (s2 + s3 + s4) + (s0 + s1)
    y = tl.where(tl.abs(small) < INFINITY, small, 0.0) - total
    row, column = row + tl.arange(0, tile_rows), column + tl.arange(0, tile_columns)
    if adds:
        y += tl.load(bias_ptr + column, mask=column < columns, other=0.0)[None, :]
    y_ptr += tl.program_id(1) * rows * columns
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(y_ptr + row[:, None] * columns + column[None, :], y, mask=inside)


@triton.jit(do_not_specialize=["parts"])
def sum_parts_kernel(parts_ptr, y_ptr, count, parts, block: tl.constexpr):
    """The sum of parts that lie one behind another."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    total = tl.load(parts_ptr + at, mask=at < count, other=0.0)
    for part in range(1, parts):
        total += tl.load(parts_ptr + part * count + at, mask=at < count, other=0.0)
    tl.store(y_ptr + at, total, mask=at < count)


def split(a: Array) -> Array:
    """The pieces of a tensor, in front of its axes."""
    made = torch.empty((PIECES, *a.shape), dtype=torch.bfloat16, device=a.device)
    split_kernel[(triton.cdiv(a.numel(), BLOCK),)](packed(a), made, a.numel(), BLOCK, num_warps=4)
    return made


def _summed(parts: Array) -> Array:
    made = torch.empty_like(parts[0])
    sum_parts_kernel[(triton.cdiv(made.numel(), BLOCK),)](parts, made, made.numel(), len(parts), BLOCK, num_warps=4)
    return made


def _described(pieces: Array, turned: bool, tile: tuple[int, int]) -> Any:
    """Pieces of a factor, as a matrix of which a device loads tiles by itself."""
    return TensorDescriptor.from_tensor(pieces.view(-1, pieces.shape[-1]), list(tile[::-1] if turned else tile))


class ProductKernel:
    """The kernel for factors that are turned or not. `is_ready` when it is compiled, `is_done` also when its compilation
    failed."""

    is_ready = is_done = False

    def __init__(self, turned: tuple[bool, bool], adds: bool) -> None:
        self.turned, self.adds = turned, adds

    def compile(self, at: torch.device) -> None:
        """Compile it and load it onto the device, for a product of zeros."""
        a = split(torch.zeros(DEPTH, DEPTH, device=at))
        sizes = ProductSizes(DEPTH, DEPTH, DEPTH, self.turned, (DEPTH, DEPTH))
        self(a, a, torch.zeros(DEPTH, device=at) if self.adds else None, sizes, 1)
        _summed(torch.zeros(2, DEPTH, DEPTH, device=at))

    def __call__(self, a: Array, b: Array, bias: Array | None, sizes: ProductSizes, parts: int) -> Array:
        rows, columns, depth, turned, _ = sizes
        made = torch.empty((parts, rows, columns), dtype=torch.float32, device=a.device)
        a, b = (_described(x, t, n) for x, t, n in zip((a, b), turned, ((ROWS, DEPTH), (DEPTH, COLUMNS))))
        bias = made if bias is None else packed(bias)
        product_kernel[tile_count(sizes), parts](
            a, b, bias, made, rows, columns, depth, depth // parts, *turned, ROWS, COLUMNS, DEPTH, GROUP, self.adds,
            num_warps=4, num_stages=2,
        )  # fmt: skip
        return made[0] if parts == 1 else _summed(made)


class SplitProduct:
    """A product of split factors of these sizes, by one of the kernels. The bias of one in parts is added behind."""

    def __init__(self, sizes: ProductSizes, adds: bool, ask: Any) -> None:
        self.sizes, self.parts = sizes, depth_parts(sizes)
        self.adds = adds and self.parts == 1
        self.kernel = ask(("product", sizes.turned, self.adds), lambda: ProductKernel(sizes.turned, self.adds))

    def __call__(self, a: Array, b: Array, *bias: Array) -> Array:
        made = self.kernel(a, b, bias[0] if self.adds else None, self.sizes, self.parts)
        return (made + bias[0] if bias and not self.adds else made).view(self.sizes.shape)
