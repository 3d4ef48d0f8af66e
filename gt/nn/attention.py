"""Attention between sequences, and the encoder made of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import full, ones
from gt.client.functions.elementwise import where
from gt.nn import functional as F
from gt.nn import init
from gt.nn.containers import ModuleList
from gt.nn.functional.attention import Heads
from gt.nn.linear import Linear, empty
from gt.nn.module import Module
from gt.nn.norm import Dropout, LayerNorm


class MultiheadAttention(Module):
    """Attention with several heads, with projections of queries, keys and values."""

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
        add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0:
            raise ValueError(f"expected a width and a number of heads of at least 1, got {embed_dim} and {num_heads}")
        if embed_dim % num_heads:  # PyTorch's type
            raise AssertionError(f"a width of {embed_dim} cannot be divided into {num_heads} heads")
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        self.head_dim = embed_dim // num_heads
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self.add_zero_attn = add_zero_attn
        same = self.kdim == embed_dim and self.vdim == embed_dim
        self.in_proj_weight = empty(3 * embed_dim, embed_dim, dtype=dtype) if same else None
        self.q_proj_weight = None if same else empty(embed_dim, embed_dim, dtype=dtype)
        self.k_proj_weight = None if same else empty(embed_dim, self.kdim, dtype=dtype)
        self.v_proj_weight = None if same else empty(embed_dim, self.vdim, dtype=dtype)
        self.in_proj_bias = empty(3 * embed_dim, dtype=dtype) if bias else None
        self.bias_k = empty(1, 1, embed_dim, dtype=dtype) if add_bias_kv else None
        self.bias_v = empty(1, 1, embed_dim, dtype=dtype) if add_bias_kv else None
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for w in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if w is not None:
                init.xavier_uniform_(w)
        if self.out_proj.bias is not None:
            init.zeros_(self.out_proj.bias)
        for b in (self.bias_k, self.bias_v):
            if b is not None:
                init.xavier_normal_(b)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None, need_weights: bool = True,
        attn_mask: Tensor | None = None, average_attn_weights: bool = True, is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """The attention's output, and its weights if requested. Boolean masks exclude positions, others are added to the
        scores."""
        apart = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        heads = Heads(
            self.num_heads, self.in_proj_weight, apart, self.in_proj_bias, self.bias_k, self.bias_v, self.add_zero_attn,
            self.dropout if self.training else 0.0, self.out_proj,
        )  # fmt: skip
        return heads.attend(
            query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal, self.batch_first
        )


class TransformerEncoderLayer(Module):
    """Self-attention, then two linear maps, each with a residual connection and a normalisation."""

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1, activation: str | Callable = F.relu,
        layer_norm_eps: float = 1e-5, batch_first: bool = False, norm_first: bool = False, bias: bool = True,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.self_attn = MultiheadAttention(d_model, nhead, dropout=dropout, bias=bias, batch_first=batch_first, dtype=dtype)
        self.linear1 = Linear(d_model, dim_feedforward, bias=bias, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias=bias, dtype=dtype)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, dtype=dtype)
        self.norm2 = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, dtype=dtype)
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)
        if isinstance(activation, str):
            if activation not in ("relu", "gelu"):
                raise ValueError(f"no activation {activation!r}: known are relu, gelu, or give a function")
            activation = F.relu if activation == "relu" else F.gelu
        self.activation = activation

    def forward(
        self, src: Tensor, src_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        x = src
        if self.norm_first:
            x = x + self._attended(self.norm1(x), src_mask, src_key_padding_mask, is_causal)
            return x + self._mapped(self.norm2(x))
        x = self.norm1(x + self._attended(x, src_mask, src_key_padding_mask, is_causal))
        return self.norm2(x + self._mapped(x))

    def _attended(self, x: Tensor, mask: Tensor | None, padding: Tensor | None, causal: bool) -> Tensor:
        y, _ = self.self_attn(
            x, x, x, key_padding_mask=padding, need_weights=False, attn_mask=mask, is_causal=causal and mask is not None
        )
        return self.dropout1(y)

    def _mapped(self, x: Tensor) -> Tensor:
        return self.dropout2(self.linear2(self.dropout(self.activation(self.linear1(x)))))


class TransformerEncoder(Module):
    """A stack of copies of an encoder layer."""

    def __init__(
        self, encoder_layer: TransformerEncoderLayer, num_layers: int, norm: Module | None = None,
        enable_nested_tensor: bool = True, mask_check: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(encoder_layer) for _ in range(num_layers)])
        self.num_layers, self.norm = num_layers, norm

    def forward(
        self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None, is_causal: bool | None = None
    ) -> Tensor:
        x = src
        for layer in self.layers:
            x = layer(x, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=bool(is_causal))
        return x if self.norm is None else self.norm(x)


def generate_square_subsequent_mask(size: int, dtype: Any = None) -> Tensor:
    """The additive causal mask, which hides later positions."""
    hidden = ones(size, size, dtype=dtype).triu(1)
    return where(hidden > 0, full((), float("-inf"), dtype=hidden.dtype), full((), 0.0, dtype=hidden.dtype))


class SDPBackend(Enum):
    """PyTorch's implementations of attention; here a worker chooses its own."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


@contextmanager
def sdpa_kernel(backends: Any, set_priority: bool = False) -> Iterator[None]:
    """Without effect: a worker chooses how it computes attention."""
    yield
