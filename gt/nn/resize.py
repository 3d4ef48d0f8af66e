"""Resizing, rearranging and padding images."""

from __future__ import annotations

from typing import Any

from gt.client.autograd import Tensor
from gt.nn import functional as F
from gt.nn.functional.conv import ranked
from gt.nn.module import Module


class Upsample(Module):
    """Resizes (batch, channels, ...) to a size or by a factor."""

    def __init__(
        self, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.size, self.scale_factor, self.mode, self.align_corners = size, scale_factor, mode, align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.interpolate(input, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor)

    def extra_repr(self) -> str:
        by = f"scale_factor={self.scale_factor}" if self.size is None else f"size={self.size}"
        return f"{by}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Nearest-neighbour interpolation."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, mode="nearest")


class UpsamplingBilinear2d(Upsample):
    """Bilinear interpolation with aligned corners."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, mode="bilinear", align_corners=True)


class PixelShuffle(Module):
    """(.., channels * r * r, h, w) as (.., channels, h * r, w * r)."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """(.., channels, h * r, w * r) as (.., channels * r * r, h, w)."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """The channels of all groups, interleaved."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        return F.channel_shuffle(input, self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


class _Pad(Module):
    """`padding` is one number for every side, or (before, after) of each axis, the last first."""

    axes: int
    mode: str
    value = 0.0

    def __init__(self, padding: Any) -> None:
        super().__init__()
        self.padding = (padding,) * (2 * self.axes) if isinstance(padding, int) else tuple(padding)
        if len(self.padding) != 2 * self.axes:
            raise ValueError(f"{type(self).__name__} expected one number or {2 * self.axes}, got {self.padding}")

    def forward(self, input: Tensor) -> Tensor:
        if self.mode != "constant":
            ranked(input, self.axes, type(self).__name__)
        return F.pad(input, self.padding, self.mode, self.value)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _Constant(_Pad):
    mode = "constant"

    def __init__(self, padding: Any, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


def _of(base: type[_Pad], name: str, axes: int, **facts: Any) -> Any:
    doc = f"Pads {axes} axes as `F.pad` does."
    return type(f"{name}{axes}d", (base,), {"axes": axes, "__module__": __name__, "__doc__": doc, **facts})


ZeroPad1d, ZeroPad2d, ZeroPad3d = (_of(_Pad, "ZeroPad", n, mode="constant") for n in (1, 2, 3))
ConstantPad1d, ConstantPad2d, ConstantPad3d = (_of(_Constant, "ConstantPad", n) for n in (1, 2, 3))
ReflectionPad1d, ReflectionPad2d, ReflectionPad3d = (_of(_Pad, "ReflectionPad", n, mode="reflect") for n in (1, 2, 3))
ReplicationPad1d, ReplicationPad2d, ReplicationPad3d = (_of(_Pad, "ReplicationPad", n, mode="replicate") for n in (1, 2, 3))
CircularPad1d, CircularPad2d, CircularPad3d = (_of(_Pad, "CircularPad", n, mode="circular") for n in (1, 2, 3))
