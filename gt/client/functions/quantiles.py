"""Quantiles, and the median without nans."""

from __future__ import annotations

from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import as_tensor, full
from gt.client.functions.reduce import Extreme
from gt.client.functions.registry import axis_spelling, both
from gt.client.saved import note_saved
from gt.errors import ArgumentError, ArgumentTypeError
from gt.ops.rules import axis_of
from gt.spec import float32, float64, int64

WAYS = ("linear", "lower", "higher", "midpoint", "nearest")


@both
def quantile(input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> Tensor:
    """The q-quantile, between two elements by `interpolation`; nan if any element is nan."""
    return _quantile(input, q, dim, keepdim, interpolation, skip=False)


@both
def nanquantile(
    input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """`quantile` ignoring nan."""
    return _quantile(input, q, dim, keepdim, interpolation, skip=True)


def _quantile(input: Tensor, q: Any, dim: int | None, keepdim: bool, interpolation: str, skip: bool) -> Tensor:
    share = _checked(input, q, interpolation)
    values, at = (input.reshape(-1), 0) if dim is None else (input, axis_of(dim, input.ndim))
    values = values.reshape(1) if not values.ndim else values.movedim(at, -1)
    values = values.sort(-1).values  # (..., n), nans last
    n = values.shape[-1]
    if not n:
        raise ArgumentError(f"quantile: expected at least one element along the axis, got {input.shape}")
    number = values == values
    last = (number.to(input.dtype).sum(-1, keepdim=True) - 1.0).clamp(min=0.0)
    if skip:
        ranks = last * share.reshape(-1)
    else:  # a line with a nan gives its last element, a nan
        ranks = number.all(-1, keepdim=True).pick(share.reshape(-1) * (n - 1), full((), float(n - 1), dtype=input.dtype))
    found = _between(values, ranks.detach(), interpolation).movedim(-1, 0)  # (quantiles, ...)
    if keepdim and input.ndim:
        found = found.unsqueeze(at + 1) if dim is not None else found.reshape((-1,) + (1,) * input.ndim)
    elif dim is not None and not input.ndim:
        found = found.reshape(-1)
    return found if share.ndim else found.select(0, 0)


def _between(values: Tensor, ranks: Tensor, interpolation: str) -> Tensor:
    """The elements at ranks, which may be fractional."""
    if interpolation in ("lower", "higher", "nearest"):
        ranks = {"lower": ranks.floor, "higher": ranks.ceil, "nearest": ranks.round}[interpolation]()
    below = values.gather(-1, ranks.to(int64))
    if interpolation not in ("linear", "midpoint"):
        return below
    above = values.gather(-1, ranks.ceil().to(int64))
    return below.lerp(above, 0.5 if interpolation == "midpoint" else ranks - ranks.floor())


def _checked(input: Tensor, q: Any, interpolation: str) -> Tensor:
    if interpolation not in WAYS:
        raise ArgumentError(f"no interpolation {interpolation!r}: known are {', '.join(WAYS)}")
    if input.dtype not in (float32, float64):
        raise ArgumentTypeError(f"quantile: expected float32 or float64, got {input.dtype.name}")
    if not isinstance(q, Tensor):
        if not 0 <= q <= 1:
            raise ArgumentError(f"quantile: expected q from 0 to 1, got {q}")
        return as_tensor(q).to(input.dtype)
    if q.ndim > 1 or q.dtype is not input.dtype:
        raise ArgumentError(
            f"quantile: expected q as a number or one axis of {input.dtype.name}, got {q.dtype.name} of {q.shape}"
        )
    return q


@both
def nanmedian(input: Tensor, axis: Any = None, keepdims: bool = False, *, dim: Any = None, keepdim: bool = False) -> Any:
    """The median ignoring nan."""
    axis = axis_spelling(axis, dim)
    if axis is None:
        found = nanmedian(input.reshape(-1), 0).values
        return note_saved(found, input, found)
    at, keep = axis_of(axis, input.ndim), bool(keepdims or keepdim)
    values, places = input.sort(at)  # nans come last
    middle = ((input == input).to(int64).sum(at, keepdim=True) - 1).clamp(min=0) // 2
    picked = [t.gather(at, middle) for t in (values, places)]
    values, places = picked if keep else [t.squeeze(at) for t in picked]
    return note_saved(Extreme(values, places), places)
