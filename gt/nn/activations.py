"""Activations as modules: each calls its function with its settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import full
from gt.nn import functional as F
from gt.nn.init import constant_
from gt.nn.module import Module, Parameter


class _Activation(Module):
    """Settings are attributes with the names of the function's arguments."""

    function: Callable
    names: tuple[str, ...] = ()

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(input, *(getattr(self, n) for n in self.names))

    def extra_repr(self) -> str:
        return ", ".join(f"{n}={getattr(self, n)!r}" for n in self.names if not (n == "inplace" and not self.inplace))

    inplace: bool = False


def _plain(name: str, function: Callable, **settings: Any) -> type[_Activation]:
    """A module class with these settings, in this order, with these defaults."""
    names = tuple(settings)

    def begin(self: _Activation, *args: Any, **kwargs: Any) -> None:
        Module.__init__(self)
        given = dict(zip(names, args))
        if len(args) > len(names) or kwargs.keys() - set(names) or given.keys() & kwargs.keys():
            raise TypeError(f"{name} takes {', '.join(names) or 'no arguments'}, not {args} and {kwargs}")
        for key, value in {**settings, **given, **kwargs}.items():
            setattr(self, key, value)

    body = {"__init__": begin, "function": staticmethod(function), "names": names, "__module__": __name__,
            "__doc__": f"`{function.__name__}` as a module."}  # fmt: skip
    return type(name, (_Activation,), body)


ReLU = _plain("ReLU", F.relu, inplace=False)
ReLU6 = _plain("ReLU6", F.relu6, inplace=False)
LeakyReLU = _plain("LeakyReLU", F.leaky_relu, negative_slope=0.01, inplace=False)
ELU = _plain("ELU", F.elu, alpha=1.0, inplace=False)
SELU = _plain("SELU", F.selu, inplace=False)
CELU = _plain("CELU", F.celu, alpha=1.0, inplace=False)
GELU = _plain("GELU", F.gelu, approximate="none")
SiLU = _plain("SiLU", F.silu, inplace=False)
Mish = _plain("Mish", F.mish, inplace=False)
Sigmoid = _plain("Sigmoid", F.sigmoid)
LogSigmoid = _plain("LogSigmoid", F.logsigmoid)
Tanh = _plain("Tanh", F.tanh)
Tanhshrink = _plain("Tanhshrink", F.tanhshrink)
Softplus = _plain("Softplus", F.softplus, beta=1.0, threshold=20.0)
Softsign = _plain("Softsign", F.softsign)
Hardtanh = _plain("Hardtanh", F.hardtanh, min_val=-1.0, max_val=1.0, inplace=False)
Hardsigmoid = _plain("Hardsigmoid", F.hardsigmoid, inplace=False)
Hardswish = _plain("Hardswish", F.hardswish, inplace=False)
Hardshrink = _plain("Hardshrink", F.hardshrink, lambd=0.5)
Softshrink = _plain("Softshrink", F.softshrink, lambd=0.5)
Softmax = _plain("Softmax", F.softmax, dim=None)
Softmin = _plain("Softmin", F.softmin, dim=None)
LogSoftmax = _plain("LogSoftmax", F.log_softmax, dim=None)
GLU = _plain("GLU", F.glu, dim=-1)


class Threshold(Module):
    """`value` for all elements that are not above the threshold."""

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__()
        self.threshold, self.value, self.inplace = threshold, value, inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.threshold(input, self.threshold, self.value, self.inplace)

    def extra_repr(self) -> str:
        return f"threshold={self.threshold}, value={self.value}" + (", inplace=True" if self.inplace else "")


class RReLU(Module):
    """A random slope for negative elements when training, else the mean slope."""

    def __init__(self, lower: float = 1.0 / 8, upper: float = 1.0 / 3, inplace: bool = False) -> None:
        super().__init__()
        self.lower, self.upper, self.inplace = lower, upper, inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.rrelu(input, self.lower, self.upper, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"lower={self.lower}, upper={self.upper}" + (", inplace=True" if self.inplace else "")


class Softmax2d(Module):
    """Softmax over the channels of (batch, channels, height, width)."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise ValueError(
                f"Softmax2d: expected (batch, channels, height, width) or one without the batch, got {input.shape}"
            )
        return F.softmax(input, -3)


class PReLU(Module):
    """A learnable slope for negative elements, one for all or one for each channel."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.num_parameters, self.init = num_parameters, float(init)
        self.weight = Parameter(full((num_parameters,), float(init), dtype=dtype))

    def reset_parameters(self) -> None:
        constant_(self.weight, self.init)

    def forward(self, input: Tensor) -> Tensor:
        return F.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"
