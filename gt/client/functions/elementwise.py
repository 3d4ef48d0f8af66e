"""Spellings of pointwise ops: aliases, optional arguments, and in-place forms."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from gt.client.apply import apply, binary, operand
from gt.client.autograd import Tensor
from gt.client.functions.create import as_tensor, full
from gt.client.functions.dtype_info import finfo
from gt.client.functions.in_place import in_place
from gt.client.functions.registry import FUNCTIONS, alias, both, function, method
from gt.errors import ArgumentError, ArgumentTypeError
from gt.ops.table import TABLE, rows
from gt.spec import DType, dtype_of


@both
def add(input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    """`input + alpha * other`."""
    input = as_tensor(input)
    if alpha == 1:
        return input + other
    if isinstance(other, Tensor):
        return apply(TABLE["add_scaled"], (input, other, alpha))
    if isinstance(alpha, float) and isinstance(other, int) and input.dtype.rank < 2:
        raise ArgumentError(f"add: expected an integer alpha for integers, got {alpha}")
    return input + alpha * other


@both
def add_scaled(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """`a + b * scale` in one pass."""
    return apply(TABLE["add_scaled"], (a, b, scale))


@both
def sub(input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    """`input - alpha * other`."""
    return as_tensor(input) - other if alpha == 1 else add(input, other, alpha=-alpha)


@both
def rsub(input: Any, other: Any, *, alpha: float = 1) -> Tensor:
    """`other - alpha * input`."""
    return other - as_tensor(input) * alpha if alpha != 1 else other - as_tensor(input)


@both
def div(input: Any, other: Any, *, rounding_mode: str | None = None) -> Tensor:
    """`input / other`, exact or rounded by "trunc" or "floor"."""
    if rounding_mode is None:
        return as_tensor(input) / other
    if rounding_mode == "floor":
        return as_tensor(input) // other
    if rounding_mode != "trunc":
        raise ArgumentError(f"no rounding_mode {rounding_mode!r}: known are None, 'trunc', 'floor'")
    return trunc_divide(as_tensor(input), operand(other))


def _power(input: Any, exponent: Any) -> Tensor:
    """`input` to the power of `exponent`, element by element."""
    return binary(TABLE["pow"], input if isinstance(input, Tensor) else as_tensor(input), exponent)


_power.__name__ = _power.__qualname__ = "pow"
alias("pow", _power)


def trunc_divide(a: Tensor, b: Any) -> Tensor:
    if a.dtype.rank == 2 or isinstance(b, float) or isinstance(b, Tensor) and b.dtype.rank == 2:
        return (a / b).trunc()
    return (a - a.fmod(b)) // b  # exact and truncated: no rounding error


@both
def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """Limit elements to `min` and `max`: numbers or tensors, of which one may be None."""
    if min is None and max is None:
        raise ArgumentError("clamp: expected a min, a max or both, got neither")
    if min is None:
        return input.minimum(operand(max))
    if max is None:
        return input.maximum(operand(min))
    low, high = operand(min), operand(max)
    if isinstance(low, Tensor) != isinstance(high, Tensor):
        return input.maximum(low).minimum(high)
    return apply(TABLE["clamp"], (input, low, high))


alias("clip", clamp)


@both
def clamp_min(input: Tensor, min: Any) -> Tensor:
    return clamp(input, min)


@both
def clamp_max(input: Tensor, max: Any) -> Tensor:
    return clamp(input, None, max)


@both
def frac(input: Tensor) -> Tensor:
    return input - input.trunc()


@both
def lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    """`input + weight * (end - input)`."""
    return apply(TABLE["lerp"], (input, end, operand(weight)))


@both
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """`input + value * tensor1 * tensor2`."""
    return apply(TABLE["addcmul"], (input, tensor1, tensor2, value))


@both
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """`input + value * tensor1 / tensor2`."""
    return apply(TABLE["addcdiv"], (input, tensor1, tensor2, value))


@both
def nextafter(input: Tensor, other: Tensor) -> Tensor:
    """The next representable number towards the other."""
    return apply(TABLE["nextafter"], (input, other))


@function
def where(condition: Tensor, input: Any = None, other: Any = None) -> Any:
    """`input` where the condition is true, else `other`; without both, the indices of true elements, for which the condition is
    read."""
    if input is None and other is None:
        return condition.nonzero(as_tuple=True)
    return condition.pick(input, other)


@method
def where_(self: Tensor, condition: Tensor, other: Any) -> Tensor:
    """This tensor where the condition is true, else `other`."""
    return condition.pick(self, other)


_T: Any = Tensor
_T.where = where_
del _T.where_


@both
def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """A copy with `value` where the mask is true."""
    if mask.dtype is not dtype_of("bool"):
        raise ArgumentTypeError(f"masked_fill: expected a mask of booleans, got {mask.dtype.name}")
    if isinstance(value, Tensor) and value.ndim:
        raise ArgumentError(f"masked_fill: expected one value, a number or a tensor of no axes, got {value.shape}")
    given = value.dtype if isinstance(value, Tensor) else dtype_of(type(value))
    if given.rank == 3 and input.dtype.rank < 3:
        raise RuntimeError(f"value cannot be converted to type {input.dtype.name} without overflow: it is complex")
    value = value.to(input.dtype) if isinstance(value, Tensor) else operand(value)
    if not isinstance(value, Tensor) and dtype_of(type(value)).rank > input.dtype.rank:
        if input.dtype.rank or isinstance(value, complex):
            raise ArgumentTypeError(f"cannot fill a tensor of {input.dtype.name} with {value}")
        value = bool(value)
    if not isinstance(value, Tensor) and not _fits(value, input.dtype):
        raise RuntimeError(f"value {value} cannot be converted to type {input.dtype.name} without overflow")
    return mask.pick(value, input)


def _fits(value: float, dtype: DType) -> bool:
    """Whether a number is within the limits of a dtype; infinities and nan are values of every float."""
    if dtype.rank == 1:
        least, most = _limits(dtype)
        return least <= value <= most
    if dtype.rank < 2 or not isinstance(value, (int, float)) or isinstance(value, float) and not math.isfinite(value):
        return True
    return abs(value) <= _limits(dtype)[1]


@cache
def _limits(dtype: DType) -> tuple[float, float]:
    info = FUNCTIONS["iinfo" if dtype.rank == 1 else "finfo"](dtype)
    return info.min, info.max


@function
def fill(input: Tensor, value: Any) -> Tensor:
    """A tensor of one value with this shape and dtype; only the value gets a gradient."""
    if not isinstance(value, Tensor):
        value = full((), value, dtype=input.dtype)
    if value.ndim:
        raise ArgumentError(f"fill: expected one value, a number or a tensor of no axes, got {value.shape}")
    return full(input.shape, False).pick(input, value.to(input.dtype))


@both
def fmax(input: Tensor, other: Tensor) -> Tensor:
    """The larger element, ignoring nan."""
    return input.isnan().pick(other, other.isnan().pick(input, input.maximum(other)))


@both
def fmin(input: Tensor, other: Tensor) -> Tensor:
    """The smaller element, ignoring nan."""
    return input.isnan().pick(other, other.isnan().pick(input, input.minimum(other)))


@both
def heaviside(input: Tensor, values: Tensor) -> Tensor:
    return (input == 0).pick(values, (input > 0).to(input.dtype))


@both
def isposinf(input: Tensor) -> Tensor:
    return input == math.inf


@both
def isneginf(input: Tensor) -> Tensor:
    return input == -math.inf


@both
def isclose(input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    if rtol < 0 or atol < 0:
        raise ArgumentError(f"isclose: expected tolerances of 0 or more, got rtol={rtol} and atol={atol}")
    if input.dtype is not other.dtype:
        raise ArgumentTypeError(f"isclose: expected tensors of one dtype, got {input.dtype.name} and {other.dtype.name}")
    if input.dtype is dtype_of("bool"):
        return input == other
    found = (input == other) | ((input - other).abs() <= other.abs() * rtol + atol) & other.isfinite()
    return found | input.isnan() & other.isnan() if equal_nan else found


@both
def allclose(input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether all elements are close (reads the result)."""
    return bool(isclose(input, other, rtol, atol, equal_nan).all().item())


