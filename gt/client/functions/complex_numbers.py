"""Complex tensors: construction, parts, conjugates. A real tensor is its own conjugate and its own real part."""

from __future__ import annotations

import math
from typing import Any

from gt.client.apply import apply, binary, unary
from gt.client.autograd import Tensor
from gt.client.functions.in_place import in_place
from gt.client.functions.join import stack
from gt.client.functions.registry import FUNCTIONS, alias, both, function, method
from gt.client.strides import offset, strides
from gt.client.views import Custom, custom_view, own
from gt.client.writes import assign
from gt.ops.table import TABLE
from gt.spec import complex64, complex128

_T: Any = Tensor


def _is_complex(input: Tensor) -> bool:
    return input.handle.spec.dtype.rank == 3


@both
def conj(input: Tensor) -> Tensor:
    """The complex conjugate.

    >>> gt.tensor([1 + 2j]).conj()
    tensor([1.-2.j])
    """
    return apply(TABLE["conj"], (input,)) if input.handle.spec.dtype.rank == 3 else input


@function
def real(input: Tensor) -> Tensor:
    """The real part."""
    return apply(TABLE["real_part"], (input,)) if _is_complex(input) else input


@function
def imag(input: Tensor) -> Tensor:
    """The imaginary part."""
    if not _is_complex(input):
        raise RuntimeError(f"imag is not defined for {input.dtype.name}: expected a complex tensor")
    return apply(TABLE["imag_part"], (input,))


def _with_real(self: Tensor, value: Any) -> None:
    other = imag(self) if _is_complex(self) else None
    new = value if isinstance(value, Tensor) else FUNCTIONS["full_like"](real(self), value)
    new = new.expand(self.shape).to(self.dtype.to_real())
    assign(self, new if other is None else binary(TABLE["complex"], new, other))


def _with_imag(self: Tensor, value: Any) -> None:
    new = value if isinstance(value, Tensor) else FUNCTIONS["full_like"](imag(self), value)
    assign(self, binary(TABLE["complex"], real(self), new.expand(self.shape).to(self.dtype.to_real())))


_T.real = property(real, _with_real)
_T.imag = property(imag, _with_imag)
_T.is_complex = _is_complex
FUNCTIONS["is_complex"] = _is_complex


@function
def complex(real: Tensor, imag: Tensor) -> Tensor:  # noqa: A001
    """A complex tensor of its real and imaginary parts."""
    return binary(TABLE["complex"], real, imag)


@function
def polar(abs: Tensor, angle: Tensor) -> Tensor:  # noqa: A002
    """A complex tensor of magnitudes and angles."""
    abs, angle = abs.clone(), angle.clone()  # PyTorch's gradient reads the result, so the arguments may change
    return binary(TABLE["complex"], abs * angle.cos(), abs * angle.sin())


@function
def view_as_real(input: Tensor) -> Tensor:
    """Real and imaginary parts along a new last axis of size 2."""
    if not _is_complex(input):
        raise RuntimeError(f"view_as_real: expected a complex tensor, got {input.dtype.name}")

    def parts(x: Tensor) -> Tensor:
        return stack((real(x), imag(x)), -1)

    return custom_view(
        input,
        Custom(
            parts,
            lambda strides: (*(2 * s for s in strides), 1),
            lambda base, piece: _paired(piece),
            lambda first: 2 * first,
        ),
    )


def _paired(pairs: Tensor) -> Tensor:
    return binary(TABLE["complex"], *(pairs.narrow(-1, i, 1).squeeze(-1) for i in range(2)))


@function
def view_as_complex(input: Tensor) -> Tensor:
    """Pairs of real numbers along the last axis as complex numbers."""
    if not input.ndim or input.shape[-1] != 2:
        raise RuntimeError(f"view_as_complex: expected a last axis of 2, got {input.shape}")
    distances = strides(input)
    if distances[-1] != 1 or any(s % 2 for s in distances[:-1]) or offset(input) % 2:
        raise RuntimeError(f"view_as_complex: expected contiguous pairs, got strides {distances}: use contiguous() first")
    return custom_view(
        input,
        Custom(
            _paired,
            lambda strides: tuple(s // 2 for s in strides[:-1]),
            lambda base, piece: stack((real(piece), imag(piece)), -1),
            lambda first: first // 2,
        ),
    )


@both
def angle(input: Tensor) -> Tensor:
    """The angle of complex numbers; for real numbers 0, or pi if negative."""
    if _is_complex(input):
        zero = input == 0
        return zero.pick(0.0, imag(input)).atan2(zero.pick(1.0, real(input)))
    if input.dtype.rank < 2:
        input = input.float()
    return input.isnan().pick(input, (input < 0).pick(math.pi, input * 0.0))


@both
def sgn(input: Tensor) -> Tensor:
    """The sign of real numbers; complex numbers divided by their magnitude."""
    return unary(TABLE["direction"], input) if _is_complex(input) else input.sign()


@both
def isreal(input: Tensor) -> Tensor:
    """Whether the imaginary part of each element is 0."""
    return imag(input) == 0 if _is_complex(input) else FUNCTIONS["full_like"](input, True, dtype=bool)


@both
def vdot(input: Tensor, other: Tensor) -> Tensor:
    """The product of two vectors, the first conjugated."""
    return conj(input).dot(other)


@both
def adjoint(input: Tensor) -> Tensor:
    """The conjugate of the transpose of the last two axes."""
    return conj(input.mT)


for _name in ("resolve_conj", "resolve_neg"):
    alias(_name, lambda input: input)
alias("conj_physical", lambda input: own(conj(input), input) if _is_complex(input) else input)
alias("conj_physical_", lambda input: assign(input, conj(input)) if _is_complex(input) else input)
_T.mH = property(adjoint)
_T.H = property(lambda self: conj(self.t()))
_T.cfloat = lambda self, memory_format=None: self.to(complex64)
_T.cdouble = lambda self, memory_format=None: self.to(complex128)
method(in_place("sgn", sgn))
