"""Attention: one instruction where the scores need not be seen, else what it is made of."""

from __future__ import annotations

import math

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.create import ones
from gt.client.functions.elementwise import where
from gt.client.functions.products import linear
from gt.errors import ArgumentError
from gt.nn.functional.activations import softmax
from gt.nn.functional.basic import dropout
from gt.ops.table import TABLE
from gt.spec import bool_


def _repeated(t: Tensor, heads: int) -> Tensor:
    """Each head as often as it takes to have so many."""
    have = t.shape[-3]
    if have == heads:
        return t
    wide = t.unsqueeze(-3).expand(*t.shape[:-2], heads // have, *t.shape[-2:])
    return wide.reshape(*t.shape[:-3], heads, *t.shape[-2:])


def weighted(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Scores with a mask on them: booleans say where to look, numbers are added."""
    if mask is None:
        return scores
    return where(mask, scores, float("-inf")) if mask.dtype is bool_ else scores + mask


def _same_batch(query: Tensor, key: Tensor, value: Tensor, gqa: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The leading axes broadcast against one another, as PyTorch does; heads of keys may stay fewer."""
    n = 3 if gqa and query.ndim > 2 else 2
    leads = [t.shape[:-n] for t in (query, key, value)]
    if leads[0] == leads[1] == leads[2] and query.ndim == key.ndim == value.ndim:
        return query, key, value
    width = max(map(len, leads))
    lead = tuple(max(sizes) for sizes in zip(*((1,) * (width - len(s)) + s for s in leads)))
    return tuple(t.expand(*lead, *t.shape[-n:]) for t in (query, key, value))


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """`softmax(query @ key.T * scale) @ value` over the last two axes.

    Causal, a query looks at no key behind it. With `enable_gqa` keys and values may have fewer heads than queries (axis -3).
    """
    if is_causal and attn_mask is not None:
        raise ArgumentError("scaled_dot_product_attention takes a mask or is_causal=True, not both")
    if not enable_gqa and query.ndim > 2 and query.shape[-3] != key.shape[-3] and 1 not in (query.shape[-3], key.shape[-3]):
        raise ArgumentError(f"queries of {query.shape} and keys of {key.shape} differ in heads: want enable_gqa=True")
    by = 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    query, key, value = _same_batch(query, key, value, enable_gqa)
    if not dropout_p and (attn_mask is None or not attn_mask.requires_grad):
        operands = (query, key, value, by) if attn_mask is None else (query, key, value, by, attn_mask)
        return apply(TABLE["attention"], operands, (bool(is_causal),))[0]
    if query.ndim > 2:
        key, value = _repeated(key, query.shape[-3]), _repeated(value, query.shape[-3])
    if is_causal:
        attn_mask = apply(TABLE["tril"], (ones(query.shape[-2], key.shape[-2]), 0)) > 0
    weights = softmax(weighted(query @ key.mT * by, attn_mask), -1)
    return dropout(weights, dropout_p) @ value


def multi_head_attention_forward(
    query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int, in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None, bias_k: Tensor | None, bias_v: Tensor | None, add_zero_attn: bool, dropout_p: float,
    out_proj_weight: Tensor, out_proj_bias: Tensor | None, training: bool = True, key_padding_mask: Tensor | None = None,
    need_weights: bool = True, attn_mask: Tensor | None = None, use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None, k_proj_weight: Tensor | None = None, v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None, static_v: Tensor | None = None, average_attn_weights: bool = True, is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """What `nn.MultiheadAttention` does, with the weights as arguments: (length, batch, width) or (length, width)."""
    from gt.nn.attention import MultiheadAttention

    if query.shape[-1] != embed_dim_to_check:
        raise ArgumentError(f"queries of width {embed_dim_to_check} were promised, not {query.shape}")
    if static_k is not None or static_v is not None:
        raise NotImplementedError("multi_head_attention_forward with static_k or static_v: give them as key and value")
    module = MultiheadAttention.__new__(MultiheadAttention)
    module.__dict__.update(
        embed_dim=embed_dim_to_check, num_heads=num_heads, head_dim=embed_dim_to_check // num_heads, dropout=dropout_p,
        batch_first=False, add_zero_attn=add_zero_attn, training=training, in_proj_bias=in_proj_bias, bias_k=bias_k,
        bias_v=bias_v, in_proj_weight=None if use_separate_proj_weight else in_proj_weight, q_proj_weight=q_proj_weight,
        k_proj_weight=k_proj_weight, v_proj_weight=v_proj_weight,
        out_proj=lambda y: linear(y, out_proj_weight, out_proj_bias),
    )  # fmt: skip
    return MultiheadAttention.forward(
        module, query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
    )
