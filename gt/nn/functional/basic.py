"""Embeddings and dropout."""

from __future__ import annotations

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.creation import ones
from gt.client.functions.operators import assign
from gt.client.session import here
from gt.ops.table import TABLE


def embedding(
    input: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Tensor:  # fmt: skip
    """The rows of `weight` that the input numbers; row `padding_idx` gets no gradient."""
    if max_norm is not None or scale_grad_by_freq:
        raise NotImplementedError("embedding with max_norm or scale_grad_by_freq")
    rows = weight.shape[0]
    padding = -1
    if padding_idx is not None:
        if not -rows <= padding_idx < rows:
            raise ValueError(f"padding_idx {padding_idx} is none of the {rows} rows")
        padding = padding_idx % rows
    return apply(TABLE["embedding"], (weight, input), (padding,))


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Elements set to zero with probability p and the rest scaled up, when training."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"a probability is from 0 to 1, not {p}")
    if not training or p == 0:
        return input
    session = here().session
    shape = input.data.spec.shape
    y = apply(TABLE["dropout"], (input, float(p), session.seed, next(session.draws)), (shape, (0,) * len(shape)))
    return assign(input, y) if inplace else y


def _feature_dropout(input: Tensor, p: float, training: bool, axes: int, name: str) -> Tensor:
    """Whole channels set to zero: a mask over the leading axes."""
    if input.ndim not in (axes + 1, axes + 2):
        raise ValueError(f"{name} wants (channels, ...) or (batch, channels, ...), not {input.shape}")
    if not training or p == 0:
        return input
    lead = input.shape[: input.ndim - axes]
    mask = dropout(ones(*lead, dtype=input.dtype), p)
    return input * mask.reshape(*lead, *[1] * axes)


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _feature_dropout(input, p, training, 1, "dropout1d")


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _feature_dropout(input, p, training, 2, "dropout2d")
