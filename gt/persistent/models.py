"""Qwen3 and Llama in Hugging Face's formats, converted to the layers of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gt.persistent.builder import Builder
from gt.persistent.program import Activation, Weight
from gt.persistent.rotary import rotary_settings, rotary_tables
from gt.persistent.weights import kept_or_float32, read_weights, side_by_side

FAMILIES = ("qwen3", "llama")


@dataclass(frozen=True)
class ModelConfig:
    """The fields of a Hugging Face config that determine the results."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    eps: float
    tied: bool
    qk_norm: bool
    attention_bias: bool
    mlp_bias: bool
    positions: int | None
    eos: tuple[int, ...]
    rotary: Mapping[str, Any]


def token_set(tokens: Any) -> tuple[int, ...]:
    """None, one token id or several, as a tuple."""
    if tokens is None:
        return ()
    return (int(tokens),) if isinstance(tokens, (int, np.integer)) else tuple(int(token) for token in tokens)


def read_config(config: Any) -> ModelConfig:
    """From a dict, as config.json holds it, or a transformers config object."""
    if isinstance(config, ModelConfig):
        return config
    c: Mapping[str, Any] = config if isinstance(config, Mapping) else config.to_dict()
    family = c.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"no model family {family!r}: known are {', '.join(FAMILIES)}; other models are built by layer calls")
    if (activation := c.get("hidden_act", "silu")) != "silu":
        raise ValueError(f"hidden_act {activation!r} is not supported: only 'silu' is")
    if c.get("use_sliding_window") or "sliding_attention" in (c.get("layer_types") or ()):
        raise ValueError("sliding-window attention is not supported: every layer attends to the whole context")
    try:
        heads, hidden = c["num_attention_heads"], c["hidden_size"]
        return ModelConfig(
            hidden=hidden,
            intermediate=c["intermediate_size"],
            layers=c["num_hidden_layers"],
            heads=heads,
            kv_heads=c.get("num_key_value_heads") or heads,
            head_dim=c.get("head_dim") or (128 if family == "qwen3" else hidden // heads),
            vocabulary=c["vocab_size"],
            eps=c.get("rms_norm_eps", 1e-6),
            tied=bool(c.get("tie_word_embeddings", False)),
            qk_norm=family == "qwen3",
            attention_bias=bool(c.get("attention_bias", False)),
            mlp_bias=bool(c.get("mlp_bias", False)),
            positions=c.get("max_position_embeddings"),
            eos=token_set(c.get("eos_token_id")),
            rotary=rotary_settings(c),
        )
    except KeyError as missing:
        raise ValueError(f"the config lacks {missing}") from None


def part_of(config: ModelConfig, ranks: int) -> ModelConfig:
    """The part of one of several ranks: its heads, and its columns of the inner layer."""
    counts: dict[str, Any] = {"heads": config.heads, "kv_heads": config.kv_heads, "intermediate": config.intermediate}
    for name, count in counts.items():
        if count % ranks:
            raise ValueError(f"world_size {ranks} cannot split a model with {count} {name}: expected a multiple of {ranks}")
    return replace(config, **{name: count // ranks for name, count in counts.items()})


class StateDict:
    """The weights of a source, by name; missing, misshapen and unused weights are errors."""

    def __init__(self, source: Any) -> None:
        self.tensors = read_weights(source)
        self.prefix = "" if any(name.startswith("layers.") for name in self.tensors) else "model."

    def take(self, name: str, *shape: int) -> Any:
        full = name if name == "lm_head.weight" else self.prefix + name
        if full not in self.tensors:
            raise ValueError(f"the state dict lacks {full!r}")
        array = kept_or_float32(self.tensors.pop(full))
        if tuple(array.shape) != shape:
            raise ValueError(f"{full!r}: expected shape {shape} by the config, got {tuple(array.shape)}")
        return array

    def finish(self, tied: bool) -> None:
        ignored = {"lm_head.weight"} if tied else set()
        left = [n for n in self.tensors if n not in ignored and not n.endswith("rotary_emb.inv_freq")]
        if left:
            raise ValueError(
                f"the state dict holds {len(left)} weights that the config does not: {', '.join(sorted(left)[:4])}"
            )


class ModelLayers:
    """Adds the layers of one model to a builder. Activations are reused from layer to layer."""

    def __init__(self, builder: Builder, config: ModelConfig, state: StateDict) -> None:
        self.builder, self.state, self.ranks = builder, state, builder.world_size
        self.config = c = part_of(config, self.ranks)
        new = builder.new_tensor
        self.x = new(c.hidden, name="hidden")
        self.normed = new(c.hidden, name="normed")
        self.qkv = new((c.heads + 2 * c.kv_heads) * c.head_dim, name="qkv")
        self.attended = new(c.heads * c.head_dim, name="attended")
        self.gate_up = new(2 * c.intermediate, name="gate_up")
        self.gated = new(c.intermediate, name="gated")

    def build(self, positions: int) -> None:
        b, c = self.builder, self.config
        embedding = self.state.take("embed_tokens.weight", c.vocabulary, c.hidden)
        table = self._weight(embedding, "embed_tokens")
        cos, sin = rotary_tables(c.rotary, c.head_dim, positions)
        self.cos, self.sin = self._weight(cos, "cos"), self._weight(sin, "sin")
        tokens = b.attach_input(name="tokens")
        b.embed_layer(input=tokens, weight=table, output=self.x)  # type: ignore[arg-type]
        for number in range(c.layers):
            self._attention(f"layers.{number}")
            self._mlp(f"layers.{number}")
        self._norm("norm")
        head = table if c.tied else self._weight(self.state.take("lm_head.weight", c.vocabulary, c.hidden), "lm_head")
        logits = b.linear_layer(input=self.normed, weight=head, output=b.new_tensor(c.vocabulary, name="logits"))
        self.state.finish(c.tied)
        b.argmax_layer(input=logits)

    def _attention(self, name: str) -> None:
        b, c = self.builder, self.config
        self._norm(f"{name}.input_layernorm")
        sizes = {"q_proj": c.heads * c.head_dim, "k_proj": c.kv_heads * c.head_dim, "v_proj": c.kv_heads * c.head_dim}
        weight, bias = self._side_by_side(f"{name}.self_attn", sizes, c.hidden, c.attention_bias)
        b.linear_layer(input=self.normed, weight=weight, bias=bias, output=self.qkv)
        q_norm = k_norm = None
        if c.qk_norm:
            q_norm = self._weight(self.state.take(f"{name}.self_attn.q_norm.weight", c.head_dim), f"{name}.q_norm")
            k_norm = self._weight(self.state.take(f"{name}.self_attn.k_norm.weight", c.head_dim), f"{name}.k_norm")
        b.paged_attention_layer(
            input=self.qkv, output=self.attended, num_heads=c.heads, num_kv_heads=c.kv_heads, head_dim=c.head_dim,
            q_norm=q_norm, k_norm=k_norm, eps=c.eps, cos_pos_embed=self.cos, sin_pos_embed=self.sin,
        )  # fmt: skip
        self._add(f"{name}.self_attn.o_proj", self.attended, c.attention_bias)

    def _mlp(self, name: str) -> None:
        b, c = self.builder, self.config
        self._norm(f"{name}.post_attention_layernorm")
        sizes = {"gate_proj": c.intermediate, "up_proj": c.intermediate}
        weight, bias = self._side_by_side(f"{name}.mlp", sizes, c.hidden, c.mlp_bias)
        b.linear_layer(input=self.normed, weight=weight, bias=bias, output=self.gate_up)
        b.silu_mul_layer(input=self.gate_up, output=self.gated)
        self._add(f"{name}.mlp.down_proj", self.gated, c.mlp_bias)

    def _norm(self, name: str) -> None:
        weight = self._weight(self.state.take(f"{name}.weight", self.config.hidden), name)
        self.builder.rmsnorm_layer(input=self.x, weight=weight, output=self.normed, eps=self.config.eps)

    def _add(self, name: str, input: Activation, biased: bool) -> None:
        """Add a product to the residual. Each rank has columns of its weight; the first adds residual and bias too."""
        b, hidden = self.builder, self.config.hidden
        columns = self.state.take(f"{name}.weight", hidden, input.width * self.ranks)
        weight = self._weight(self._own(columns, axis=1), name)
        bias = self._weight(self.state.take(f"{name}.bias", hidden), f"{name}.bias") if biased else None
        if b.mpi_rank == 0:
            b.linear_with_residual_layer(input=input, weight=weight, bias=bias, residual=self.x, output=self.x)
        else:
            b.linear_layer(input=input, weight=weight, output=self.x)
        if self.ranks > 1:
            b.allreduce_layer(input=self.x, output=self.x)

    def _own(self, array: Any, axis: int = 0) -> Any:
        """This rank's part of the rows or columns of a weight."""
        if self.ranks == 1:
            return array
        size = array.shape[axis] // self.ranks
        own = slice(self.builder.mpi_rank * size, (self.builder.mpi_rank + 1) * size)
        return array[own] if axis == 0 else array[:, own]

    def _side_by_side(self, name: str, sizes: dict[str, int], width: int, biased: bool) -> tuple[Weight, Weight | None]:
        """Several projections of one input as one weight, so that one product computes them all."""
        arrays = [self._own(self.state.take(f"{name}.{part}.weight", rows * self.ranks, width)) for part, rows in sizes.items()]
        weight, bias = self._weight(side_by_side(arrays), name), None
        if biased:
            biases = [self._own(self.state.take(f"{name}.{part}.bias", rows * self.ranks)) for part, rows in sizes.items()]
            bias = self._weight(side_by_side(biases), f"{name}.bias")
        return weight, bias

    def _weight(self, array: Any, name: str) -> Weight:
        attached = self.builder.attach_input(array, name=name)
        assert isinstance(attached, Weight)
        return attached
