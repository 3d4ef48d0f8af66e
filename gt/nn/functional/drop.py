"""Dropout of whole channels."""

from __future__ import annotations

from gt.client.autograd import Tensor
from gt.client.functions.creation import ones
from gt.client.functions.layers import dropout


def _channels(input: Tensor, p: float, training: bool, axes: int) -> Tensor:
    if input.ndim not in (axes + 1, axes + 2):
        raise ValueError(f"dropout{axes}d wants (channels, ...) or (batch, channels, ...), not {input.shape}")
    if not training or p == 0:
        return input
    lead = input.shape[: input.ndim - axes]
    return input * dropout(ones(*lead, dtype=input.dtype), p).reshape(*lead, *[1] * axes)


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _channels(input, p, training, 1)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _channels(input, p, training, 2)
