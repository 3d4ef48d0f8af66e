"""Reductions and normalizations of unmasked elements, as `gt.masked`: masked elements count as the op's neutral element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gt.client.autograd import Tensor
from gt.client.default_dtype import DEFAULT
from gt.client.functions.create import full
from gt.client.functions.dtype_info import iinfo
from gt.client.views import own
from gt.errors import ArgumentError
from gt.ops.rules import axes_of
from gt.spec import bool_, dtype_of, float32, int64

MASKED: dict[str, Callable] = {}


def masked(f: Callable) -> Callable:
    """A function of the `gt.masked` namespace."""
    MASKED[f.__name__.removesuffix("_")] = f
    return f


def _mask(x: Tensor, mask: Tensor) -> Tensor:
    """A mask of the input's shape."""
    if mask.ndim > x.ndim:
        raise IndexError(f"a mask of {mask.shape} has more axes than the tensor {x.shape} it is for")
    return (mask if mask.dtype is bool_ else mask != 0).expand(x.shape)


def _through(x: Tensor, mask: Tensor | None, fill: Any) -> Tensor:
    """The input where the mask is true, the fill value elsewhere."""
    return x if mask is None else _mask(x, mask).pick(x, full((), fill, dtype=x.dtype))


def _least(x: Tensor) -> Any:
    return -math.inf if x.dtype.rank >= 2 else iinfo(x.dtype).min


def _most(x: Tensor) -> Any:
    return math.inf if x.dtype.rank >= 2 else iinfo(x.dtype).max


def _dims(x: Tensor, dim: Any) -> tuple[int, ...]:
    return axes_of(None if dim == () else dim, x.ndim)


def _wide(x: Tensor, dtype: Any) -> Any:
    return dtype_of(dtype) if dtype is not None else x.dtype if x.dtype.rank >= 2 else int64


@masked
def sum_(input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    x = _through(input, mask, 0).to(_wide(input, dtype))
    return x.sum(_dims(input, dim), keepdims=bool(keepdim)).to(x.dtype) if input.ndim else own(x, input)


@masked
def prod(input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    x = _through(input, mask, 1).to(_wide(input, dtype))
    for axis in reversed(_dims(input, dim)) if input.ndim else ():
        x = x.prod(axis, keepdim=bool(keepdim))
    return x if input.ndim or dim is None or dim in ((), []) else own(x, input)  # as PyTorch


@masked
def cumsum(input: Tensor, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    return _through(input, mask, 0).to(dtype or input.dtype).cumsum(dim).to(dtype or input.dtype)


@masked
def cumprod(input: Tensor, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    return _through(input, mask, 1).to(dtype or input.dtype).cumprod(dim).to(dtype or input.dtype)


@masked
def amax(input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    return _through(input, mask, _least(input)).amax(_dims(input, dim), keepdim=bool(keepdim)).to(dtype or input.dtype)


@masked
def amin(input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    return _through(input, mask, _most(input)).amin(_dims(input, dim), keepdim=bool(keepdim)).to(dtype or input.dtype)


@masked
def argmax(input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    return _through(input, mask, _least(input)).argmax(dim, keepdim=bool(keepdim)).to(dtype or input.dtype)


@masked
def argmin(input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    return _through(input, mask, _most(input)).argmin(dim, keepdim=bool(keepdim)).to(dtype or input.dtype)


def _count(x: Tensor, dim: Any, keepdim: bool, mask: Tensor | None) -> Tensor:
    passed = full(x.shape, True) if mask is None else _mask(x, mask)
    return sum_(passed, dim, keepdim=keepdim)


@masked
def mean(input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    if dtype_of(dtype or input.dtype).rank < 2:
        raise ArgumentError(f"mean: expected a floating-point or complex dtype, got {dtype_of(dtype or input.dtype).name}")
    return sum_(input, dim, keepdim=keepdim, dtype=dtype, mask=mask) / _count(input, dim, keepdim, mask)


@masked
def median(input: Tensor, dim: int = -1, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    if input.dtype.rank < 2:
        found = median(input.float(), dim, keepdim=keepdim, mask=mask)
        if bool(found.isnan().any()):
            raise ArgumentError("median of integers: expected at least one unmasked element in each row")
        return found.to(dtype or input.dtype)
    return _through(input, mask, math.nan).nanmedian(dim, keepdim)[0]


@masked
def logsumexp(
    input: Tensor, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    return _through(input, mask, _least(input)).logsumexp(_dims(input, dim), keepdim=keepdim).to(dtype or input.dtype)


@masked
def logaddexp(
    input: Tensor, other: Tensor, *, dtype: Any = None, input_mask: Tensor | None = None, other_mask: Tensor | None = None
) -> Tensor:
    first, second = _through(input, input_mask, _least(input)), _through(other, other_mask, _least(other))
    return first.logaddexp(second).to(dtype or input.dtype)


@masked
def norm(
    input: Tensor, ord: Any = 2.0, dim: Any = None, *, keepdim: bool = False, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    x = _through(input, mask, math.inf if ord == -math.inf else 0)
    x = x if dtype is None else x.to(dtype)
    return x.norm(2.0 if ord is None else ord, _dims(input, dim), keepdim=bool(keepdim)) if input.ndim else x.norm(ord)


def _variance(
    x: Tensor, dim: Any, unbiased: bool | None, correction: float | None, keepdim: bool, dtype: Any, mask: Tensor | None
) -> Tensor:
    if unbiased is not None and correction is not None:
        raise ArgumentError(f"unbiased={unbiased} and correction={correction} set the same: give one of them")
    less = float(correction) if correction is not None else 0.0 if unbiased is False else 1.0
    mask = mask if mask is None or mask.shape == x.shape else mask.clone()  # PyTorch's gradient reads a copy
    want = dtype_of(dtype) if dtype is not None else x.dtype if x.dtype.rank >= 2 else DEFAULT.dtype
    wide = want if want.rank >= 2 else float32
    x = x if x.dtype.rank >= 2 else x.to(wide)
    centre = sum_(x, dim, keepdim=True, dtype=want, mask=mask) / _count(x, dim, True, mask)
    away = x - centre
    total = sum_(away * away.conj(), dim, keepdim=keepdim, dtype=wide, mask=mask)
    count = _count(x, dim, keepdim, mask).to(wide.to_real())
    return (total / (count - less).clamp(min=0.0)).to(want)


@masked
def var(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, *, correction: float | None = None, keepdim: bool = False,
    dtype: Any = None, mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    return _variance(input, dim, unbiased, correction, keepdim, dtype, mask)


@masked
def std(
    input: Tensor, dim: Any = None, unbiased: bool | None = None, *, correction: float | None = None, keepdim: bool = False,
    dtype: Any = None, mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    return _variance(input, dim, unbiased, correction, keepdim, dtype, mask).sqrt()


@masked
def softmax(input: Tensor, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    return _through(input, mask, _least(input)).to(dtype or input.dtype).softmax(dim)


@masked
def log_softmax(input: Tensor, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    return _through(input, mask, _least(input)).to(dtype or input.dtype).log_softmax(dim)


@masked
def softmin(input: Tensor, dim: int, *, dtype: Any = None, mask: Tensor | None = None) -> Tensor:
    return (-_through(input, mask, _most(input)).to(dtype or input.dtype)).softmax(dim)


@masked
def normalize(
    input: Tensor, ord: float, dim: int, *, eps: float = 1e-12, dtype: Any = None, mask: Tensor | None = None
) -> Tensor:
    size = norm(input, ord, dim, keepdim=True, dtype=dtype, mask=mask)
    return _through(input, mask, 0) / size.maximum(eps)
