"""Triton kernels of CUDA graphs for attention in float32 and its gradient, by tensor cores, from three bfloat16 pieces of each
factor (split_products.py). One launch splits the operands, another one multiplies. Neither adds atomically, so that they give
the same bits each time. With TRITON_INTERPRET=1 the same source runs on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from gt.ops import Kind
from gt.spec import Spec, float32
from gt.worker.engine.torch.packed import is_aligned, packed
from gt.worker.engine.torch.split_products import in_pieces
from gt.worker.programs.passes.split_factors import PIECES

Array = torch.Tensor
AXES = 4  # batch, heads, tokens, width of a head
WIDTHS = (16, 32, 64)  # of heads: for 128 PyTorch's kernels take no longer
LEAST = 1 << 20  # scores: PyTorch's kernels for fewer take no longer
MOST = 1 << 27  # elements: pieces take one and a half times the memory of their tensor
STEP = 16  # elements: strides of all tensors that kernels take are multiples of it
SPLIT_ROWS, SPLIT_WARPS = 32, 4
TILE_ROWS, TILE_KEYS, WARPS, STAGES = 64, 32, 4, 3
GRAD_TILE, GRAD_LOOP, GRAD_WARPS, GRAD_STAGES = 64, 64, 4, 1

PIECE = tl.constexpr(tl.bfloat16)
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
INFINITY = tl.constexpr(float("inf"))
UNIT = tl.constexpr(STEP)  # in which strides are given
SIZES = ["scale", "heads", "rows", "keys", "q_batch", "q_head", "q_row", "k_batch", "k_head", "k_row"]


@triton.jit
def tile(ptr, row, rows, step, wide: tl.constexpr):
    """Rows of a head, zeros behind the last."""
    return tl.load(ptr + row[:, None] * step + tl.arange(0, wide)[None, :], mask=(row < rows)[:, None], other=0.0)


@triton.jit
def store(ptr, row, rows, step, found, wide: tl.constexpr):
    tl.store(ptr + row[:, None] * step + tl.arange(0, wide)[None, :], found, mask=(row < rows)[:, None])


@triton.jit
def pieces(ptr, head, row, rows, all_heads, wide: tl.constexpr):
    """The pieces of rows of a head."""
    ptr += head * rows * wide
    step = all_heads * rows * wide  # from one piece to the next
    return (
        tile(ptr, row, rows, wide, wide),
        tile(ptr + step, row, rows, wide, wide),
        tile(ptr + 2 * step, row, rows, wide, wide),
    )


@triton.jit
def split(ptr, head, row, rows, all_heads, found, wide: tl.constexpr):
    """Write the pieces of rows of a head."""
    high, middle, low = in_pieces(found)
    ptr += head * rows * wide
    step = all_heads * rows * wide
    store(ptr, row, rows, wide, high, wide)
    store(ptr + step, row, rows, wide, middle, wide)
    store(ptr + 2 * step, row, rows, wide, low, wide)


@triton.jit
def is_seen(row, key, keys, causal: tl.constexpr):
    """Which keys a query attends to: all there are or, if it is causal, all up to its own place."""
    inside = (key < keys)[None, :]
    if causal:
        inside = inside & (row[:, None] >= key[None, :])
    return inside


@triton.jit
def dot(a, b, total):
    return tl.dot(a.to(PIECE), b.to(PIECE), total)


@triton.jit
def finite(small):
    """Zeros for products of smaller pieces that are infinite or NaN, as a factor is: the larger ones have the right result."""
    return tl.where(tl.abs(small) < INFINITY, small, 0.0)


@triton.jit
def product(a, b, zeros):
    """The product of pieces, with the second factor's transposed."""
    small = dot(a[2], b[0].T, zeros)
    small = dot(a[0], b[2].T, small)
    small = dot(a[1], b[1].T, small)
    small = dot(a[1], b[0].T, small)
    small = dot(a[0], b[1].T, small)
    return dot(a[0], b[0].T, finite(small))


