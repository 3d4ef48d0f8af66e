"""Limits of dtypes, and type promotion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gt.client.autograd import Tensor
from gt.client.default_dtype import DEFAULT
from gt.client.functions.registry import FUNCTIONS, function
from gt.errors import ArgumentTypeError
from gt.ops.rules import promote
from gt.spec import DType, bfloat16, dtype_of, float16, float32, float64


@dataclass(frozen=True, slots=True)
class FInfo:
    """The limits and the precision of a floating-point dtype."""

    dtype: DType
    bits: int
    max: float
    eps: float
    tiny: float

    @property
    def min(self) -> float:
        return -self.max

    @property
    def smallest_normal(self) -> float:
        return self.tiny

    @property
    def resolution(self) -> float:
        return {float16: 1e-3, bfloat16: 1e-2, float32: 1e-6, float64: 1e-15}[self.dtype]


@dataclass(frozen=True, slots=True)
class IInfo:
    """The limits of an integer dtype."""

    dtype: DType
    bits: int
    min: int
    max: int


_EXPONENTS = {float16: (16, 10), bfloat16: (128, 7), float32: (128, 23), float64: (1024, 52)}  # and bits of the fraction


@function
def finfo(dtype: Any = None) -> FInfo:
    """The ends and precision of a floating-point dtype.

    >>> gt.finfo(gt.float16).max
    65504.0
    """
    asked = (DEFAULT.dtype if dtype is None else dtype_of(dtype)).to_real()
    if asked.rank != 2:
        raise ArgumentTypeError(f"finfo: expected floating-point dtypes, got {asked.name}: use iinfo")
    top, fraction = _EXPONENTS[asked]
    largest = (2.0 - 2.0**-fraction) * 2.0 ** (top - 1)
    return FInfo(asked, asked.size * 8, largest, 2.0**-fraction, 2.0 ** (2 - top))


@function
def iinfo(dtype: Any) -> IInfo:
    """The limits of an integer dtype."""
    asked = dtype_of(dtype)
    if asked.rank != 1:
        raise ArgumentTypeError(f"iinfo: expected integer dtypes, got {asked.name}: use finfo")
    bits = asked.size * 8
    return IInfo(asked, bits, -(2 ** (bits - 1)) if asked.is_signed else 0, 2 ** (bits - asked.is_signed) - 1)


@function
def result_type(a: Any, b: Any) -> DType:
    """The promoted dtype of two operands."""
    found = promote(*(x.handle.spec if isinstance(x, Tensor) else type(x) for x in (a, b)))
    return found.to_complex() if isinstance(a, complex) or isinstance(b, complex) else found


@function
def can_cast(from_: Any, to: Any) -> bool:
    """Whether values of one dtype may be written into another: not into a lower category."""
    return dtype_of(from_).rank <= dtype_of(to).rank


@function
def is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)


@function
def is_floating_point(input: Tensor) -> bool:
    return input.handle.spec.dtype.rank == 2


FUNCTIONS["get_default_dtype"] = lambda: DEFAULT.dtype


@function
def set_default_dtype(d: Any) -> None:
    """Set the dtype of tensors made from Python floats, and of quotients of integers."""
    DEFAULT.set(d)


@function
def set_default_tensor_type(t: Any) -> None:
    """`set_default_dtype` by the name of a tensor type: "torch.DoubleTensor", gt.FloatTensor."""
    name = (t if isinstance(t, str) else t.__name__).rsplit(".", 1)[-1]
    kinds = {"FloatTensor": float32, "DoubleTensor": float64, "HalfTensor": float16, "BFloat16Tensor": bfloat16}
    if name not in kinds:
        raise ArgumentTypeError(f"no floating-point tensor type {name}: known are {', '.join(kinds)}")
    DEFAULT.set(kinds[name])
