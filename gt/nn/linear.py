"""Linear maps, and modules that only reshape."""

from __future__ import annotations

import math
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import zeros
from gt.client.functions.products import linear
from gt.nn import functional as F
from gt.nn import init
from gt.nn.module import Module, Parameter


def empty(*shape: int, dtype: Any = None) -> Parameter:
    """A parameter that is not initialised yet."""
    return Parameter(zeros(*shape, dtype=dtype))


def begin(weight: Tensor, bias: Tensor | None) -> None:
    """PyTorch's initialisation of linear maps and convolutions: uniform numbers, bounded by the fan-in."""
    init.kaiming_uniform_(weight, a=math.sqrt(5))
    if bias is not None:
        fan = init._fan(weight, "fan_in")
        bound = 1 / math.sqrt(fan) if fan > 0 else 0.0
        init.uniform_(bias, -bound, bound)


class Identity(Module):
    """Returns its input; constructor arguments are ignored."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        return input


class Linear(Module):
    """`x @ weight.T + bias`."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = empty(out_features, in_features, dtype=dtype)
        self.bias = empty(out_features, dtype=dtype) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        begin(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class Bilinear(Module):
    """`x1 @ weight @ x2 + bias`, with a matrix for each output."""

    def __init__(
        self, in1_features: int, in2_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = empty(out_features, in1_features, in2_features, dtype=dtype)
        self.bias = empty(out_features, dtype=dtype) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.in1_features)
        for p in self.parameters():
            init.uniform_(p, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class Flatten(Module):
    """Axes start_dim to end_dim as one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor) -> Tensor:
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """One axis as several."""

    def __init__(self, dim: int, unflattened_size: Any) -> None:
        super().__init__()
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, input: Tensor) -> Tensor:
        return input.unflatten(self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