@triton.jit
def minus_product(total, a, b):
    """`total` less the product of a tile by pieces, into which the tile is split here. Tensor cores would cut off bits of a sum
    of many tiles, and Triton leaves an addition to them."""
    high = a.to(PIECE)
    rest = a - high.to(tl.float32)
    middle = rest.to(PIECE)
    low = (rest - middle.to(tl.float32)).to(PIECE)
    small = dot(low, b[0], tl.zeros_like(total))
    small = dot(high, b[2], small)
    small = dot(middle, b[1], small)
    small = dot(middle, b[0], small)
    small = dot(high, b[1], small)
    return total - dot(high, b[0], finite(small))


@triton.jit(do_not_specialize=SIZES)
def split_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, y_ptr, q_pieces, k_pieces, v_pieces, g_pieces, delta_ptr, heads, rows, keys, q_batch, q_head,
    q_row, k_batch, k_head, k_row, wide: tl.constexpr, tile_rows: tl.constexpr,
):  # fmt: skip
    """The pieces of queries, keys and values, and of the gradient with the sums of its products by the results. Pieces lie as
    (piece, batch, heads, tokens, width), gradient and results as (batch, tokens, heads, width)."""
    head, all_heads = tl.program_id(1), tl.num_programs(1)
    batch, in_batch = head // heads, head % heads
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    if tl.program_id(2) == 0:
        q = tile(q_ptr + (batch * q_batch + in_batch * q_head) * UNIT, row, rows, q_row * UNIT, wide)
        split(q_pieces, head, row, rows, all_heads, q, wide)
    elif tl.program_id(2) == 1:
        k = tile(k_ptr + (batch * k_batch + in_batch * k_head) * UNIT, row, keys, k_row * UNIT, wide)
        split(k_pieces, head, row, keys, all_heads, k, wide)
    elif tl.program_id(2) == 2:
        v = tile(v_ptr + (batch * k_batch + in_batch * k_head) * UNIT, row, keys, k_row * UNIT, wide)
        split(v_pieces, head, row, keys, all_heads, v, wide)
    else:
        at = (batch * rows * heads + in_batch) * wide
        g = tile(g_ptr + at, row, rows, heads * wide, wide)
        split(g_pieces, head, row, rows, all_heads, g, wide)
        delta = tl.sum(g * tile(y_ptr + at, row, rows, heads * wide, wide), 1)
        tl.store(delta_ptr + head * rows + row, delta, mask=row < rows)


