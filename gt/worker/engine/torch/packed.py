"""Tensors as Triton's kernels take them: contiguous, and aligned as the pointers were for which a kernel was compiled."""

from __future__ import annotations

import torch

ALIGNED = 16  # bytes


def packed(a: torch.Tensor, layout: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    """The tensor, or a copy."""
    return a if a.is_contiguous(memory_format=layout) and is_aligned(a) else a.clone(memory_format=layout)


def is_aligned(a: torch.Tensor) -> bool:
    return a.data_ptr() % ALIGNED == 0
