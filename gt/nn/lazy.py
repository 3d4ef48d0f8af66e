"""Modules that take the size of their input from the first call. Until then they have no parameters."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from gt.client.autograd import Tensor
from gt.nn.conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from gt.nn.linear import Linear
from gt.nn.module import Module
from gt.nn.norm import BatchNorm1d, BatchNorm2d, BatchNorm3d, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d


class LazyModule(Module):
    """`becomes` is the class it turns into; `axis` the one of the input whose size is the class's first argument."""

    becomes: Any  # a class of modules
    axis = 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self._later = (args, kwargs)

    def __init_subclass__(cls, **settings: Any) -> None:
        """The arguments are those of the class it becomes, without the first."""
        super().__init_subclass__(**settings)
        if "becomes" in cls.__dict__ and cls.__init__ is LazyModule.__init__:
            first, _size, *rest = inspect.signature(cls.becomes.__init__).parameters.values()

            def begin(self: Any, *args: Any, **kwargs: Any) -> None:
                LazyModule.__init__(self, *args, **kwargs)

            begin.__signature__ = inspect.Signature([first, *rest])  # type: ignore[attr-defined]
            cls.__init__ = begin  # type: ignore[method-assign]

    def has_uninitialized_params(self) -> bool:
        return "_later" in self.__dict__

    def initialize_parameters(self, input: Tensor) -> None:
        """Become the module for inputs of this size."""
        args, kwargs = self.__dict__.pop("_later")
        hooks, training = self.__dict__.get("_hooks"), self.training
        size, become = input.shape[self.axis], self.becomes
        self.__class__ = become
        become.__init__(self, size, *args, **kwargs)
        self.train(training)
        if hooks:
            self._hooks = hooks

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.initialize_parameters(input)
        return self.forward(input, *args, **kwargs)

    def _own_parameters(self) -> Iterator[tuple[str, Tensor]]:
        raise RuntimeError(f"{type(self).__name__} has no parameters yet: call the model once on an input first, "
                           "then make the optimizer or the state dict")  # fmt: skip

    def extra_repr(self) -> str:
        args, kwargs = self._later
        return ", ".join([*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items())])


class LazyLinear(LazyModule):
    becomes, axis = Linear, -1


class LazyConv1d(LazyModule):
    becomes, axis = Conv1d, -2


class LazyConv2d(LazyModule):
    becomes, axis = Conv2d, -3


class LazyConv3d(LazyModule):
    becomes, axis = Conv3d, -4


class LazyConvTranspose1d(LazyModule):
    becomes, axis = ConvTranspose1d, -2


class LazyConvTranspose2d(LazyModule):
    becomes, axis = ConvTranspose2d, -3


class LazyConvTranspose3d(LazyModule):
    becomes, axis = ConvTranspose3d, -4


class LazyBatchNorm1d(LazyModule):
    becomes = BatchNorm1d


class LazyBatchNorm2d(LazyModule):
    becomes = BatchNorm2d


class LazyBatchNorm3d(LazyModule):
    becomes = BatchNorm3d


class _LazyInstanceNorm(LazyModule):
    """Unlike the modules they become, these by default have a scale and running statistics."""

    def __init__(
        self, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True, track_running_stats: bool = True,
        device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(eps, momentum, affine, track_running_stats, device, dtype, bias=bias)


class LazyInstanceNorm1d(_LazyInstanceNorm):
    becomes, axis = InstanceNorm1d, -2


class LazyInstanceNorm2d(_LazyInstanceNorm):
    becomes, axis = InstanceNorm2d, -3


class LazyInstanceNorm3d(_LazyInstanceNorm):
    becomes, axis = InstanceNorm3d, -4
