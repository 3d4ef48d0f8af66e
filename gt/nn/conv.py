"""Convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.autograd import Tensor
from gt.nn import functional as F
from gt.nn.functional.conv import spread
from gt.nn.linear import begin, empty
from gt.nn.module import Module

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}  # by axes


class _Conv(Module):
    """The base class of convolutions: a weight (out, in / groups, *kernel), or (in, out / groups, *kernel) if transposed."""

    axes: int
    transposed = False

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any, groups: int,
        bias: bool, padding_mode: str, dtype: Any, output_padding: Any = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(f"{in_channels} channels to {out_channels} cannot be divided into {groups} groups")
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise ValueError(f"no padding_mode {padding_mode!r}: known are zeros, reflect, replicate, circular")
        n = self.axes
        self.in_channels, self.out_channels, self.groups, self.padding_mode = in_channels, out_channels, groups, padding_mode
        self.kernel_size, self.stride, self.dilation = spread(kernel_size, n), spread(stride, n), spread(dilation, n)
        self.padding: Any = padding if isinstance(padding, str) else spread(padding, n)
        self.output_padding = spread(output_padding, n)
        first, second = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
        self.weight = empty(first, second // groups, *self.kernel_size, dtype=dtype)
        self.bias = empty(out_channels, dtype=dtype) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        begin(self.weight, self.bias)

    def _edges(self) -> list[int]:
        """(before, after) of each axis, the last first, for padding that is not zeros."""
        if self.padding == "valid":
            return [0, 0] * self.axes
        if isinstance(self.padding, str):
            totals = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size)]
            return [w for t in reversed(totals) for w in (t // 2, t - t // 2)]
        return [p for p in reversed(self.padding) for _ in range(2)]

    def forward(self, input: Tensor) -> Tensor:
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input, padding = F.pad(input, self._edges(), mode=self.padding_mode), 0
        return CONVOLUTIONS[self.axes](input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        if self.padding != (0,) * self.axes:
            text += f", padding={self.padding}"
        if self.dilation != (1,) * self.axes:
            text += f", dilation={self.dilation}"
        text += f", groups={self.groups}" if self.groups != 1 else ""
        text += ", bias=False" if self.bias is None else ""
        return text + (f", padding_mode={self.padding_mode}" if self.padding_mode != "zeros" else "")


class _Forward(_Conv):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
        groups: int = 1, bias: bool = True, padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, dtype)


class Conv1d(_Forward):
    """Over (batch, channels, length)."""

    axes = 1


class Conv2d(_Forward):
    """Over (batch, channels, height, width)."""

    axes = 2


class Conv3d(_Forward):
    """Over (batch, channels, depth, height, width)."""

    axes = 3


class _Transpose(_Conv):
    transposed = True

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
        groups: int = 1, bias: bool = True, dilation: Any = 1, padding_mode: str = "zeros", device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        if padding_mode != "zeros":
            raise ValueError(f"padding_mode={padding_mode!r}: a transposed convolution pads with 'zeros' only")
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, dtype, output_padding
        )

    def forward(self, input: Tensor, output_size: Any = None) -> Tensor:
        extra = self.output_padding if output_size is None else self._extra(input, output_size)
        convolve: Callable = getattr(F, f"conv_transpose{self.axes}d")
        return convolve(input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)

    def _extra(self, input: Tensor, output_size: Any) -> tuple[int, ...]:
        """The output padding for an output of this size."""
        n = self.axes
        want = tuple(output_size)[-n:]
        padding: Any = self.padding
        least = [(d - 1) * s - 2 * p + e * (k - 1) + 1 for d, s, p, e, k in
                 zip(input.shape[-n:], self.stride, padding, self.dilation, self.kernel_size)]  # fmt: skip
        found = tuple(w - b for w, b in zip(want, least))
        if any(not 0 <= f < s for f, s in zip(found, self.stride)):
            most = [b + s - 1 for b, s in zip(least, self.stride)]
            raise ValueError(f"expected an output size from {least} to {most} for an input of shape {input.shape}, got {want}")
        return found


class ConvTranspose1d(_Transpose):
    """The transpose of a convolution over (batch, channels, length)."""

    axes = 1


class ConvTranspose2d(_Transpose):
    """The transpose of a convolution over (batch, channels, height, width)."""

    axes = 2


class ConvTranspose3d(_Transpose):
    """The transpose of a convolution over (batch, channels, depth, height, width)."""

    axes = 3


class Unfold(Module):
    """The windows of a convolution as columns."""

    def __init__(self, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> None:
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def forward(self, input: Tensor) -> Tensor:
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, stride={self.stride}"


class Fold(Unfold):
    """The inverse of `Unfold`, with overlapping columns added."""

    def __init__(self, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> None:
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return F.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, {super().extra_repr()}"
