"""How a CUDA graph lays out images: with channels last, as the tensor cores' convolutions take them, if its program gains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gt.program import Program
from gt.worker.programs.passes.image_layout import channels_last


def images_last(program: Program, at: torch.device) -> frozenset[int]:
    """The inputs of a program to lay out with channels last. Without that cuDNN transposes the operands and results of each
    convolution, which takes a third of ResNet-18's step on an H200."""
    if at.type != "cuda" or not torch.backends.cudnn.allow_tf32 or torch.cuda.get_device_capability(at) < (8, 0):
        return frozenset()
    return channels_last(program)


def on_images(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that gets its images with channels last, and gives them so."""

    def run(*operands: Any) -> Any:
        return kernel(*[
            o.contiguous(memory_format=torch.channels_last) if isinstance(o, torch.Tensor) and o.ndim == 4 else o
            for o in operands
        ])  # fmt: skip

    return run


def is_packed(a: torch.Tensor) -> bool:
    return a.is_contiguous() or a.ndim == 4 and a.is_contiguous(memory_format=torch.channels_last)


def layout(last: bool) -> torch.memory_format:
    return torch.channels_last if last else torch.contiguous_format
