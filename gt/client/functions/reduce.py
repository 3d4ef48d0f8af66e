"""Reductions."""

from __future__ import annotations

from typing import Any, NamedTuple

from gt.client.apply import apply, unary
from gt.client.autograd import Tensor
from gt.client.default_dtype import DEFAULT
from gt.client.functions.registry import axis_spelling, both, method
from gt.client.views import own
from gt.errors import ArgumentError, ArgumentTypeError
from gt.ops.rules import axes_of, axis_of, broadcast
from gt.ops.table import TABLE
from gt.spec import int64


def axes_for(x: Tensor, axis: Any, dim: Any) -> tuple[int, ...]:
    """The axes to reduce: all if none is named. A 0-d tensor has none."""
    axes = axes_of(axis_spelling(axis, dim), x.handle.spec.ndim)
    return axes if x.handle.spec.ndim else ()


def _reduction(name: str) -> Any:
    row = TABLE[name]

    def reduce(input: Tensor, axis: Any = None, keepdims: bool = False, *, dim: Any = None, keepdim: bool = False,
               dtype: Any = None) -> Tensor:  # fmt: skip
        if dtype is None:
            return apply(row, (input,), (axes_for(input, axis, dim), bool(keepdims or keepdim)))
        return apply(row, (input.to(dtype),), (axes_for(input, axis, dim), bool(keepdims or keepdim))).to(dtype)

    reduce.__name__ = reduce.__qualname__ = name
    reduce.__doc__ = f"`{name}` over all elements, or along an axis or several."
    return both(reduce)


sum = _reduction("sum")
mean = _reduction("mean")
amax = _reduction("amax")
amin = _reduction("amin")
prod = _reduction("prod")
any = _reduction("any")
all = _reduction("all")
_logsumexp = _reduction("logsumexp")


@both
def logsumexp(input: Tensor, axis: Any = None, keepdims: bool = False, *, dim: Any = None, keepdim: bool = False) -> Tensor:
    """The logarithm of the sum of exponentials over all elements, or along an axis or several."""
    if input.is_complex():
        axes, keep = axes_for(input, axis, dim), bool(keepdims or keepdim)
        top = input.real.detach().amax(axes, keepdims=True)
        top = top.isfinite().pick(top, 0.0)
        total = (input - top).exp().sum(axes, keepdims=keep).log()
        return total + top.reshape(total.shape)
    return _logsumexp(input if input.dtype.rank >= 2 else input.to(DEFAULT.dtype), axis, keepdims, dim=dim, keepdim=keepdim)


def _spread(name: str) -> Any:
    row = TABLE[name]

    def reduce(input: Tensor, axis: Any = None, unbiased: bool = True, keepdims: bool = False, *, dim: Any = None,
               correction: Any = None, keepdim: bool = False, ddof: Any = None) -> Tensor:  # fmt: skip
        if isinstance(axis, bool):  # PyTorch's var(unbiased)
            axis, unbiased = None, axis
        correction = ddof if ddof is not None else correction
        by = int(unbiased) if correction is None else correction
        return apply(row, (input, by), (axes_for(input, axis, dim), bool(keepdims or keepdim)))

    reduce.__name__ = reduce.__qualname__ = name
    reduce.__doc__ = f"`{name}` over all elements, or along an axis or several; divided by n - 1 unless told otherwise."
    return both(reduce)


var = _spread("var")
std = _spread("std")


