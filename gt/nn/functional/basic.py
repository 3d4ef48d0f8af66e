"""Linear maps, embeddings, dropout and padding."""

from __future__ import annotations

from typing import Any

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.creation import arange
from gt.client.functions.products import linear as linear
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
    return apply(TABLE["dropout"], (input, float(p), session.seed, next(session.draws)), (shape, (0,) * len(shape)))


def _feature_dropout(input: Tensor, p: float, training: bool, axes: int, name: str) -> Tensor:
    """Whole channels set to zero: a mask over the leading axes."""
    if input.ndim not in (axes + 1, axes + 2):
        raise ValueError(f"{name} wants (channels, ...) or (batch, channels, ...), not {input.shape}")
    if not training or p == 0:
        return input
    lead = input.shape[: input.ndim - axes]
    from gt.client.functions.creation import ones

    mask = dropout(ones(lead, dtype=input.dtype), p)
    return input * mask.reshape(*lead, *[1] * axes)


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _feature_dropout(input, p, training, 1, "dropout1d")


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _feature_dropout(input, p, training, 2, "dropout2d")


def pad(input: Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> Tensor:
    """Widen the last axes: `pad` is (left, right) of the last axis, then of the one before it, and so on."""
    widths = [tuple(pad[i : i + 2]) for i in range(0, len(pad), 2)]
    if len(pad) % 2 or len(widths) > input.ndim:
        raise ValueError(f"cannot pad {input.shape} by {tuple(pad)}: want (before, after) for some of the last axes")
    if mode == "constant":
        full = [(0, 0)] * (input.ndim - len(widths)) + widths[::-1]
        fill = 0 if value is None else value
        kind = float if input.data.spec.dtype.rank == 2 else int
        return apply(TABLE["pad"], (input, kind(fill)), (tuple(full),))
    if mode not in _FOLDS:
        raise ValueError(f"no padding {mode!r}: known are constant, {', '.join(_FOLDS)}")
    for i, (before, after) in enumerate(widths):
        axis = input.ndim - 1 - i
        if before or after:
            input = _folded(input, axis, before, after, mode)
    return input


def _reflected(i: Tensor, n: int) -> Tensor:
    return (n - 1) - ((i.abs() - (n - 1)).abs())


_FOLDS = {
    "reflect": _reflected,
    "replicate": lambda i, n: i.maximum(0).minimum(n - 1),
    "circular": lambda i, n: i.remainder(n),
}


def _folded(input: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    """One axis widened by elements of its own."""
    n = input.shape[axis]
    most = {"reflect": n - 1, "circular": n}.get(mode)
    if most is not None and max(before, after) > most:
        raise ValueError(f"{mode} padding of an axis of {n} is at most {most}, not {(before, after)}")
    places = _FOLDS[mode](arange(-before, n + after), n)
    return apply(TABLE["index_select"], (input, places), (axis,))
