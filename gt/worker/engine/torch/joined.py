"""Concatenation without a copy, of tensors that lie side by side in memory: the kernel for attention writes the gradients of
queries, keys and values into one tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def joining(cat: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A kernel that concatenates by `cat` only where its operands are not pieces of one tensor, in their order. Its result has
    their memory, which nothing else may use."""
    axis = cat.keywords["axis"]  # type: ignore[attr-defined]

    def run(*pieces: torch.Tensor) -> Any:
        whole = side_by_side(pieces, axis)
        return cat(*pieces) if whole is None else whole

    return run


def side_by_side(pieces: tuple[torch.Tensor, ...], axis: int) -> torch.Tensor | None:
    """The tensor that these are pieces of, one behind another along an axis; None if they are not. Pieces of one index have any
    stride there."""
    first = pieces[0]
    step = int(pieces[1].storage_offset() - first.storage_offset())
    size, stride = first.shape[axis], list(first.stride())
    if size == 1:
        stride[axis] = step
    if step <= 0 or step != size * stride[axis]:
        return None
    for i, piece in enumerate(pieces):
        if piece.untyped_storage().data_ptr() != first.untyped_storage().data_ptr() or piece.dtype is not first.dtype:
            return None
        if piece.shape != first.shape or piece.storage_offset() != first.storage_offset() + i * step:
            return None
        if any(a != b for d, (a, b) in enumerate(zip(piece.stride(), stride)) if d != axis):
            return None
    shape = [*first.shape]
    shape[axis] *= len(pieces)
    return first.as_strided(shape, stride)
