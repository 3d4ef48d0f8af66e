"""The Triton kernels of a decode step. Under TRITON_INTERPRET=1 the same source runs on the CPU, where tests run it.

Sums are float32. A row at position -1 is empty: nothing is written to the cache for it.
"""

import triton
import triton.language as tl


@triton.jit
def embed_kernel(tokens, table, out, width, table_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(tokens + row).to(tl.int64)
    tl.store(out + row * width + i, tl.load(table + token * table_stride + i, mask=i < width), mask=i < width)


@triton.jit
def norm_kernel(x, weight, out, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * width + i, mask=i < width, other=0.0).to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(v * v, 0) / width + eps)
    scale = tl.load(weight + i, mask=i < width, other=0.0)
    tl.store(out + row * width + i, v * factor * scale, mask=i < width)


@triton.jit
def gate_kernel(x, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(x + row * 2 * width + i, mask=i < width, other=0.0).to(tl.float32)
    up = tl.load(x + row * 2 * width + width + i, mask=i < width, other=0.0).to(tl.float32)
    tl.store(out + row * width + i, gate / (1.0 + tl.exp(-gate)) * up, mask=i < width)


@triton.jit
def weight_tile(w, n, k, stride, rows, width):
    mask = (n[:, None] < rows) & (k[None, :] < width)
    return tl.load(w + n[:, None].to(tl.int64) * stride + k[None, :], mask=mask, other=0.0)


@triton.jit
def product_kernel(
    x, norm, w, w_up, bias, bias_up, residual, out, rows, wide, width, w_stride, eps,
    NORM: tl.constexpr, SILU: tl.constexpr, BIAS: tl.constexpr, RESIDUAL: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A tile (BM rows, BN of `wide` outputs) of silu_mul(rmsnorm(x) @ w.T + bias) + residual.

    With SILU, w holds the rows of gate and w_up those of up. One row is summed by vectors, more by tl.dot.
    """
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    within = m < rows
    squares = tl.zeros((BM,), tl.float32)
    if NORM:
        for start in range(0, width, BK):
            k = start + tl.arange(0, BK)
            v = tl.load(x + m[:, None] * width + k[None, :], mask=within[:, None] & (k[None, :] < width), other=0.0)
            squares += tl.sum(v.to(tl.float32) * v.to(tl.float32), 1)
    factor = 1.0 / tl.sqrt(squares / width + eps)
    if BM == 1:
        sums = tl.zeros((BN, BK), tl.float32)
        up_sums = tl.zeros((BN, BK), tl.float32)
    else:
        sums = tl.zeros((BM, BN), tl.float32)
        up_sums = tl.zeros((BM, BN), tl.float32)
    for start in range(0, width, BK):
        k = start + tl.arange(0, BK)
        v = tl.load(x + m[:, None] * width + k[None, :], mask=within[:, None] & (k[None, :] < width), other=0.0)
        v = v.to(tl.float32)
        if NORM:
            v = v * factor[:, None] * tl.load(norm + k, mask=k < width, other=0.0)[None, :]
        gates = weight_tile(w, n, k, w_stride, wide, width)
        if BM == 1:
            sums += gates.to(tl.float32) * v
        else:
            sums = tl.dot(v.to(w.dtype.element_ty), tl.trans(gates), sums, input_precision="ieee")
        if SILU:
            ups = weight_tile(w_up, n, k, w_stride, wide, width)
            if BM == 1:
                up_sums += ups.to(tl.float32) * v
            else:
                up_sums = tl.dot(v.to(w.dtype.element_ty), tl.trans(ups), up_sums, input_precision="ieee")
    if BM == 1:
        y = tl.sum(sums, 1)[None, :]
        up = tl.sum(up_sums, 1)[None, :]
    else:
        y = sums
        up = up_sums
    if BIAS:
        y += tl.load(bias + n, mask=n < wide, other=0.0)[None, :]
        if SILU:
            up += tl.load(bias_up + n, mask=n < wide, other=0.0)[None, :]
    if SILU:
        y = y / (1.0 + tl.exp(-y)) * up
    at = m[:, None] * wide + n[None, :]
    mask = within[:, None] & (n[None, :] < wide)
    if RESIDUAL:
        y += tl.load(residual + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + at, y, mask=mask)


@triton.jit
def cache_index(tables, slot, t, mask, table_width, page_size):
    """The number of token t of a request among all tokens that the pages hold."""
    page = tl.load(tables + slot * table_width + t // page_size, mask=mask, other=0)
    return page.to(tl.int64) * page_size + t % page_size


@triton.jit
def rotate_kernel(
    qkv, q_norm, k_norm, cos, sin, positions, slots, tables, keys, values, table_width, page_size, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, NORM_Q: tl.constexpr, NORM_K: tl.constexpr,
    ROTARY: tl.constexpr, BLOCK: tl.constexpr, HEAD_BLOCK: tl.constexpr,
):  # fmt: skip
    """Norm and rotate heads of q and k; q is written in place, k and v to their page."""
    row = tl.program_id(0)
    position = tl.load(positions + row)
    if position < 0:
        return
    half: tl.constexpr = (WIDTH + 1) // 2
    head = tl.program_id(1) * HEAD_BLOCK + tl.arange(0, HEAD_BLOCK)[:, None]
    is_q = head < HEADS
    is_k = (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_v = (head >= HEADS + KV_HEADS) & (head < HEADS + 2 * KV_HEADS)
    i = tl.arange(0, BLOCK)[None, :]
    in_left = i < half
    in_right = i < WIDTH - half
    there = head < HEADS + 2 * KV_HEADS
    at = qkv + (row * (HEADS + 2 * KV_HEADS) + head) * WIDTH + i
    left = tl.load(at, mask=there & in_left, other=0.0).to(tl.float32)
    right = tl.load(at + half, mask=there & in_right, other=0.0).to(tl.float32)
    factor = 1.0 / tl.sqrt((tl.sum(left * left, 1) + tl.sum(right * right, 1)) / WIDTH + eps)[:, None]
    if NORM_Q:
        left = tl.where(is_q, left * factor * tl.load(q_norm + i, mask=in_left, other=0.0), left)
        right = tl.where(is_q, right * factor * tl.load(q_norm + half + i, mask=in_right, other=0.0), right)
    if NORM_K:
        left = tl.where(is_k, left * factor * tl.load(k_norm + i, mask=in_left, other=0.0), left)
        right = tl.where(is_k, right * factor * tl.load(k_norm + half + i, mask=in_right, other=0.0), right)
    if ROTARY:
        rotary_row = position
        c = tl.load(cos + rotary_row * half + i, mask=in_left, other=0.0)
        s = tl.load(sin + rotary_row * half + i, mask=in_left, other=0.0)
        turned = tl.where(is_q | is_k, left * c - right * s, left)
        right = tl.where(is_q | is_k, right * c + left * s, right)
        left = turned
    token = cache_index(tables, tl.load(slots + row), position, position >= 0, table_width, page_size)
    key = keys + (token * KV_HEADS + head - HEADS) * WIDTH + i
    value = values + (token * KV_HEADS + head - HEADS - KV_HEADS) * WIDTH + i
    tl.store(at, left, mask=is_q & in_left)
    tl.store(at + half, right, mask=is_q & in_right)
    tl.store(key, left, mask=is_k & in_left)
    tl.store(key + half, right, mask=is_k & in_right)
    tl.store(value, left, mask=is_v & in_left)
    tl.store(value + half, right, mask=is_v & in_right)


@triton.jit
def attention_kernel(
    qkv, keys, values, positions, slots, tables, partial, weights, table_width, page_size, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, SPLITS: tl.constexpr,
    GROUP: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Attention of the query heads of one key-value head over one part of a request's tokens.

    Writes the weighted sum (HEADS, SPLITS, WIDTH), the largest score and the sum of weights; combine_kernel joins the parts.
    """
    row = tl.program_id(0)
    kv = tl.program_id(1)
    split = tl.program_id(2)
    position = tl.load(positions + row)
    if position < 0:
        return
    group: tl.constexpr = HEADS // KV_HEADS
    g = tl.arange(0, GROUP)
    i = tl.arange(0, BLOCK)
    head = kv * group + g
    in_head = g < group
    q_at = qkv + (row * (HEADS + 2 * KV_HEADS) + head[:, None]) * WIDTH + i[None, :]
    q = tl.load(q_at, mask=in_head[:, None] & (i[None, :] < WIDTH), other=0.0).to(tl.float32)
    visible = position + 1
    each = (visible + SPLITS - 1) // SPLITS
    begin = split * each
    end = tl.minimum(begin + each, visible)
    slot = tl.load(slots + row)
    largest = tl.full((GROUP,), float("-inf"), tl.float32)
    total = tl.zeros((GROUP,), tl.float32)
    sums = tl.zeros((GROUP, BLOCK), tl.float32)
    for start in range(begin, end, TOKENS):
        t = start + tl.arange(0, TOKENS)
        token = cache_index(tables, slot, t, t < end, table_width, page_size)
        at = (token[:, None] * KV_HEADS + kv) * WIDTH + i[None, :]
        mask = (t[:, None] < end) & (i[None, :] < WIDTH)
        k = tl.load(keys + at, mask=mask, other=0.0).to(tl.float32)
        v = tl.load(values + at, mask=mask, other=0.0).to(tl.float32)
        scores = tl.sum(q[:, None, :] * k[None, :, :], 2) * scale  # (GROUP, TOKENS)
        scores = tl.where(t[None, :] < end, scores, float("-inf"))
        above = tl.maximum(largest, tl.max(scores, 1))
        likely = tl.exp(scores - above[:, None])
        shrink = tl.exp(largest - above)
        total = total * shrink + tl.sum(likely, 1)
        sums = sums * shrink[:, None] + tl.sum(likely[:, :, None] * v[None, :, :], 1)
        largest = above
    part = (row * HEADS + head) * SPLITS + split
    tl.store(weights + 2 * part, largest, mask=in_head)
    tl.store(weights + 2 * part + 1, total, mask=in_head)
    tl.store(partial + part[:, None] * WIDTH + i[None, :], sums, mask=in_head[:, None] & (i[None, :] < WIDTH))


@triton.jit
def combine_kernel(
    partial, weights, positions, out, HEADS: tl.constexpr, WIDTH: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    if tl.load(positions + row) < 0:
        return
    head = tl.program_id(1) * HEAD_BLOCK + tl.arange(0, HEAD_BLOCK)
    there = head < HEADS
    part = (row * HEADS + head[:, None]) * SPLITS + tl.arange(0, SPLITS)[None, :]
    i = tl.arange(0, BLOCK)
    largest = tl.load(weights + 2 * part, mask=there[:, None], other=0.0)
    share = tl.exp(largest - tl.max(largest, 1)[:, None])
    total = tl.sum(tl.load(weights + 2 * part + 1, mask=there[:, None], other=1.0) * share, 1)
    mask = there[:, None, None] & (i[None, None, :] < WIDTH)
    sums = tl.load(partial + part[:, :, None] * WIDTH + i[None, None, :], mask=mask, other=0.0)
    y = tl.sum(sums * share[:, :, None], 1) / total[:, None]
    tl.store(out + (row * HEADS + head[:, None]) * WIDTH + i[None, :], y, mask=there[:, None] & (i[None, :] < WIDTH))


@triton.jit
def argmax_kernel(logits, best, index, count, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """The largest number of one part of a row, and its index."""
    row = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(logits + row.to(tl.int64) * count + i, mask=i < count, other=float("-inf"))
    at = row * PARTS + tl.program_id(1)
    top = tl.max(v, 0)
    tl.store(best + at, top)
    tl.store(index + at, tl.min(tl.where(v == top, i, count - 1), 0))


@triton.jit
def last_argmax_kernel(best, index, chosen, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(best + row * PARTS + i, mask=i < PARTS, other=float("-inf"))
    numbers = tl.load(index + row * PARTS + i, mask=i < PARTS, other=2147483647)
    tl.store(chosen + row, tl.min(tl.where(v == tl.max(v, 0), numbers, 2147483647), 0))


@triton.jit
def advance_kernel(
    chosen, tokens, positions, counts, limits, made, eos, stop_at_first_end, rows, made_width,
    BLOCK: tl.constexpr, STOPS: tl.constexpr,
):  # fmt: skip
    """Append the chosen tokens; ended rows become empty, and all rows at the first end if requested."""
    r = tl.arange(0, BLOCK)
    position = tl.load(positions + r, mask=r < rows, other=-1)
    active = position >= 0
    token = tl.load(chosen + r, mask=active, other=0)
    count = tl.load(counts + r, mask=active, other=0)
    tl.store(made + r * made_width + count, token, mask=active)
    tl.store(counts + r, count + 1, mask=active)
    stops = tl.load(eos + tl.arange(0, STOPS))
    stopped = tl.max((token[:, None] == stops[None, :]).to(tl.int32), 1) > 0
    length = position + 1
    ended = active & (stopped | (length + 1 >= tl.load(limits + r, mask=active, other=0)))
    halted = (tl.max(ended.to(tl.int32), 0) > 0) & (tl.load(stop_at_first_end) > 0)
    goes_on = active & (ended == 0) & (halted == 0)
    tl.store(tokens + r, token, mask=active)
    tl.store(positions + r, tl.where(goes_on, length, -1), mask=r < rows)
