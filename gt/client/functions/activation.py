"""Activations composed of other rows. Activations with a row of their own are generated from the op table."""

from __future__ import annotations

from gt.client.autograd import Tensor
from gt.client.functions.registry import both
from gt.client.saved import saves
from gt.errors import ArgumentError


@both
@saves("input")
def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Zero for elements within `lambd` of zero."""
    return ((input >= -lambd) & (input <= lambd)).pick(0.0, input)


@both
@saves("input")
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """`weight * x` for negative elements: one slope for all, or one for each channel."""
    if weight.ndim > 1 or (weight.numel() != 1 and (input.ndim < 2 or input.shape[1] != weight.numel())):
        raise ArgumentError(f"prelu of {input.shape}: expected one slope or one for each channel, got {weight.shape}")
    slope = weight.reshape(()) if weight.numel() == 1 else weight.reshape((1, -1) + (1,) * (input.ndim - 2))
    return (input > 0).pick(input, input * slope)
