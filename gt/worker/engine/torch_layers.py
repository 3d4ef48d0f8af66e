"""PyTorch's kernels for layers: normalisation, convolution, pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
Array = torch.Tensor


def _inner(a: Array, ndim: int) -> list[int]:
    return list(a.shape[a.ndim - ndim :])


def _wide(a: Array) -> torch.dtype:
    return torch.float32 if a.dtype.itemsize == 2 else a.dtype


def _pair(parts: tuple[Array, ...]) -> list[Array | None]:
    """Weight and bias, or None for what is not there. The kernels read them as if they were packed."""
    return [*(p.contiguous() for p in parts), None, None][:2]


def _kept(found: Any, weight: tuple[Array, ...]) -> Any:
    return tuple(f for f in found if f is not None) if weight else found[0]


def _saved(like: Array, *saved: Array) -> list[Array]:
    """Mean and deviation as the backward kernels want them: packed, and on the CPU in the dtype of the parameters."""
    dtype = like.dtype if like.device.type == "cpu" else _wide(like)
    return [s.to(dtype).contiguous() for s in saved]


def layer_norm(a: Array, eps: float, *parts: Array, ndim: int) -> tuple[Array, ...]:
    y, mean, rstd = aten.native_layer_norm(a, _inner(a, ndim), *_pair(parts), eps)
    return y, mean.to(_wide(a)), rstd.to(_wide(a))


def layer_norm_grad(g: Array, a: Array, mean: Array, rstd: Array, *weight: Array, ndim: int, bias: bool) -> Any:
    w = weight[0].contiguous() if weight else None
    mean, rstd = _saved(a if w is None else w, mean, rstd)
    return _kept(aten.native_layer_norm_backward(
        g.contiguous(), a.contiguous(), _inner(a, ndim), mean, rstd, w, w if bias else None, [True, w is not None, bias]
    ), weight)  # fmt: skip


def rms_norm(a: Array, eps: float, *weight: Array, ndim: int) -> tuple[Array, Array]:
    y, rstd = aten._fused_rms_norm(a, _inner(a, ndim), weight[0] if weight else None, eps)
    return y, rstd.to(_wide(a))


def rms_norm_grad(g: Array, a: Array, rstd: Array, *weight: Array, ndim: int) -> Any:
    w = weight[0] if weight else None
    if g.device.type == "cuda":
        return _kept(aten._fused_rms_norm_backward(
            g.contiguous(), a.contiguous(), _inner(a, ndim), rstd.contiguous(), w if w is None else w.contiguous(),
            [True, w is not None]), weight)  # fmt: skip
    axes = list(range(a.ndim - ndim, a.ndim))
    hat = a * rstd  # in 32 bits where the input has 16
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
    y, mean, rstd = aten.native_group_norm(a.contiguous(), *_pair(parts), n, c, size, groups, eps)
    return y, mean.to(_wide(a)), rstd.to(_wide(a))


def group_norm_grad(g: Array, a: Array, mean: Array, rstd: Array, *weight: Array, groups: int, bias: bool) -> Any:
    n, c = a.shape[:2]
    w = weight[0].contiguous() if weight else None
    mean, rstd = _saved(a if w is None else w, mean, rstd)
    return _kept(aten.native_group_norm_backward(
        g.contiguous(), a.contiguous(), mean, rstd, w, n, c, a.numel() // max(n * c, 1), groups,
        [True, w is not None, bias]
    ), weight)  # fmt: skip


def batch_norm_train(a: Array, eps: float, *parts: Array) -> tuple[Array, ...]:
    dtype = parts[0].dtype if parts and a.device.type == "cpu" else _wide(a)
    seen = torch.zeros(a.shape[1], dtype=dtype, device=a.device)
    if not a.shape[1]:
        return a, *[seen.to(_wide(a))] * 3
    var = torch.zeros_like(seen)  # with a momentum of 1 it ends as the unbiased variance
    y, mean, rstd = aten.native_batch_norm(a, *_pair(parts), seen, var, True, 1.0, eps)
    return y, mean.to(_wide(a)), rstd.to(_wide(a)), var.to(_wide(a))


def batch_norm_grad(g: Array, a: Array, mean: Array, rstd: Array, *weight: Array, bias: bool) -> Any:
    w = weight[0].contiguous() if weight else None
    mean, rstd = _saved(a if w is None else w, mean, rstd)
    return _kept(aten.native_batch_norm_backward(
        g.contiguous(), a.contiguous(), w, None, None, mean, rstd, True, 0.0, [True, w is not None, bias]
    ), weight)  # fmt: skip


def batch_norm(a: Array, mean: Array, var: Array, eps: float, *parts: Array) -> Array:
    return aten.native_batch_norm(a, *_pair(parts), mean, var, False, 0.0, eps)[0]


def conv(a: Array, w: Array, *bias: Array, stride: Any, padding: Any, dilation: Any, groups: int) -> Array:
    zero = [0] * len(stride)
    if not w.numel():  # no channels in: nothing is summed; none out: nothing is made
        out = aten.convolution(a[:, :1].new_zeros(a.shape[0], 1, *a.shape[2:]), w.new_zeros(1, 1, *w.shape[2:]), None,
                               stride, padding, dilation, False, zero, 1)  # fmt: skip
        return out[:, :0] if not w.shape[0] else out.expand(-1, w.shape[0], *[-1] * len(stride)).contiguous()
    return aten.convolution(a, w, bias[0] if bias else None, stride, padding, dilation, False, zero, groups)


def conv_transpose(a: Array, w: Array, *bias: Array, size: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Array:
    zero = [0] * len(stride)
    if not a.numel() or not w.numel():
        return a.new_zeros(a.shape[0], w.shape[1] * groups, *size)
    like = torch.empty((), dtype=a.dtype, device=a.device).expand(a.shape[0], w.shape[1] * groups, *size)
    fits = all(
        (d + 2 * p - e * (k - 1) - 1) // s + 1 == n
        for d, k, s, p, e, n in zip(size, w.shape[2:], stride, padding, dilation, a.shape[2:])
    )
    if not fits:  # an output padding of the size of a stride: more than a convolution's input could be
        extra = [
            d - ((n - 1) * s - 2 * p + e * (k - 1) + 1)
            for d, k, s, p, e, n in zip(size, w.shape[2:], stride, padding, dilation, a.shape[2:])
        ]
        return aten.convolution(a, w, bias[0] if bias else None, stride, padding, dilation, True, extra, groups)
    y = aten.convolution_backward(a, like, w, None, stride, padding, dilation, False, zero, groups, [True, False, False])[0]
    return y + bias[0].reshape(1, -1, *[1] * len(stride)) if bias else y


def conv_weight_grad(g: Array, a: Array, *, size: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Array:
    zero = [0] * len(stride)
    if not g.numel() or not a.numel():
        return a.new_zeros(g.shape[1], a.shape[1] // groups, *size)
    like = torch.empty((), dtype=a.dtype, device=a.device).expand(g.shape[1], a.shape[1] // groups, *size)
    return aten.convolution_backward(g, a, like, None, stride, padding, dilation, False, zero, groups, [False, True, False])[1]


def max_pool(a: Array, *, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> tuple[Array, Array]:
    if len(kernel) == 2:
        return _planes(lambda x: aten.max_pool2d_with_indices(x, kernel, stride, padding, dilation, ceil), a, 2)
    one = [1, *kernel], [1, *stride], [0, *padding], [1, *dilation]
    y, places = _planes(lambda x: aten.max_pool2d_with_indices(x, *one, ceil), a.unsqueeze(-2), 2)
    return y.squeeze(-2), places.squeeze(-2)


def _planes(function: Callable, a: Array, n: int) -> Any:
    """PyTorch pools (batch, channels, ...) or (channels, ...): other leading axes are made one for it, and none of it is
    none of the result."""
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


def avg_pool(a: Array, *, kernel: Any, stride: Any, padding: Any, ceil: bool, padded: bool, divisor: int) -> Array:
    if len(kernel) == 1:
        kernel, stride, padding = (1, *kernel), (1, *stride), (0, *padding)
        wide = avg_pool(
            a.unsqueeze(-2), kernel=kernel, stride=stride, padding=padding, ceil=ceil, padded=padded, divisor=divisor
        )
        return wide.squeeze(-2)
    return _planes(lambda x: aten.avg_pool2d(x, kernel, stride, padding, ceil, padded, divisor or None), a, 2)


def avg_pool_grad(
    g: Array, *, size: Any, kernel: Any, stride: Any, padding: Any, ceil: bool, padded: bool, divisor: int
) -> Array:
    if len(kernel) == 1:
        wide = avg_pool_grad(
            g.unsqueeze(-2), size=(1, *size), kernel=(1, *kernel), stride=(1, *stride), padding=(0, *padding),
            ceil=ceil, padded=padded, divisor=divisor,
        )  # fmt: skip
        return wide.squeeze(-2)
    if not g.numel():
        return g.new_empty(*g.shape[:-2], *size)
    flat = g.reshape(1, -1, *g.shape[-2:])
    like = torch.empty((), dtype=g.dtype, device=g.device).expand(*flat.shape[:2], *size)
    found = aten.avg_pool2d_backward(flat, like, kernel, stride, padding, ceil, padded, divisor or None)
    return found.reshape(*g.shape[:-2], *size)


def adaptive(a: Array, *, kernel: Any) -> Array:
    if len(kernel) == 1:
        return adaptive(a.unsqueeze(-2), kernel=(1, *kernel)).squeeze(-2)
    return _planes(lambda x: aten._adaptive_avg_pool2d(x, kernel), a, 2)


def adaptive_grad(g: Array, *, size: Any, kernel: Any) -> Array:
    if len(kernel) == 1:
        return adaptive_grad(g.unsqueeze(-2), size=(1, *size), kernel=(1, *kernel)).squeeze(-2)
    if not g.numel():
        return g.new_empty(*g.shape[:-2], *size)
    flat = g.reshape(1, -1, *g.shape[-2:])
    like = torch.empty((), dtype=g.dtype, device=g.device).expand(*flat.shape[:2], *size)
    return aten._adaptive_avg_pool2d_backward(flat, like).reshape(*g.shape[:-2], *size)
