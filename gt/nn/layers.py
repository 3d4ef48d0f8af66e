"""Layers."""

from __future__ import annotations

from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.creation import rand
from gt.client.functions.products import linear
from gt.nn.module import Module, Parameter


class Linear(Module):
    """`x @ weight.T + bias`, begun as PyTorch begins it."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, dtype: Any = None) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        bound = 1 / in_features**0.5 if in_features else 0.0
        self.weight = Parameter(rand(out_features, in_features, dtype=dtype) * (2 * bound) - bound)
        self.bias = Parameter(rand(out_features, dtype=dtype) * (2 * bound) - bound) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
