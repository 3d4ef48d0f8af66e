"""PyTorch's kernels for layers: normalisation, convolution, pooling."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable
from typing import Any

import torch

from gt.worker.engine.torch import aten, small_norms

Array = torch.Tensor


def _inner(a: Array, ndim: int) -> list[int]:
    return list(a.shape[a.ndim - ndim :])


def _wide(a: Array) -> torch.dtype:
    return torch.float32 if a.dtype.itemsize == 2 else a.dtype


def _pair(parts: tuple[Array, ...]) -> list[Array | None]:
    """Weight and bias, or None if absent. The kernels require contiguous ones."""
    return [*(p.contiguous() for p in parts), None, None][:2]


def _kept(found: Any, weight: tuple[Array, ...]) -> Any:
    return tuple(f for f in found if f is not None) if weight else found[0]


def _saved(like: Array, *saved: Array) -> list[Array]:
    """Mean and deviation for the backward kernels: contiguous, and on the CPU in the dtype of the parameters."""
    dtype = like.dtype if like.device.type == "cpu" else _wide(like)
    return [s.to(dtype).contiguous() for s in saved]


def _format(a: Array) -> torch.memory_format:
    """The memory format of images."""
    last = a.ndim == 4 and not a.is_contiguous() and a.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def _dense(a: Array) -> Array:
    return a.contiguous(memory_format=_format(a))


def _is_plain(a: Array, *others: Array) -> bool:
    """Whether a CPU's norms take these without conversion: calls that convert nothing take as long as the kernel."""
    fits = [x.dtype is torch.float32 and x.is_contiguous() for x in others]  # a generator would take longer
    return a.is_cpu and a.dtype is torch.float32 and False not in fits


def layer_norm(a: Array, eps: float, *parts: Array, ndim: int) -> tuple[Array, ...]:
    if len(parts) == 2 and _is_plain(a, *parts):
        return aten.native_layer_norm(a, a.shape[a.ndim - ndim :], *parts, eps)
    y, mean, rstd = aten.native_layer_norm(a, _inner(a, ndim), *_pair(parts), eps)
    return y, mean.to(_wide(a)), rstd.to(_wide(a))


def layer_norm_grad(g: Array, a: Array, mean: Array, rstd: Array, *weight: Array, ndim: int, bias: bool) -> Any:
    if bias and _is_plain(g, g, a, mean, rstd, *weight):
        inner = a.shape[a.ndim - ndim :]
        return aten.native_layer_norm_backward(g, a, inner, mean, rstd, *weight, *weight, [True, True, True])
    w = weight[0].contiguous() if weight else None
    mean, rstd = _saved(a if w is None else w, mean, rstd)
    return _kept(aten.native_layer_norm_backward(
        g.contiguous(), a.contiguous(), _inner(a, ndim), mean, rstd, w, w if bias else None, [True, w is not None, bias]
    ), weight)  # fmt: skip


def add_layer_norm(a: Array, b: Array, eps: float, *parts: Array, ndim: int) -> tuple[Array, ...]:
    total = a + b
    return total, *layer_norm(total, eps, *parts, ndim=ndim)


def add_layer_norm_grad(other: Array, *operands: Array, ndim: int, bias: bool) -> Any:
    found = layer_norm_grad(*operands, ndim=ndim, bias=bias)
    return (other + found[0], *found[1:]) if isinstance(found, tuple) else other + found


# PyTorch before 2.9 has another op by this name, or none.
_fused: Any = getattr(torch.ops.aten, "_fused_rms_norm", None)
FUSED_RMS_NORM = _fused is not None and len(_fused.default._schema.returns) == 2


def rms_norm(a: Array, eps: float, *weight: Array, ndim: int) -> tuple[Array, Array]:
    if not FUSED_RMS_NORM:
        wide = a.to(_wide(a))
        rstd = (wide.square().mean(tuple(range(-ndim, 0)), keepdim=True) + eps).rsqrt()
        return (wide * rstd * (weight[0] if weight else 1)).to(a.dtype), rstd
    y, rstd = aten._fused_rms_norm(a, _inner(a, ndim), weight[0] if weight else None, eps)
    return y, rstd.to(_wide(a))