def _with_mean(name: str, spread: Any) -> Any:
    def both_of(input: Tensor, axis: Any = None, unbiased: bool = True, keepdims: bool = False, *, dim: Any = None,
                correction: Any = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:  # fmt: skip
        if isinstance(axis, bool):  # PyTorch's var_mean(unbiased)
            axis, unbiased = None, axis
        axis, keep = axis_spelling(axis, dim), keepdims or keepdim
        return spread(input, axis, unbiased, correction=correction, keepdim=keep), mean(input, axis, keep)

    both_of.__name__ = both_of.__qualname__ = name
    both_of.__doc__ = f"`{name[:3]}` and `mean` over all elements, or along an axis or several."
    return both(both_of)


var_mean = _with_mean("var_mean", var)
std_mean = _with_mean("std_mean", std)


class Extreme(NamedTuple):
    """Values along an axis, and their indices."""

    values: Tensor
    indices: Tensor


def _extreme(name: str, values: Any) -> Any:
    row = TABLE[f"{name}_at"]

    def pick(input: Tensor, axis: Any = None, keepdims: bool = False, *, dim: Any = None, keepdim: bool = False) -> Any:
        axis = axis_spelling(axis, dim)
        if isinstance(axis, Tensor):
            return getattr(input, f"{name}imum")(axis)
        if axis is None:
            return values(input)
        return Extreme(*apply(row, (input,), (axis_of(axis, input.handle.spec.ndim), bool(keepdims or keepdim))))

    pick.__name__ = pick.__qualname__ = name
    pick.__doc__ = f"The {name}imum of all elements, or along an axis with the indices, as PyTorch has it."
    return both(pick)


max = _extreme("max", amax)
min = _extreme("min", amin)


@both
def aminmax(input: Tensor, *, dim: Any = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return amin(input, dim, keepdim), amax(input, dim, keepdim)


def _arg(name: str) -> Any:
    row = TABLE[name]

    def pick(input: Tensor, axis: Any = None, keepdims: bool = False, *, dim: Any = None, keepdim: bool = False) -> Tensor:
        axis = axis_spelling(axis, dim)
        keep = bool(keepdims or keepdim)
        if axis is None or not input.handle.spec.ndim:
            found = apply(row, (input.reshape(-1),), ((0,), False))
            return found.reshape((1,) * input.handle.spec.ndim) if keep else found
        return apply(row, (input,), ((axis_of(axis, input.handle.spec.ndim),), keep))

    pick.__name__ = pick.__qualname__ = name
    pick.__doc__ = "The index of the extreme element, in the flattened tensor or along an axis."
    return both(pick)


argmax = _arg("argmax")
argmin = _arg("argmin")


@both
def count_nonzero(input: Tensor, axis: Any = None, *, dim: Any = None) -> Tensor:
    return sum(input != 0, axis_spelling(axis, dim))


@both
def nansum(input: Tensor, axis: Any = None, keepdims: bool = False, *, dim: Any = None, keepdim: bool = False,
           dtype: Any = None) -> Tensor:  # fmt: skip
    """The sum, ignoring nan."""
    numbers = unary(TABLE["isnan"], input).pick(0.0, input) if input.dtype.rank >= 2 else input
    return sum(numbers, axis_spelling(axis, dim), keepdims or keepdim, dtype=dtype)


@both
def nanmean(input: Tensor, axis: Any = None, keepdims: bool = False, *, dim: Any = None, keepdim: bool = False,
            dtype: Any = None) -> Tensor:  # fmt: skip
    """The mean, ignoring nan."""
    axis, keep, input = axis_spelling(axis, dim), keepdims or keepdim, input if dtype is None else input.to(dtype)
    if input.dtype.rank < 2:
        raise ArgumentTypeError(f"nanmean: expected a floating-point tensor, got {input.dtype.name}: cast with .float() first")
    return nansum(input, axis, keep) / sum(input == input, axis, keep).to(input.dtype)


@method
def sum_to(self: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The sum over the axes along which `shape` would be broadcast to this tensor."""
    have = self.handle.spec.shape
    lead = len(have) - len(shape)
    axes = tuple(range(lead)) + tuple(lead + i for i, d in enumerate(shape) if d == 1 and have[lead + i] != 1)
    out = apply(TABLE["sum"], (self,), (axes, False)) if axes else self
    return out if out.handle.spec.shape == shape else out.reshape(shape)


_T: Any = Tensor


@method
def sum_to_size(self: Tensor, *size: Any) -> Tensor:
    """The sum over the axes along which this shape would be broadcast to this tensor's; integers become int64."""
    shape = tuple(size[0]) if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
    if broadcast(shape, self.shape) != self.shape:
        raise ArgumentError(f"sum_to_size: {shape} does not broadcast to {self.shape}")
    found = sum_to(self, shape)
    return found.to(int64) if found.dtype.rank < 2 and (not shape or shape != self.shape) else own(found, self)
