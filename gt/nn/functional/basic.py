"""Embeddings and dropout."""

from __future__ import annotations

import warnings
from typing import Any

from gt.autograd.function import Function
from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions import FUNCTIONS
from gt.client.functions.create import arange, ones, zeros
from gt.client.functions.elementwise import where
from gt.client.functions.products import einsum
from gt.client.functions.sparse_gradients import with_sparse_gradient
from gt.client.grad_mode import no_grad
from gt.client.here import here
from gt.client.saved import saves
from gt.client.writes import assign
from gt.errors import ArgumentError
from gt.ops.table import TABLE


@saves("input1", "input2", "weight")
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`input1 @ weight @ input2`, with a matrix for each output."""
    y = einsum("...i,oij,...j->...o", input1, weight, input2)
    return y if bias is None else y + bias


def _row(padding_idx: int | None, rows: int) -> int:
    if padding_idx is None:
        return -1
    if not -rows <= padding_idx < rows:
        raise ArgumentError(f"padding_idx {padding_idx} is out of range for {rows} rows")
    return padding_idx % rows


@no_grad()
def _hold(weight: Tensor, input: Tensor, most: float, order: float) -> None:
    """Rescale the input's rows whose norm is above `most` to that norm, in the table itself."""
    size = weight.norm(float(order), dim=1, keepdim=True)
    asked = _counts(input, weight) > 0
    weight.handle = where(asked & (size > most), weight * (most / (size + 1e-7)), weight).handle


def _counts(input: Tensor, weight: Tensor) -> Tensor:
    """The number of uses of each row, as (rows, 1)."""
    ones_ = ones(input.numel(), dtype=weight.dtype)
    return zeros(weight.shape[0], dtype=weight.dtype).index_add(0, input.reshape(-1), ones_).unsqueeze(1)


class _Shared(Function):
    """Rows, with gradients divided by the number of uses of each row."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: Tensor) -> Tensor:
        ctx.save_for_backward(counts)
        return rows * 1

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g / ctx.saved_tensors[0], None


def embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    """The rows of `weight` at the input's indices; row `padding_idx` gets no gradient. With `max_norm`, used rows with a larger
    norm are first rescaled to it in `weight` itself. With `sparse`, a `weight` that is a leaf gets a sparse gradient."""
    if weight.ndim != 2:
        raise ArgumentError(f"embedding: expected a weight (rows, width), got {weight.shape}")
    padding = _row(padding_idx, weight.shape[0])
    if max_norm is not None:
        _hold(weight, input, float(max_norm), norm_type)
    rows = apply(TABLE["embedding"], (weight, input), (padding,))
    if not scale_grad_by_freq:
        return with_sparse_gradient(rows) if sparse else rows
    counts = apply(TABLE["embedding"], (_counts(input, weight.detach()), input), (-1,))
    return _Shared.apply(rows, counts)


@saves("weight", "offsets")
def embedding_bag(
    input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None, norm_type: float = 2,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """The sum, mean or maximum of the rows in each bag: a row of a 2-d input, or the indices from one offset to the next."""
    if mode not in ("sum", "mean", "max"):
        raise ArgumentError(f"no mode {mode!r}: known are sum, mean, max")
    if mode == "max" and sparse:
        raise ArgumentError("embedding_bag: mode='max' has no sparse gradients: leave out sparse=True")
    if per_sample_weights is not None and mode != "sum":
        raise ArgumentError(f"per_sample_weights go with mode='sum', not {mode}")
    flat, padding = input.reshape(-1), _row(padding_idx, weight.shape[0])
    if input.ndim == 2:
        if offsets is not None:
            raise ArgumentError(f"embedding_bag of a 2-d input {input.shape} has one bag in each row: leave out offsets")
        bags, bag = input.shape[0], arange(input.numel()) // max(input.shape[1], 1)
    else:
        if offsets is None:
            raise ArgumentError(f"embedding_bag of an input of shape {input.shape} needs offsets, the start of each bag")
        offsets = offsets[:-1] if include_last_offset else offsets
        bags = offsets.shape[0]
        bag = FUNCTIONS["searchsorted"](offsets, arange(input.numel()), right=True) - 1
    rows = embedding(flat, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    kept = (flat != padding).to(weight.dtype).unsqueeze(1)
    if mode == "max":
        low = where(kept > 0, rows, float("-inf"))
        found = zeros(bags, weight.shape[1], dtype=weight.dtype)
        places = bag.unsqueeze(1).expand(rows.shape)
        found = found.scatter_reduce(0, places, low, "amax", include_self=False)
        return where(found == float("-inf"), 0.0, found)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.reshape(-1, 1)
    total = zeros(bags, weight.shape[1], dtype=weight.dtype).index_add(0, bag, rows * kept)
    if mode == "sum":
        return total
    return total / zeros(bags, 1, dtype=weight.dtype).index_add(0, bag, kept).maximum(1.0)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Elements set to zero with probability p and the rest scaled up, when training."""
    if not 0.0 <= p <= 1.0:
        raise ArgumentError(f"expected a probability from 0 to 1, got {p}")
    if not training or p == 0:
        return input
    session = here().session
    shape = input.handle.spec.shape
    y = apply(TABLE["dropout"], (input, float(p), session.seed, next(session.draws)), (shape, (0,) * len(shape)))
    return assign(input, y) if inplace else y


