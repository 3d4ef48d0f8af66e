"""Activations that are no op of their own, and PyTorch's forms of those that are."""

from __future__ import annotations

from typing import Any

from gt.client.apply import unary
from gt.client.autograd import Tensor
from gt.client.functions.layers import elu, softmax
from gt.client.functions.operators import assign
from gt.client.functions.pointwise import where
from gt.ops.table import TABLE


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    y = unary(TABLE["relu"], input)
    return assign(input, y) if inplace else y


def sigmoid(input: Tensor) -> Tensor:
    return unary(TABLE["sigmoid"], input)


def tanh(input: Tensor) -> Tensor:
    return unary(TABLE["tanh"], input)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    y = elu(input / alpha) * alpha
    return assign(input, y) if inplace else y


def tanhshrink(input: Tensor) -> Tensor:
    return input - tanh(input)


def softmin(input: Tensor, dim: int | None = None, dtype: Any = None) -> Tensor:
    return softmax(-input, dim, dtype)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """A slope for what is negative, one for all or one for each channel."""
    if weight.ndim > 1 or (weight.numel() != 1 and (input.ndim < 2 or input.shape[1] != weight.numel())):
        raise ValueError(f"prelu of {input.shape} wants one slope or one for each channel, not {weight.shape}")
    slope = weight if weight.numel() == 1 else weight.reshape((1, -1) + (1,) * (input.ndim - 2))
    return where(input > 0, input, input * slope)