def rms_norm_grad(g: Array, a: Array, rstd: Array, *weight: Array, ndim: int) -> Any:
    w = weight[0] if weight else None
    if g.device.type == "cuda" and FUSED_RMS_NORM:
        return _kept(aten._fused_rms_norm_backward(
            g.contiguous(), a.contiguous(), _inner(a, ndim), rstd.contiguous(), w if w is None else w.contiguous(),
            [True, w is not None]), weight)  # fmt: skip
    axes = list(range(a.ndim - ndim, a.ndim))
    hat = a * rstd  # in 32 bits for 16-bit inputs
    wg = g * w if w is not None else g
    inner = torch.linalg.vecdot(wg.to(hat.dtype), hat) if ndim == 1 else (wg * hat).sum(axes)
    inner = inner.reshape(rstd.shape).mul_(1.0 / max(hat.numel() // max(rstd.numel(), 1), 1))
    slope = torch.addcmul(wg.to(hat.dtype), hat, inner, value=-1).mul_(rstd).to(a.dtype)
    if w is None:
        return slope
    return slope, hat.mul_(g).reshape(-1, *w.shape).sum(0).to(w.dtype)


def group_norm(a: Array, eps: float, *parts: Array, groups: int) -> tuple[Array, ...]:
    n, c = a.shape[:2]
    size = a.numel() // max(n * c, 1)
    if len(parts) == 2 and _is_plain(a, a, *parts):
        return aten.native_group_norm(a, *parts, n, c, size, groups, eps)
    y, mean, rstd = aten.native_group_norm(a.contiguous(), *_pair(parts), n, c, size, groups, eps)
    return y, mean.to(_wide(a)), rstd.to(_wide(a))


def group_norm_grad(g: Array, a: Array, mean: Array, rstd: Array, *weight: Array, groups: int, bias: bool) -> Any:
    n, c = a.shape[:2]
    size = a.numel() // max(n * c, 1)
    if bias and _is_plain(g, g, a, mean, rstd, *weight):
        return aten.native_group_norm_backward(g, a, mean, rstd, *weight, n, c, size, groups, [True, True, True])
    w = weight[0].contiguous() if weight else None
    mean, rstd = _saved(a if w is None else w, mean, rstd)
    return _kept(aten.native_group_norm_backward(
        g.contiguous(), a.contiguous(), mean, rstd, w, n, c, size, groups,
        [True, w is not None, bias]
    ), weight)  # fmt: skip


def _cudnn_takes(a: Array, parts: tuple[Array, ...]) -> bool:
    """Whether cuDNN computes this batch norm, by the rule of torch.nn.functional.batch_norm. PyTorch's compilers get ATen's
    form, which they can decompose."""
    return (
        a.is_cuda
        and a.ndim >= 3
        and len(parts) == 2
        and a.dtype is not torch.bfloat16
        and parts[0].dtype is _wide(a)
        and a.shape[0] <= 880801
        and 0 < a.numel() < 1 << 31
        and torch.backends.cudnn.enabled
        and not torch._C._len_torch_dispatch_stack()
    )


def batch_norm_train(a: Array, eps: float, *parts: Array) -> tuple[Array, ...]:
    if len(parts) == 2 and _is_plain(a, *parts) and a.shape[1]:
        if small_norms.takes(a):
            return small_norms.forward(a, *parts, eps)
        var = torch.zeros(a.shape[1])
        return *aten.native_batch_norm(a, *parts, torch.zeros_like(var), var, True, 1.0, eps), var
    dtype = parts[0].dtype if parts and a.device.type == "cpu" else _wide(a)
    seen, var = torch.zeros((2, a.shape[1]), dtype=dtype, device=a.device).unbind()  # Tensor.__iter__ takes 5 us more
    if not a.shape[1]:
        return a, *[seen.to(_wide(a))] * 3
    # With a momentum of 1 `var` becomes the unbiased variance.
    if _cudnn_takes(a, parts):
        y, mean, rstd, reserve = aten.cudnn_batch_norm(_dense(a), *_pair(parts), seen, var, True, 1.0, eps)
        # needed by cuDNN's gradient of this input; if the attribute is lost, ATen's gradient is used
        rstd.cudnn = reserve, eps, a.shape, a.dtype
        return y, mean, rstd, var
    y, mean, rstd = aten.native_batch_norm(a, *_pair(parts), seen, var, True, 1.0, eps)
    return y, mean.to(_wide(a)), rstd.to(_wide(a)), var.to(_wide(a))


def batch_norm_grad(g: Array, a: Array, mean: Array, rstd: Array, *weight: Array, bias: bool) -> Any:
    if bias and weight and _is_plain(g, a, g, mean, rstd, *weight) and a.numel():
        if small_norms.takes(a):
            return small_norms.backward(g, a, mean, rstd, *weight)
        return aten.native_batch_norm_backward(g, a, *weight, None, None, mean, rstd, True, 0.0, [True, True, True])
    w = weight[0].contiguous() if weight else None
    if not a.numel():  # PyTorch would divide by the number of channels
        return _kept((torch.zeros_like(a), *[torch.zeros_like(w) if w is not None else None] * (1 + bias)), weight)
    a = _dense(a)
    g = g.contiguous(memory_format=_format(a))
    kept = getattr(rstd, "cudnn", None) if bias else None
    if kept is not None and kept[2:] == (a.shape, a.dtype) and _cudnn_takes(a, (*weight, *weight)):
        return tuple(aten.cudnn_batch_norm_backward(a, g, w, None, None, mean, rstd, kept[1], kept[0]))
    mean, rstd = _saved(a if w is None else w, mean, rstd)
    wanted = [True, w is not None, bias]
    return _kept(aten.native_batch_norm_backward(g, a, w, None, None, mean, rstd, True, 0.0, wanted), weight)


def batch_norm(a: Array, mean: Array, var: Array, eps: float, *parts: Array) -> Array:
    return aten.native_batch_norm(a, *_pair(parts), mean, var, False, 0.0, eps)[0]


# Products of a convolution up to which oneDNN takes longer than PyTorch's plain kernel: to prepare its call on x86-64, and for
# gradients on ARM, whose kernels the Arm Compute Library has not (on a Neoverse N1 0.1 to 0.8 of its time, on one thread).
ON_ARM = platform.machine() in ("aarch64", "arm64")
FEW, FEW_IN_GRADIENTS = (3 << 19, 1 << 24) if ON_ARM else (1 << 19, 1 << 20)
_plain_grads = torch.ops.aten._slow_conv2d_backward.output_mask


def is_tiny(a: Array, w: Array, stride: Any, dilation: Any, groups: int, few: int) -> bool:
    """Whether PyTorch's plain kernel is the fastest for a convolution of these images. PyTorch's compilers get ATen's general
    form."""
    return (
        a.is_cpu
        and a.dtype is torch.float32
        and a.is_contiguous()
        and w.is_contiguous()
        and groups == 1
        and len(stride) == 2
        and 0 < a.numel() * w.numel() <= few * w.shape[1] * stride[0] * stride[1]
        and dilation[0] == dilation[1] == 1
        and not torch._C._len_torch_dispatch_stack()
    )


def conv_grads(
    g: Array, a: Array, w: Array, stride: Any, padding: Any, dilation: Any, groups: int, wanted: list[bool]
) -> tuple[Array, Array]:
    """The gradients of a convolution's images and weight, as far as wanted."""
    if is_tiny(a, w, stride, dilation, groups, FEW_IN_GRADIENTS):
        return _plain_grads(g, a, w, w.shape[2:], stride, padding, [*wanted, False])[:2]
    zero = [0] * len(stride)
    return aten.convolution_backward(g, a, w, None, stride, padding, dilation, False, zero, groups, [*wanted, False])[:2]


def conv(a: Array, w: Array, *bias: Array, stride: Any, padding: Any, dilation: Any, groups: int) -> Array:
    if is_tiny(a, w, stride, dilation, groups, FEW):
        return aten._slow_conv2d_forward(a, w, w.shape[2:], bias[0] if bias else None, stride, padding)
    zero = [0] * len(stride)
    if not w.numel():  # without input channels the result is zero; without output channels it is empty
        out = aten.convolution(a[:, :1].new_zeros(a.shape[0], 1, *a.shape[2:]), w.new_zeros(1, 1, *w.shape[2:]), None,
                               stride, padding, dilation, False, zero, 1)  # fmt: skip
        return out[:, :0] if not w.shape[0] else out.expand(-1, w.shape[0], *[-1] * len(stride)).contiguous()
    return aten.convolution(a, w, bias[0] if bias else None, stride, padding, dilation, False, zero, groups)


def conv_transpose(a: Array, w: Array, *bias: Array, size: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Array:
    if not a.numel() or not w.numel():
        return a.new_zeros(a.shape[0], w.shape[1] * groups, *size)
    like = torch.empty(  # only its shape and memory format count, but oneDNN packs one that is not dense
        (a.shape[0], w.shape[1] * groups, *size), dtype=a.dtype, device=a.device, memory_format=_format(a)
    )
    fits = all(
        (d + 2 * p - e * (k - 1) - 1) // s + 1 == n
        for d, k, s, p, e, n in zip(size, w.shape[2:], stride, padding, dilation, a.shape[2:])
    )
    if not fits or a.dtype is torch.int64:  # an output padding as large as the stride exceeds the input of any convolution
        extra = [
            d - ((n - 1) * s - 2 * p + e * (k - 1) + 1)
            for d, k, s, p, e, n in zip(size, w.shape[2:], stride, padding, dilation, a.shape[2:])
        ]
        return aten.convolution(a, w, bias[0] if bias else None, stride, padding, dilation, True, extra, groups)
    y, _ = conv_grads(a, like, w, stride, padding, dilation, groups, [True, False])
    return y + bias[0].reshape(1, -1, *[1] * len(stride)) if bias else y


def conv_weight_grad(g: Array, a: Array, *, size: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Array:
    if not g.numel() or not a.numel():
        return a.new_zeros(g.shape[1], a.shape[1] // groups, *size)
    fit = [(d + 2 * p - e * (k - 1) - 1) // s + 1 for d, k, s, p, e in zip(a.shape[2:], size, stride, padding, dilation)]
    if list(g.shape[2:]) != fit:  # of a transposed convolution with output padding: the additional windows have no effect
        g = torch.nn.functional.pad(g, [w for d, n in reversed([*zip(g.shape[2:], fit)]) for w in (0, n - d)])
    like = a.new_empty(g.shape[1], a.shape[1] // groups, *size)
    return conv_grads(g, a, like, stride, padding, dilation, groups, [False, True])[1]


def _flat_axis(function: Callable) -> Callable:
    """PyTorch's pooling kernels have two or three axes: one axis is pooled as a plane with a single row."""

    def run(a: Array, *, kernel: Any, **settings: Any) -> Any:
        if len(kernel) > 1:
            return function(a, kernel=kernel, **settings)
        one = {"stride": 1, "padding": 0, "dilation": 1, "size": 1}
        wide = {name: (one[name], *v) if name in one else v for name, v in settings.items()}
        found = function(a.unsqueeze(-2), kernel=(1, *kernel), **wide)
        return tuple(f.squeeze(-2) for f in found) if isinstance(found, tuple) else found.squeeze(-2)

    return run


def _planes(function: Callable, a: Array, n: int) -> Any:
    """PyTorch pools (batch, channels, ...) or (channels, ...): other leading axes are flattened for it; an empty batch gives an
    empty result."""
    if not a.numel():
        found = function(torch.zeros((1, 1, *a.shape[-n:]), dtype=a.dtype, device=a.device))
        several = found if isinstance(found, tuple) else (found,)
        empty = tuple(f.new_empty((*a.shape[:-n], *f.shape[-n:])) for f in several)
        return empty if isinstance(found, tuple) else empty[0]
    if n + 1 <= a.ndim <= n + 2:
        return function(a)
    found = function(a.reshape(1, -1, *a.shape[-n:]))
    if isinstance(found, tuple):
        return tuple(f.reshape(*a.shape[:-n], *f.shape[-n:]) for f in found)
    return found.reshape(*a.shape[:-n], *found.shape[-n:])


def _planes_back(function: Callable, g: Array, size: Any) -> Array:
    """The gradient of pooling, from gradients as planes and an array of the input's shape."""
    n = len(size)
    if not g.numel():
        return g.new_zeros(*g.shape[:-n], *size)
    flat = g.reshape(1, -1, *g.shape[-n:])
    like = torch.empty((), dtype=g.dtype, device=g.device).expand(*flat.shape[:2], *size)
    return function(flat, like).reshape(*g.shape[:-n], *size)


def _full(a: Array) -> Array:
    """In 32 bits: PyTorch's CPU kernels for three axes have no 16-bit floats."""
    return a.float() if a.device.type == "cpu" and a.dtype.itemsize == 2 else a


@_flat_axis
def max_pool(a: Array, *, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> tuple[Array, Array]:
    run = aten.max_pool2d_with_indices if len(kernel) == 2 else aten.max_pool3d_with_indices
    return _planes(lambda x: run(x, kernel, stride, padding, dilation, ceil), a, len(kernel))


@_flat_axis
def adaptive_max(a: Array, *, kernel: Any) -> tuple[Array, Array]:
    run = aten.adaptive_max_pool2d if len(kernel) == 2 else aten.adaptive_max_pool3d
    return _planes(lambda x: run(x, kernel), a, len(kernel))


@_flat_axis
def avg_pool(a: Array, *, kernel: Any, stride: Any, padding: Any, ceil: bool, padded: bool, divisor: int) -> Array:
    run = aten.avg_pool2d if len(kernel) == 2 else aten.avg_pool3d
    wide = _full(a) if len(kernel) == 3 else a
    return _planes(lambda x: run(x, kernel, stride, padding, ceil, padded, divisor or None), wide, len(kernel)).to(a.dtype)


@_flat_axis
def avg_pool_grad(
    g: Array, *, size: Any, kernel: Any, stride: Any, padding: Any, ceil: bool, padded: bool, divisor: int
) -> Array:
    run = aten.avg_pool2d_backward if len(kernel) == 2 else aten.avg_pool3d_backward
    wide = _full(g) if len(kernel) == 3 else g
    return _planes_back(lambda x, like: run(x, like, kernel, stride, padding, ceil, padded, divisor or None), wide, size).to(
        g.dtype
    )


@_flat_axis
def adaptive(a: Array, *, kernel: Any) -> Array:
    if a.numel() and set(kernel) == {1}:  # three times as fast as its kernel on a CPU
        return a.mean(dim=tuple(range(-len(kernel), 0)), keepdim=True)
    run = aten._adaptive_avg_pool2d if len(kernel) == 2 else aten._adaptive_avg_pool3d
    return _planes(lambda x: run(x, kernel), a, len(kernel))


@_flat_axis
def adaptive_grad(g: Array, *, size: Any, kernel: Any) -> Array:
    if g.numel() and set(kernel) == {1}:
        return (g / math.prod(size)).expand(*g.shape[: -len(size)], *size).contiguous()
    run = aten._adaptive_avg_pool2d_backward if len(kernel) == 2 else aten._adaptive_avg_pool3d_backward
    return _planes_back(run, g, size)
