"""The layers of a decoder as data: its tensors, and the inputs and outputs of each layer. Executors run them.

An activation has a row for every token of a batch, so only its width is known here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Weight(NamedTuple):
    number: int
    name: str
    shape: tuple[int, ...]


class Activation(NamedTuple):
    number: int
    name: str
    width: int


class TokenInput(NamedTuple):
    """The token ids of the batch."""

    name: str


@dataclass(frozen=True)
class Embed:
    weight: Weight  # (vocabulary, width)
    output: Activation


@dataclass(frozen=True)
class RMSNorm:
    input: Activation
    weight: Weight  # (width,)
    output: Activation
    eps: float


@dataclass(frozen=True)
class Linear:
    input: Activation
    weight: Weight  # (output width, input width)
    bias: Weight | None
    residual: Activation | None
    output: Activation


@dataclass(frozen=True)
class Attention:
    """Norms of q and k, rotary embedding, append to the pages of `layer`, then attention over all tokens so far."""

    input: Activation  # q, k and v concatenated
    output: Activation
    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    q_norm: Weight | None
    k_norm: Weight | None
    eps: float
    cos: Weight | None  # (positions, head_dim / 2)
    sin: Weight | None


@dataclass(frozen=True)
class SiluMul:
    input: Activation  # gate and up concatenated
    output: Activation


@dataclass(frozen=True)
class AllReduce:
    input: Activation
    output: Activation


Layer = Embed | RMSNorm | Linear | Attention | SiluMul | AllReduce


@dataclass
class DecodeProgram:
    """Layers in the order they run. `logits` is the activation that tokens are chosen from."""

    layers: list[Layer] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)  # arrays, or torch tensors on a device
    activations: list[Activation] = field(default_factory=list)
    logits: Activation | None = None

    def attentions(self) -> list[Attention]:
        return [layer for layer in self.layers if isinstance(layer, Attention)]

    def positions(self) -> int | None:
        """The number of positions of the rotary tables; None without tables."""
        lengths = [a.cos.shape[0] for a in self.attentions() if a.cos is not None]
        return min(lengths) if lengths else None

    def vocabulary(self) -> int:
        return next(layer.weight.shape[0] for layer in self.layers if isinstance(layer, Embed))

    def check(self) -> None:
        """Raise ValueError for a program that cannot run."""
        if self.logits is None:
            raise ValueError("the model has no argmax_layer: call load_model, or end the layer calls with argmax_layer")
        if not any(isinstance(layer, Embed) for layer in self.layers):
            raise ValueError("the model has no embed_layer, which turns tokens into vectors")
        written: set[int] = set()
        for layer in self.layers:
            inputs = [] if isinstance(layer, Embed) else [layer.input]
            if isinstance(layer, Linear) and layer.residual is not None:
                inputs.append(layer.residual)
            for tensor in inputs:
                if tensor.number not in written:
                    raise ValueError(f"{type(layer).__name__} reads {tensor.name!r} before any layer writes it")
            written.add(layer.output.number)
        if self.logits.number not in written:
            raise ValueError(f"argmax_layer reads {self.logits.name!r}, which no layer writes")
