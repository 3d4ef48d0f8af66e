"""Batch norms of few elements in training on the CPU, by `gt.small` in C. Operands are contiguous float32."""

from __future__ import annotations

import torch

from gt.small import NATIVE

Array = torch.Tensor
MOST = 1 << 16  # elements: PyTorch's kernels take larger ones by several threads


def takes(a: Array) -> bool:
    """Whether it is small and not traced by a compiler."""
    return NATIVE is not None and 0 < a.numel() <= MOST and a.is_contiguous() and not torch._C._len_torch_dispatch_stack()


def _sizes(a: Array) -> tuple[int, int, int]:
    images, channels = a.shape[:2]
    return images, channels, a.numel() // (images * channels)


def forward(a: Array, w: Array, b: Array, eps: float) -> tuple[Array, ...]:
    """The result, the mean, one over the deviation, and the unbiased variance."""
    made = torch.empty_like(a), torch.empty_like(w), torch.empty_like(w), torch.empty_like(w)  # `unbind` takes 10 us more
    NATIVE.batch_norm(*_sizes(a), *[t.data_ptr() for t in (a, w, b, *made)], eps)
    return made


def backward(g: Array, a: Array, mean: Array, rstd: Array, w: Array) -> tuple[Array, ...]:
    """The gradients of the input, of the weight and of the bias."""
    made = torch.empty_like(a), torch.empty_like(w), torch.empty_like(w)
    NATIVE.batch_norm_gradient(*_sizes(a), *[t.data_ptr() for t in (g, a, mean, rstd, w, *made)])
    return made
