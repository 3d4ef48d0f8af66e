"""Pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.autograd import Tensor
from gt.nn import functional as F
from gt.nn.module import Module


class _Pool(Module):
    """The base class of pooling modules; settings are those of the function, in its order."""

    function: Callable
    names: tuple[str, ...]
    shown: tuple[str, ...] = ()  # settings in the repr; by default all
    kernel_size: Any
    stride: Any
    padding: Any

    def _set(self, *values: Any) -> None:
        super().__init__()
        for name, value in zip(self.names, values):
            setattr(self, name, value)
        if getattr(self, "stride", 0) is None:
            self.stride = self.kernel_size

    def forward(self, input: Tensor) -> Any:
        return type(self).function(input, *(getattr(self, n) for n in self.names))

    def extra_repr(self) -> str:
        return ", ".join(f"{n}={getattr(self, n)}" for n in self.shown or self.names)


class _MaxPool(_Pool):
    names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    shown = names[:-1]

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        self._set(kernel_size, stride, padding, dilation, ceil_mode, return_indices)


class AvgPool1d(_Pool):
    """The mean of each window."""

    function = staticmethod(F.avg_pool1d)
    names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
    shown = names[:3]

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True
    ) -> None:
        self._set(kernel_size, stride, padding, ceil_mode, count_include_pad)


class _AvgPool(_Pool):
    names = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    shown = names[:3]

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:  # fmt: skip
        self._set(kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


class _Adaptive(_Pool):
    names = ("output_size",)

    def __init__(self, output_size: Any) -> None:
        self._set(output_size)


class _AdaptiveMax(_Pool):
    names = ("output_size", "return_indices")
    shown = names[:1]

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        self._set(output_size, return_indices)


class _LPPool(_Pool):
    names = ("norm_type", "kernel_size", "stride", "ceil_mode")

    def __init__(self, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> None:
        self._set(norm_type, kernel_size, stride, ceil_mode)


class _FractionalMax(_Pool):
    names = ("kernel_size", "output_size", "output_ratio", "return_indices", "_random_samples")
    shown = names[:2]

    def __init__(
        self, kernel_size: Any, output_size: Any = None, output_ratio: Any = None, return_indices: bool = False,
        _random_samples: Any = None,
    ) -> None:  # fmt: skip
        if (output_size is None) == (output_ratio is None):
            raise ValueError("fractional pooling takes either output_size or output_ratio")
        self._set(kernel_size, output_size, output_ratio, return_indices)
        self.register_buffer("_random_samples", _random_samples)


class _MaxUnpool(_Pool):
    names = ("kernel_size", "stride", "padding")

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        self._set(kernel_size, stride, padding)

    def forward(self, input: Tensor, indices: Tensor, output_size: Any = None) -> Tensor:  # type: ignore[override]
        return type(self).function(input, indices, self.kernel_size, self.stride, self.padding, output_size)


def _of(base: type[_Pool], name: str, function: Callable) -> Any:
    """The module of a function."""
    doc = f"`{function.__name__}` as a module."
    return type(name, (base,), {"function": staticmethod(function), "__module__": __name__, "__doc__": doc})


MaxPool1d = _of(_MaxPool, "MaxPool1d", F.max_pool1d)
MaxPool2d = _of(_MaxPool, "MaxPool2d", F.max_pool2d)
MaxPool3d = _of(_MaxPool, "MaxPool3d", F.max_pool3d)
MaxUnpool1d = _of(_MaxUnpool, "MaxUnpool1d", F.max_unpool1d)
MaxUnpool2d = _of(_MaxUnpool, "MaxUnpool2d", F.max_unpool2d)
MaxUnpool3d = _of(_MaxUnpool, "MaxUnpool3d", F.max_unpool3d)
AvgPool2d = _of(_AvgPool, "AvgPool2d", F.avg_pool2d)
AvgPool3d = _of(_AvgPool, "AvgPool3d", F.avg_pool3d)
AdaptiveAvgPool1d = _of(_Adaptive, "AdaptiveAvgPool1d", F.adaptive_avg_pool1d)
AdaptiveAvgPool2d = _of(_Adaptive, "AdaptiveAvgPool2d", F.adaptive_avg_pool2d)
AdaptiveAvgPool3d = _of(_Adaptive, "AdaptiveAvgPool3d", F.adaptive_avg_pool3d)
AdaptiveMaxPool1d = _of(_AdaptiveMax, "AdaptiveMaxPool1d", F.adaptive_max_pool1d)
AdaptiveMaxPool2d = _of(_AdaptiveMax, "AdaptiveMaxPool2d", F.adaptive_max_pool2d)
AdaptiveMaxPool3d = _of(_AdaptiveMax, "AdaptiveMaxPool3d", F.adaptive_max_pool3d)
LPPool1d = _of(_LPPool, "LPPool1d", F.lp_pool1d)
LPPool2d = _of(_LPPool, "LPPool2d", F.lp_pool2d)
LPPool3d = _of(_LPPool, "LPPool3d", F.lp_pool3d)
FractionalMaxPool2d = _of(_FractionalMax, "FractionalMaxPool2d", F.fractional_max_pool2d)
FractionalMaxPool3d = _of(_FractionalMax, "FractionalMaxPool3d", F.fractional_max_pool3d)
