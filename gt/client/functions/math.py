"""Elementwise functions that are composed of rows, or are named differently from their row."""

from __future__ import annotations

import math
from typing import Any

from gt.client.apply import unary
from gt.client.autograd import Tensor
from gt.client.default_dtype import DEFAULT
from gt.client.functions.create import as_tensor
from gt.client.functions.dtype_info import result_type
from gt.client.functions.elementwise import clamp
from gt.client.functions.in_place import in_place
from gt.client.functions.registry import alias, both, method
from gt.client.saved import saves
from gt.client.writes import assign
from gt.errors import ArgumentTypeError, UnsupportedDTypeError
from gt.ops.table import TABLE
from gt.spec import dtype_of, promote_types


@both
def logit(input: Tensor, eps: float | None = None) -> Tensor:
    x = input.float() if input.dtype.rank < 2 else input
    x = x if eps is None else clamp(x, eps, 1.0 - eps)
    return (x / (1.0 - x)).log()


@both
def sinc(input: Tensor) -> Tensor:
    x = input * math.pi
    return (x == 0).pick(1.0, x.sin() / (x == 0).pick(1.0, x))


@both
def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """Round to the nearest integer, ties to even, or to this many decimals."""
    if decimals == 0:
        return unary(TABLE["round"], input)
    return unary(TABLE["round"], input * 10.0**decimals) / 10.0**decimals


def _real(name: str, *operands: Any, whole: bool) -> list[Tensor]:
    """Operands as tensors of their common dtype: of floats, or (`whole`) of integers as floats."""
    common = result_type(*operands)
    if common.rank > 2 or common.rank < 2 and not whole:
        raise UnsupportedDTypeError(f"{name}: expected {'real numbers' if whole else 'floats'}, got {common.name}")
    return [as_tensor(x).to(common if common.rank == 2 else DEFAULT.dtype) for x in operands]


@both
def xlogy(input: Any, other: Any) -> Tensor:
    x, y = _real("xlogy", input, other, whole=True)
    return (x == 0).pick(0.0, x * y.log())


@both
@saves("input", "other")
def logaddexp(input: Tensor, other: Tensor) -> Tensor:
    if input.is_complex() or other.is_complex():  # PyTorch's difference of angles, which need not be the smallest
        first = input.real >= other.real
        top, low = first.pick(input, other), first.pick(other, input)
        return ((low - top).exp() + 1).log() + top
    top = input.real.maximum(other.real).detach()
    top = top.isfinite().pick(top, 0.0)
    return ((input - top).exp() + (other - top).exp()).log() + top


@both
def logaddexp2(input: Tensor, other: Tensor) -> Tensor:
    top = input.maximum(other).detach()
    return ((input - top).exp2() + (other - top).exp2()).log2() + top


@both
@saves("input", "other", "result")
def hypot(input: Tensor, other: Tensor) -> Tensor:
    """The square root of the sum of both squares, by parts of the larger: squares of large numbers would be infinite."""
    a, b = _real("hypot", input, other, whole=False)
    top = a.detach().abs().maximum(b.detach().abs())
    top = (top.isfinite() & (top != 0)).pick(top, 1.0)
    return ((a / top).square() + (b / top).square()).sqrt() * top


@both
def deg2rad(input: Tensor) -> Tensor:
    return input * (math.pi / 180)


@both
def rad2deg(input: Tensor) -> Tensor:
    return input * (180 / math.pi)


@both
def float_power(input: Tensor, exponent: Any) -> Tensor:
    """`pow` in float64, or in complex128 for complex numbers."""
    both_ = [x.dtype.is_complex if isinstance(x, Tensor) else isinstance(x, complex) for x in (input, exponent)]
    wide = dtype_of("complex128" if any(both_) else "float64")
    base = input if isinstance(input, Tensor) else as_tensor(input)
    other = exponent.to(wide) if isinstance(exponent, Tensor) else exponent if any(both_) else float(exponent)
    return base.to(wide) ** other


@method
def float_power_(self: Tensor, exponent: Any) -> Tensor:
    """`float_power` in place; the variable must be float64."""
    if self.dtype is not dtype_of("float64"):
        raise ArgumentTypeError(f"float_power_ gives float64, and this variable is {self.dtype.name}: use float_power")
    return assign(self, float_power(self, exponent))


@both
def ldexp(input: Tensor, other: Tensor) -> Tensor:
    x = input.clone()  # PyTorch's gradient reads the result, so the input may change
    if input.dtype.rank < 2 or other.dtype.rank > 1:
        return x * 2.0**other
    wide = promote_types(input.dtype.to_real(), DEFAULT.dtype)
    return (x * 2.0 ** other.to(wide)).to(input.dtype)


for _f in (logit, sinc, xlogy, hypot, round):
    alias(f"{_f.__name__}_", in_place(_f.__name__, _f))
for _f in (deg2rad, rad2deg, ldexp):
    method(in_place(_f.__name__, _f))