@triton.jit(do_not_specialize=SIZES)
def attention_kernel(
    q_pieces, k_pieces, v_pieces, y_ptr, lse_ptr, scale, heads, rows, keys, causal: tl.constexpr, wide: tl.constexpr,
    tile_rows: tl.constexpr, tile_keys: tl.constexpr,
):  # fmt: skip
    """The results of some queries of a head, as (batch, queries, heads, width)."""
    head, all_heads = tl.program_id(1), tl.num_programs(1)
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * tile_rows  # those with the most keys first
    row = first + tl.arange(0, tile_rows)
    q = pieces(q_pieces, head, row, rows, all_heads, wide)
    top = tl.full((tile_rows,), -INFINITY, tl.float32)
    total = tl.zeros((tile_rows,), tl.float32)
    y = tl.zeros((tile_rows, wide), tl.float32)
    for begin in range(0, tl.minimum(keys, first + tile_rows) if causal else keys, tile_keys):
        key = begin + tl.arange(0, tile_keys)
        k = pieces(k_pieces, head, key, keys, all_heads, wide)
        v = pieces(v_pieces, head, key, keys, all_heads, wide)
        s = product(q, k, tl.zeros((tile_rows, tile_keys), tl.float32)) * (scale * LOG2_E)
        s = tl.where(is_seen(row, key, keys, causal), s, -INFINITY)
        higher = tl.maximum(top, tl.max(s, 1))
        shift = tl.where(higher == -INFINITY, 0.0, higher)  # all scores so far may be -inf
        p = tl.exp2(s - shift[:, None])
        shrunk = tl.exp2(top - shift)
        total = total * shrunk + tl.sum(p, 1)
        y = minus_product(y * shrunk[:, None], p, v)
        top = higher
    empty = total == 0.0  # as the row of attention defines it, a query without weights gives zeros
    y = -y / tl.where(empty, 1.0, total)[:, None]
    store(y_ptr + (head // heads * rows * heads + head % heads) * wide, row, rows, heads * wide, y, wide)
    lse = tl.where(empty, 0.0, (top + tl.log2(total)) * LN_2)
    tl.store(lse_ptr + head * rows + row, lse, mask=row < rows)


@triton.jit
def key_gradients(
    q_pieces, k_pieces, v_pieces, g_pieces, delta_ptr, lse_ptr, gk_ptr, gv_ptr, scale, rows, keys, grad_row, first,
    causal: tl.constexpr, wide: tl.constexpr, tile_keys: tl.constexpr, tile_rows: tl.constexpr,
):  # fmt: skip
    """The gradients of some keys and values of a head."""
    head, all_heads = tl.program_id(1), tl.num_programs(1)
    key = first + tl.arange(0, tile_keys)
    k, v = pieces(k_pieces, head, key, keys, all_heads, wide), pieces(v_pieces, head, key, keys, all_heads, wide)
    gk, gv = tl.zeros((tile_keys, wide), tl.float32), tl.zeros((tile_keys, wide), tl.float32)
    for begin in range(first // tile_rows * tile_rows if causal else 0, rows, tile_rows):
        row = begin + tl.arange(0, tile_rows)
        q, g = pieces(q_pieces, head, row, rows, all_heads, wide), pieces(g_pieces, head, row, rows, all_heads, wide)
        delta = tl.load(delta_ptr + head * rows + row, mask=row < rows, other=0.0)
        lse = tl.load(lse_ptr + head * rows + row, mask=row < rows, other=INFINITY)  # no weight for rows that are not there
        zeros = tl.zeros((tile_keys, tile_rows), tl.float32)
        p = tl.exp2(product(k, q, zeros) * (scale * LOG2_E) - (lse * LOG2_E)[None, :])
        if causal:
            p = tl.where(row[None, :] >= key[:, None], p, 0.0)
        gv = minus_product(gv, p, g)
        gk = minus_product(gk, p * (product(v, g, zeros) - delta[None, :]), q)
    store(gk_ptr, key, keys, grad_row, -gk * scale, wide)
    store(gv_ptr, key, keys, grad_row, -gv, wide)


@triton.jit
def query_gradients(
    q_pieces, k_pieces, v_pieces, g_pieces, delta_ptr, lse_ptr, gq_ptr, scale, rows, keys, grad_row, first,
    causal: tl.constexpr, wide: tl.constexpr, tile_rows: tl.constexpr, tile_keys: tl.constexpr,
):  # fmt: skip
    """The gradients of some queries of a head."""
    head, all_heads = tl.program_id(1), tl.num_programs(1)
    row = first + tl.arange(0, tile_rows)
    q, g = pieces(q_pieces, head, row, rows, all_heads, wide), pieces(g_pieces, head, row, rows, all_heads, wide)
    delta = tl.load(delta_ptr + head * rows + row, mask=row < rows, other=0.0)
    lse = tl.load(lse_ptr + head * rows + row, mask=row < rows, other=INFINITY)
    gq = tl.zeros((tile_rows, wide), tl.float32)
    for begin in range(0, tl.minimum(keys, first + tile_rows) if causal else keys, tile_keys):
        key = begin + tl.arange(0, tile_keys)
        k, v = pieces(k_pieces, head, key, keys, all_heads, wide), pieces(v_pieces, head, key, keys, all_heads, wide)
        zeros = tl.zeros((tile_rows, tile_keys), tl.float32)
        p = tl.exp2(product(q, k, zeros) * (scale * LOG2_E) - (lse * LOG2_E)[:, None])
        p = tl.where(is_seen(row, key, keys, causal), p, 0.0)
        gq = minus_product(gq, p * (product(g, v, zeros) - delta[:, None]), k)
    store(gq_ptr, row, rows, grad_row, -gq * scale, wide)


@triton.jit(do_not_specialize=SIZES)
def attention_grad_kernel(
    q_pieces, k_pieces, v_pieces, g_pieces, delta_ptr, lse_ptr, gq_ptr, gk_ptr, gv_ptr, scale, heads, rows, keys,
    parts: tl.constexpr, causal: tl.constexpr, wide: tl.constexpr, tile_size: tl.constexpr, loop_size: tl.constexpr,
):  # fmt: skip
    """In turn the gradients of some keys and of some queries, those first that take longest, as (batch, tokens, parts, heads,
    width)."""
    batch, in_batch, turn = tl.program_id(1) // heads, tl.program_id(1) % heads, tl.program_id(0) // 2
    grad_row = parts * heads * wide
    if tl.program_id(0) % 2 == 0:
        at = batch * keys * grad_row + in_batch * wide
        if turn * tile_size < keys:
            key_gradients(
                q_pieces, k_pieces, v_pieces, g_pieces, delta_ptr, lse_ptr, gk_ptr + at, gv_ptr + at, scale, rows, keys,
                grad_row, turn * tile_size, causal, wide, tile_size, loop_size,
            )  # fmt: skip
    else:
        first = (tl.cdiv(rows, tile_size) - 1 - turn) * tile_size
        if first >= 0:
            query_gradients(
                q_pieces, k_pieces, v_pieces, g_pieces, delta_ptr, lse_ptr, gq_ptr + batch * rows * grad_row + in_batch * wide,
                scale, rows, keys, grad_row, first, causal, wide, tile_size, loop_size,
            )  # fmt: skip


def attention(q: Array, k: Array, v: Array, scale: float, *, causal: bool) -> tuple[Array, Array]:
    operands, (batch, heads, rows, wide), keys = _split(q, k, v), q.shape, k.shape[2]
    y, lse = q.new_empty((batch, rows, heads, wide)), q.new_empty((batch, heads, rows))
    attention_kernel[triton.cdiv(rows, TILE_ROWS), batch * heads](
        *operands, y, lse, scale, heads, rows, keys, causal, wide, TILE_ROWS, TILE_KEYS, num_warps=WARPS, num_stages=STAGES
    )
    return y.transpose(1, 2), lse


def attention_grad(
    g: Array, q: Array, k: Array, v: Array, y: Array, lse: Array, scale: float, *, causal: bool
) -> tuple[Array, Array, Array]:
    """Gradients of queries, keys and values of one shape lie side by side."""
    operands, (batch, heads, rows, wide), keys = _split(q, k, v, g, y), q.shape, k.shape[2]
    if rows == keys:
        gq, gk, gv = q.new_empty((batch, rows, QKV, heads, wide)).unbind(2)
    else:
        gq, gk, gv = (q.new_empty((batch, n, heads, wide)) for n in (rows, keys, keys))
    attention_grad_kernel[2 * triton.cdiv(max(rows, keys), GRAD_TILE), batch * heads](
        *operands, packed(lse), gq, gk, gv, scale, heads, rows, keys, QKV if rows == keys else 1, causal, wide,
        GRAD_TILE, GRAD_LOOP, num_warps=GRAD_WARPS, num_stages=GRAD_STAGES,
    )  # fmt: skip
    return gq.transpose(1, 2), gk.transpose(1, 2), gv.transpose(1, 2)


def _split(q: Array, k: Array, v: Array, *gradient: Array) -> list[Array]:
    """The pieces of queries, keys and values, and of the gradient and the sums of its products by the results, if they are
    given."""
    q, k, v = (a if _is_regular(a) else a.contiguous() for a in (q, k, v))
    if k.stride() != v.stride():
        k, v = k.contiguous(), v.contiguous()
    (batch, heads, rows, wide), keys = q.shape, k.shape[2]
    made = [torch.empty((PIECES, *a.shape), dtype=torch.bfloat16, device=a.device) for a in (q, k, v, *gradient[:1])]
    delta = q.new_empty((batch, heads, rows)) if gradient else q
    g, y = (packed(a.transpose(1, 2)) for a in gradient) if gradient else (q, q)  # not read without a gradient
    strides = [step // STEP for a in (q, k) for step in a.stride()[:-1]]
    split_kernel[triton.cdiv(max(rows, keys), SPLIT_ROWS), batch * heads, len(made)](
        q, k, v, g, y, *made[:3], made[-1], delta, heads, rows, keys, *strides, wide, SPLIT_ROWS, num_warps=SPLIT_WARPS
    )
    return [*made, delta] if gradient else made


def _is_regular(a: Array) -> bool:
    span = sum((n - 1) * step for n, step in zip(a.shape, a.stride()))
    whole = a.stride(-1) == 1 and all(step % STEP == 0 for step in a.stride()[:-1])
    return whole and span < MOST and is_aligned(a)


QKV = 3  # operands: queries, keys and values


class AttentionOp(NamedTuple):
    """`run` takes so many `operands`, without a mask, with so many before the queries."""

    run: Callable[..., tuple[Array, ...]]
    operands: int
    before: int


OPS = {"attention": AttentionOp(attention, 4, 0), "attention_grad": AttentionOp(attention_grad, 7, 1)}


def is_fused(kind: Kind) -> bool:
    """Whether there is a kernel for attention, or its gradient, of this kind."""
    op = OPS[kind.row.name]
    if len(kind.ins) != op.operands or any(type(s) is Spec and s.dtype is not float32 for s in kind.ins):
        return False
    q, k, v = _specs(kind)
    if q.ndim != AXES or q.shape[:2] != k.shape[:2] or q.shape[-1] != v.shape[-1] or q.shape[-1] not in WIDTHS:
        return False
    return q.numel // q.shape[-1] * k.shape[2] >= LEAST and max(q.numel, k.numel) <= MOST


def _specs(kind: Kind) -> tuple[Spec, Spec, Spec]:
    """Of queries, keys and values."""
    q, k, v = kind.ins[OPS[kind.row.name].before :][:QKV]
    assert isinstance(q, Spec) and isinstance(k, Spec) and isinstance(v, Spec)
    return q, k, v


EXAMPLE = (1, 1, 64)  # batch, heads and tokens, of zeros
SCALE = 1.0


class AttentionKernel:
    """The kernels of attention, or of its gradient, for heads of one width. `is_ready` when they are compiled, `is_done` also
    when their compilation failed."""

    is_ready = is_done = False

    def __init__(self, op: AttentionOp, causal: bool, wide: int, same: bool) -> None:
        self.op, self.causal, self.wide, self.same = op, causal, wide, same

    def compile(self, at: torch.device) -> None:
        """Compile them and load them onto the device, for tokens that are zeros, with as many keys as queries if they are the
        `same`."""
        q = torch.zeros((*EXAMPLE, self.wide), device=at)
        k = q if self.same else torch.zeros((*EXAMPLE[:2], 2 * EXAMPLE[2], self.wide), device=at)
        before, behind = (q,) * self.op.before, (q, q[..., 0].contiguous()) * self.op.before
        self(*before, q, k, k, *behind, SCALE)

    def __call__(self, *operands: Any) -> tuple[Array, ...]:
        return self.op.run(*operands, causal=self.causal)


def kernel(kind: Kind, ask: Callable[[Any, Callable[[], Any]], Any]) -> Any:
    """The kernel that graphs have for a kind, compiled or not; None of other kinds."""
    if kind.row.name not in OPS or not is_fused(kind):
        return None
    q, k, _ = _specs(kind)
    key = OPS[kind.row.name], kind.settings["causal"], q.shape[-1], q.shape[2] == k.shape[2]
    return ask(key, lambda: AttentionKernel(*key))