@both
def equal(input: Tensor, other: Tensor) -> bool:
    """Whether shapes and all elements are equal (reads the result)."""
    return input.shape == other.shape and bool((input == other).all().item())


@both
def nan_to_num(input: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    if input.dtype.rank < 2:
        return input
    ends = finfo(input.dtype)
    x = input.isnan().pick(nan, input)
    x = (x == math.inf).pick(ends.max if posinf is None else posinf, x)
    return (x == -math.inf).pick(ends.min if neginf is None else neginf, x)


NAMES = {
    "absolute": "abs", "negative": "neg", "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div",
    "power": "pow", "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arctan2": "atan2", "arcsinh": "asinh",
    "arccosh": "acosh", "arctanh": "atanh", "fix": "trunc", "greater": "gt", "greater_equal": "ge", "less": "lt",
    "less_equal": "le", "not_equal": "ne", "invert": "bitwise_not",
}  # fmt: skip
for _new, _old in NAMES.items():
    alias(_new, FUNCTIONS[_old])
_SHAPED = ("clamp", "clip", "clamp_min", "clamp_max", "frac", "lerp", "addcmul", "addcdiv",
           "nan_to_num", "add", "sub", "div")  # fmt: skip
for _name in [*_SHAPED, *NAMES, *(r.name for r in rows() if r.pointwise and r.name in FUNCTIONS)]:
    alias(f"{_name}_", in_place(_name, FUNCTIONS[_name]))
alias("masked_fill_", in_place("masked_fill", masked_fill, filled=lambda at, mask, value: (at[mask.expand(at.shape)], value)))
for _f in (heaviside, nextafter):
    method(in_place(_f.__name__, _f))
