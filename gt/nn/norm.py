"""Normalisation and dropout."""

from __future__ import annotations

from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import full, ones, zeros
from gt.nn import functional as F
from gt.nn import init
from gt.nn.functional.conv import ranked
from gt.nn.module import Module, Parameter
from gt.spec import int64


class _Scaled(Module):
    """The parameters of norms: a scale, initially 1, and a shift, initially 0."""

    weight: Tensor | None
    bias: Tensor | None

    def reset_parameters(self) -> None:
        for p, value in ((self.weight, 1.0), (getattr(self, "bias", None), 0.0)):
            if p is not None:
                init.constant_(p, value)


class _TrailingNorm(_Scaled):
    """The base class of norms over the last axes."""

    def __init__(self, normalized_shape: Any, eps: Any, elementwise_affine: bool, dtype: Any) -> None:
        super().__init__()
        self.normalized_shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self.weight = Parameter(ones(*self.normalized_shape, dtype=dtype)) if elementwise_affine else None

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class LayerNorm(_TrailingNorm):
    """Mean 0 and variance 1 over the last axes, then scaled and shifted."""

    def __init__(
        self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(normalized_shape, eps, elementwise_affine, dtype)
        self.bias = Parameter(zeros(*self.normalized_shape, dtype=dtype)) if elementwise_affine and bias else None

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, bias={self.bias is not None}"


class RMSNorm(_TrailingNorm):
    """Mean square 1 over the last axes, then scaled."""

    def __init__(
        self, normalized_shape: Any, eps: float | None = None, elementwise_affine: bool = True, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(normalized_shape, eps, elementwise_affine, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class GroupNorm(_Scaled):
    """Mean 0 and variance 1 within groups of channels, then scaled and shifted."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, device: Any = None, dtype: Any = None,
        *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(f"{num_channels} channels cannot be divided into {num_groups} groups")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self.weight = Parameter(ones(num_channels, dtype=dtype)) if affine else None
        self.bias = Parameter(zeros(num_channels, dtype=dtype)) if affine and bias else None

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


class _ChannelNorm(_Scaled):
    """The base class of channel norms: a scale and a shift, and running statistics."""

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self.weight = Parameter(ones(num_features, dtype=dtype)) if affine else None
        self.bias = Parameter(zeros(num_features, dtype=dtype)) if affine and bias else None
        tracks = track_running_stats
        self.register_buffer("running_mean", zeros(num_features, dtype=dtype) if tracks else None)
        self.register_buffer("running_var", ones(num_features, dtype=dtype) if tracks else None)
        self.register_buffer("num_batches_tracked", full((), 0, dtype=int64) if tracks else None)

    def reset_running_stats(self) -> None:
        """Reset the running statistics."""
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        self.reset_running_stats()
        super().reset_parameters()

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_ChannelNorm):
    """Mean 0 and variance 1 for each channel: by the batch's statistics when training, else by the running ones."""

    ranks: tuple[int, ...]

    def forward(self, input: Tensor) -> Tensor:
        if len(input.handle.spec.shape) not in self.ranks:
            raise ValueError(f"{type(self).__name__}: expected {' or '.join(map(str, self.ranks))} axes, got {input.shape}")
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.handle = (self.num_batches_tracked + 1).handle
            if self.momentum is None:  # a cumulative mean of all batches
                momentum = 1.0 / float(self.num_batches_tracked)
        training = self.training or self.running_mean is None
        keep = self.training and self.track_running_stats
        mean, var = (self.running_mean, self.running_var) if keep or not training else (None, None)
        return F.batch_norm(input, mean, var, self.weight, self.bias, training, momentum, self.eps)


class BatchNorm1d(_BatchNorm):
    """Over (batch, channels) or (batch, channels, length)."""

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Over (batch, channels, height, width)."""

    ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """Over (batch, channels, depth, height, width)."""

    ranks = (5,)


class SyncBatchNorm(_BatchNorm):
    """Over (batch, channels, ...). The statistics are those of all samples on all workers, as in every batch norm of GT."""

    ranks = tuple(range(2, 9))

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        track_running_stats: bool = True, process_group: Any = None, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, dtype=dtype)

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """The module unchanged."""
        return module


class _InstanceNorm(_ChannelNorm):
    """Mean 0 and variance 1 for each channel of each sample."""

    axes: int

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
        track_running_stats: bool = False, device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        single = ranked(input, self.axes, type(self).__name__)
        y = F.instance_norm(
            input.unsqueeze(0) if single else input, self.running_mean, self.running_var, self.weight, self.bias,
            self.training or not self.track_running_stats, self.momentum or 0.0, self.eps,
        )  # fmt: skip
        return y.squeeze(0) if single else y


class InstanceNorm1d(_InstanceNorm):
    """Over (batch, channels, length)."""

    axes = 1


class InstanceNorm2d(_InstanceNorm):
    """Over (batch, channels, height, width)."""

    axes = 2


class InstanceNorm3d(_InstanceNorm):
    """Over (batch, channels, depth, height, width)."""

    axes = 3


class LocalResponseNorm(Module):
    """Each element by the squares of its neighbours in other channels."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class _Dropout(Module):
    function: Any = staticmethod(F.dropout)

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"expected a probability from 0 to 1, got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, input: Tensor) -> Tensor:
        return self.function(input, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """Elements set to zero with probability p when training, and the others scaled up."""


class Dropout1d(_Dropout):
    """Whole channels of (batch, channels, length) set to zero when training."""

    function = staticmethod(F.dropout1d)


class Dropout2d(_Dropout):
    """Whole channels of (batch, channels, height, width) set to zero when training."""

    function = staticmethod(F.dropout2d)


class Dropout3d(_Dropout):
    """Whole channels of (batch, channels, depth, height, width) set to zero when training."""

    function = staticmethod(F.dropout3d)


class AlphaDropout(_Dropout):
    """Dropout that keeps mean 0 and variance 1, for networks of SELU."""

    function = staticmethod(F.alpha_dropout)


class FeatureAlphaDropout(_Dropout):
    """`AlphaDropout` of whole channels."""

    function = staticmethod(F.feature_alpha_dropout)