def _feature_dropout(input: Tensor, p: float, training: bool, axes: int, name: str) -> Tensor:
    """Whole channels set to zero: a mask over the leading axes."""
    if input.ndim not in (axes + 1, axes + 2):
        raise ArgumentError(f"{name}: expected (channels, ...) or (batch, channels, ...), got {input.shape}")
    if not training or p == 0:
        return input
    lead = input.shape[: input.ndim - axes]
    mask = dropout(ones(*lead, dtype=input.dtype), p)
    return input * mask.reshape(*lead, *[1] * axes)


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    y = _feature_dropout(input, p, training, 1, "dropout1d")
    return assign(input, y) if inplace and y is not input else y


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if input.ndim == 2:
        warnings.warn("dropout2d: a 2-D input is taken as (batch, channels) and dropped element by element, as in PyTorch, "
                      "where that is deprecated: use dropout", stacklevel=2)  # fmt: skip
        return dropout(input, p, training, inplace)
    y = _feature_dropout(input, p, training, 2, "dropout2d")
    return assign(input, y) if inplace and y is not input else y


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    y = _feature_dropout(input, p, training, 3, "dropout3d")
    return assign(input, y) if inplace and y is not input else y


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """Dropout that keeps mean 0 and variance 1, for networks of selu: dropped elements become selu's least value."""
    if not 0.0 <= p <= 1.0:
        raise ArgumentError(f"expected a probability from 0 to 1, got {p}")
    if not training or p == 0:
        return input
    least = -1.7580993408473766
    kept = dropout(ones(*input.shape, dtype=input.dtype), p) > 0
    scale = ((1 - p) * (1 + p * least**2)) ** -0.5 if p < 1 else 0.0
    y = where(kept, input, least) * scale - scale * least * p
    return assign(input, y) if inplace else y


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """`alpha_dropout` of whole channels."""
    if not 0.0 <= p <= 1.0:
        raise ArgumentError(f"expected a probability from 0 to 1, got {p}")
    if not training or p == 0:
        return input
    if input.ndim < 2:
        raise ArgumentError(f"feature_alpha_dropout: expected (batch, channels, ...), got {input.shape}")
    least = -1.7580993408473766
    kept = dropout(ones(*input.shape[:2], *[1] * (input.ndim - 2), dtype=input.dtype), p) > 0
    scale = ((1 - p) * (1 + p * least**2)) ** -0.5 if p < 1 else 0.0
    y = where(kept, input, least) * scale - scale * least * p
    return assign(input, y) if inplace else y
