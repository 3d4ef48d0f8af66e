"""One kernel for the two gradients of a convolution, of its images and of its weight: much of a small one is preparation,
and most of that is the same for both."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch

from gt.ops import Kind
from gt.program import Instruction
from gt.worker.engine.torch import layers
from gt.worker.engine.torch.threads import is_long

Array = torch.Tensor
OF_WEIGHT = {"conv_transpose": False, "conv_weight_grad": True}


def half(ins: Instruction) -> tuple[Hashable, bool] | None:
    """A key of a convolution's gradient, and whether it is the weight's; None for other instructions. The first operand of both
    is the gradient of the result, the second the weight, or the images."""
    kind, of_weight = ins.kind, OF_WEIGHT.get(ins.op.name)
    if of_weight is None or len(kind.ins) != 2 or kind.ins[0].dtype.name != "float32":
        return None
    other, made = kind.ins[1].shape, kind.outs[0].shape
    images, weight = (other, made) if of_weight else (made, other)
    how = {name: value for name, value in kind.settings.items() if name != "size"}
    if not _is_result(kind.ins[0].shape, images, weight, **how):
        return None
    return (ins.operands[0], images, weight, *how.values(), is_long(kind)), of_weight


def _is_result(shape: Any, images: Any, weight: Any, *, stride: Any, padding: Any, dilation: Any, groups: int) -> bool:
    """Whether a convolution of these images by this weight has this shape, and has elements."""
    if not all((*shape, *images, *weight)) or (shape[:2], images[1]) != ((images[0], weight[0]), weight[1] * groups):
        return False
    sizes = zip(shape[2:], images[2:], weight[2:], stride, padding, dilation)
    return all(0 <= n + 2 * p - e * (k - 1) - 1 - (count - 1) * s < s for count, n, k, s, p, e in sizes)


def of_pair(kind: Kind) -> Callable[..., Any] | None:
    """The kernel of a pair whose last instruction is of this kind."""
    of_weight = OF_WEIGHT.get(kind.row.name)
    if of_weight is None:
        return None
    how = {name: value for name, value in kind.settings.items() if name != "size"}
    return partial(_gradients, int(of_weight), **how)


def _gradients(at: int, calls: list[tuple[Array, Array]], **how: Any) -> list[tuple[Array]]:
    """Both gradients; that of the weight is the call `at`."""
    (g, images), (_, weight) = calls[at], calls[1 - at]
    if g.is_contiguous() and images.is_contiguous() and weight.is_contiguous():
        to_images, to_weight = layers.conv_grads(g, images, weight, **how, wanted=[True, True])
    else:  # their kernels choose layouts each for itself
        to_images = layers.conv_transpose(g, weight, size=images.shape[2:], **how)
        to_weight = layers.conv_weight_grad(g, images, size=weight.shape[2:], **how)
    return [(to_images,), (to_weight,)] if at else [(to_weight,), (to_images,)]
