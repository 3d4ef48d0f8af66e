"""Neighbouring layers of a program joined into phases, so that a step is few kernels: norm, product and silu in one."""

from __future__ import annotations

from dataclasses import dataclass

from gt.persistent.program import (
    Activation,
    AllReduce,
    Attention,
    DecodeProgram,
    Embed,
    Layer,
    Linear,
    RMSNorm,
    SiluMul,
    Weight,
)


@dataclass(frozen=True)
class Product:
    """`silu_mul(rmsnorm(input) @ weight.T + bias) + residual`, where all but the product may be missing."""

    input: Activation
    norm: Weight | None
    eps: float
    weight: Weight
    bias: Weight | None
    silu: bool
    residual: Activation | None
    output: Activation


Phase = Embed | RMSNorm | Product | Attention | SiluMul | AllReduce


def reads(layer: Layer, tensor: Activation) -> bool:
    return not isinstance(layer, Embed) and tensor in (layer.input, getattr(layer, "residual", None))


def dies(program: DecodeProgram, tensor: Activation, after: int) -> bool:
    """Whether nothing reads the tensor after layer number `after` before another layer writes it."""
    for layer in program.layers[after + 1 :]:
        if reads(layer, tensor):
            return False
        if layer.output == tensor:
            return True
    return tensor != program.logits


def phases(program: DecodeProgram) -> list[Phase]:
    found: list[Phase] = []
    number, layers = 0, program.layers
    while number < len(layers):
        layer, norm, silu = layers[number], None, None
        following = layers[number + 1] if number + 1 < len(layers) else None
        if (
            isinstance(layer, RMSNorm)
            and isinstance(following, Linear)
            and following.input == layer.output
            and following.residual != layer.output
            and following.output != layer.input
            and dies(program, layer.output, number + 1)
        ):
            norm, layer, number = layer, following, number + 1
            following = layers[number + 1] if number + 1 < len(layers) else None
        if not isinstance(layer, Linear):
            found.append(layer)
            number += 1
            continue
        if (
            isinstance(following, SiluMul)
            and following.input == layer.output
            and layer.residual is None
            and dies(program, layer.output, number + 1)
        ):
            silu, number = following, number + 1
        source = layer.input if norm is None else norm.input
        found.append(
            Product(
                source,
                None if norm is None else norm.weight,
                0.0 if norm is None else norm.eps,
                layer.weight,
                layer.bias,
                silu is not None,
                layer.residual,
                layer.output if silu is None else silu.output,
            )
        )
        number += 1
    return found
