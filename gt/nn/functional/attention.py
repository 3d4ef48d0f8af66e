"""Attention: one instruction if the scores are not needed, else its steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.create import full, ones, zeros
from gt.client.functions.elementwise import where
from gt.client.functions.join import cat
from gt.client.functions.movement import pad
from gt.client.functions.products import linear
from gt.client.saved import note_saved
from gt.errors import ArgumentError
from gt.nn.functional.activations import softmax
from gt.nn.functional.basic import dropout
from gt.ops.table import TABLE
from gt.spec import bool_


def _repeated(t: Tensor, heads: int) -> Tensor:
    """Heads repeated up to this number."""
    have = t.shape[-3]
    if have == heads:
        return t
    wide = t.unsqueeze(-3).expand(*t.shape[:-2], heads // have, *t.shape[-2:])
    return wide.reshape(*t.shape[:-3], heads, *t.shape[-2:])


def weighted(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Masked scores: a boolean mask selects positions, another one is added."""
    if mask is None:
        return scores
    return where(mask, scores, float("-inf")) if mask.dtype is bool_ else scores + mask


def _same_batch(query: Tensor, key: Tensor, value: Tensor, gqa: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The leading axes broadcast against one another, as in PyTorch; keys may have fewer heads."""
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

    With `is_causal` a query attends to no later key. With `enable_gqa` keys and values may have fewer heads than queries
    (axis -3).
    """
    if is_causal and attn_mask is not None:
        raise ArgumentError("scaled_dot_product_attention takes a mask or is_causal=True, not both")
    if not enable_gqa and query.ndim > 2 and query.shape[-3] != key.shape[-3] and 1 not in (query.shape[-3], key.shape[-3]):
        raise ArgumentError(f"queries of {query.shape} and keys of {key.shape} differ in heads: expected enable_gqa=True")
    by = 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    query, key, value = _same_batch(query, key, value, enable_gqa)
    if not dropout_p and (attn_mask is None or not attn_mask.requires_grad):
        operands = (query, key, value, by) if attn_mask is None else (query, key, value, by, attn_mask)
        y = apply(TABLE["attention"], operands, (bool(is_causal),))[0]
        if query.ndim != 4:  # PyTorch composes it from scaled copies of queries and keys
            return note_saved(y, value)
        return note_saved(y, query, key, value, y, None if attn_mask is None or attn_mask.dtype is bool_ else attn_mask)
    query, key = query.clone(), key.clone()  # scaled copies, as above
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
    """`nn.MultiheadAttention` with the weights as arguments: (length, batch, width) or (length, width)."""
    if query.shape[-1] != embed_dim_to_check:
        raise ArgumentError(f"expected queries of width {embed_dim_to_check}, got {query.shape}")
    if static_k is not None or static_v is not None:
        raise NotImplementedError("multi_head_attention_forward with static_k or static_v: give them as key and value")
    together = None if use_separate_proj_weight else in_proj_weight
    apart = (q_proj_weight, k_proj_weight, v_proj_weight)
    heads = Heads(
        num_heads, together, apart, in_proj_bias, bias_k, bias_v, add_zero_attn, dropout_p if training else 0.0,
        lambda y: linear(y, out_proj_weight, out_proj_bias),
    )  # fmt: skip
    return heads.attend(query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)


def added(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """An additive mask: True in a boolean mask, which here excludes a position, becomes -inf."""
    if mask is None or mask.dtype is not bool_:
        return mask
    return where(mask, full((), float("-inf"), dtype=like.dtype), full((), 0.0, dtype=like.dtype))


class Heads(NamedTuple):
    """Attention with several heads, by these weights. The projections of queries, keys and values are one matrix, or three."""

    number: int
    in_weight: Tensor | None
    in_weights: tuple[Tensor | None, Tensor | None, Tensor | None]
    in_bias: Tensor | None
    bias_k: Tensor | None
    bias_v: Tensor | None
    add_zero_attn: bool
    dropout: float
    out: Callable[[Tensor], Tensor]

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None, need_weights: bool,
        attn_mask: Tensor | None, average_attn_weights: bool, is_causal: bool, batch_first: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """The attention's output, and its weights if requested. Boolean masks exclude positions, others are added to the
        scores."""
        single = query.ndim == 2
        if is_causal and attn_mask is None:
            raise ValueError("is_causal=True is a hint about attn_mask: give both")
        if single:
            query, key, value = (t.unsqueeze(0) for t in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        q, k, v = self._project(query, key, value)  # (batch, heads, length, width of a head)
        mask = self._mask(q, k, attn_mask, key_padding_mask)
        causal = is_causal and key_padding_mask is None and not need_weights
        y, weights = self._weigh(q, k, v, None if causal else mask, need_weights, causal)
        y = self.out(y.transpose(1, 2).reshape(y.shape[0], -1, query.shape[-1]))
        if weights is not None and average_attn_weights:
            weights = weights.mean(axis=1)
        if single:
            return y.squeeze(0), None if weights is None else weights.squeeze(0)
        return y if batch_first else y.transpose(0, 1), weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        e = query.shape[-1]
        if self.in_weight is not None and query is key is value:
            q, k, v = linear(query, self.in_weight, self.in_bias).chunk(3, -1)
        else:
            weights = self.in_weights if self.in_weight is None else self.in_weight.chunk(3, 0)
            biases = (None,) * 3 if self.in_bias is None else tuple(self.in_bias[i * e : (i + 1) * e] for i in range(3))
            q, k, v = (linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases))
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (cat([t, b.expand(t.shape[0], 1, e)], axis=1) for t, b in ((k, self.bias_k), (v, self.bias_v)))
        if self.add_zero_attn:
            k, v = (cat([t, zeros(t.shape[0], 1, e, dtype=t.dtype)], axis=1) for t in (k, v))
        q, k, v = (t.reshape(t.shape[0], t.shape[1], self.number, e // self.number).transpose(1, 2) for t in (q, k, v))
        return q, k, v

    def _mask(self, q: Tensor, k: Tensor, attn_mask: Tensor | None, padding: Tensor | None) -> Tensor | None:
        """One additive mask for the scores (batch, heads, queries, keys); appended keys are never masked."""
        extra = (self.bias_k is not None) + self.add_zero_attn
        mask, hidden = added(attn_mask, q), added(padding, q)
        if mask is not None:
            if mask.ndim == 3:
                mask = mask.reshape(q.shape[0], self.number, *mask.shape[1:])
            mask = pad(mask, (0, extra)) if extra else mask
        if hidden is not None:
            hidden = pad(hidden, (0, extra)) if extra else hidden
            hidden = hidden.reshape(q.shape[0], 1, 1, k.shape[-2])
            mask = hidden if mask is None else mask + hidden
        return mask

    def _weigh(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, need_weights: bool, causal: bool
    ) -> tuple[Tensor, Tensor | None]:
        if not need_weights:
            return scaled_dot_product_attention(q, k, v, mask, self.dropout, causal), None
        scores = q * (1.0 / math.sqrt(q.shape[-1])) @ k.mT
        weights = dropout(softmax(scores if mask is None else scores + mask, -1), self.dropout)
        return weights @ v, weights
