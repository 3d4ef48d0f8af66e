"""Complex numbers: construction from two real ones, their parts, conjugates. Arithmetic is in the other families; the column
`complex` of a row states whether it takes complex numbers."""

from __future__ import annotations

from functools import partial

from gt.ops import table
from gt.ops.create import any_axis, made
from gt.ops.rules import by_axis, linear, pointwise, real_part
from gt.ops.table import Alias, Try
from gt.spec import DTYPES, Spec, complex64, float32, float64

op = partial(table.op, complex="own")

X = Spec((2, 3), float32)
C: Try = ((Spec((2, 3), complex64),), {})


def _joined(a: Spec, b: Spec) -> Spec:
    if a.dtype is not b.dtype or a.dtype not in (float32, float64):
        raise TypeError(f"complex: expected float32 or float64 parts of one dtype, got {a.dtype.name} and {b.dtype.name}")
    out = pointwise(a, b)
    return Spec(out.shape, out.dtype.to_complex())


def _only_complex(name: str):
    def rule(a: Spec) -> Spec:
        if not a.dtype.is_complex:
            raise TypeError(f"{name}: expected a complex tensor, got {a.dtype.name}")
        return a

    return rule


def _part(name: str):
    return lambda a: real_part(_only_complex(name)(a))


def _full(xp, real, imag, *, shape, dtype):
    part = xp.dtype(DTYPES[dtype].to_real().code)
    return xp.complex(xp.full(shape, real, dtype=part), xp.full(shape, imag, dtype=part))


def _direction(xp, a):
    size = xp.abs(a)
    return xp.where(size == 0, 0.0 * a, a / xp.where(size == 0, 1.0 + size, size))


def _direction_grad(g, y, a):
    """The component of the gradient perpendicular to the number, divided by its magnitude."""
    size = a.abs()
    none = size == 0
    across = g - y * (g * y.conj()).real
    return none.pick(0.0, across / none.pick(1.0, size))


table.op("full_complex", shape=made, shard=any_axis, tries=(((1.5, -2.0), {"shape": (2, 3), "dtype": complex64.code}),),
         kernel=_full)  # fmt: skip
op("complex", shape=_joined, shard=linear, tries=(((X, X), {}), ((X, Spec((3,), float32)), {})),
   kernel=lambda xp, a, b: xp.complex(a, b),
   grad=(lambda g: g.real, lambda g: g.imag))  # fmt: skip
op("conj", shape=_only_complex("conj"), shard=linear, tries=(C,),
   alias=Alias(lambda shape, strides: strides, lambda base, piece: piece.conj()),
   kernel=lambda xp, a: xp.conj_physical(a),
   grad=(lambda g: g.conj(),))  # fmt: skip


def _doubled(shape, strides):
    """Strides in real numbers, of which each complex one is a pair."""
    return tuple(2 * d for d in strides)


op("real_part", shape=_part("real"), shard=linear, tries=(C,), view=True,
   alias=Alias(_doubled, lambda base, piece: piece.op("complex", base.imag), lambda first, strides: 2 * first),
   kernel=lambda xp, a: xp.real(a),
   grad=(lambda g, sa: g.to(sa.dtype),))  # fmt: skip
op("imag_part", shape=_part("imag"), shard=linear, tries=(C,), view=True,
   alias=Alias(_doubled, lambda base, piece: base.real.op("complex", piece), lambda first, strides: 2 * first + 1),
   kernel=lambda xp, a: xp.imag(a),
   grad=(lambda g: (g * 0.0).op("complex", g),))  # fmt: skip
op("direction", shape=_only_complex("sgn"), shard=by_axis, tries=(C,),
   kernel=_direction,
   grad=(_direction_grad,))  # fmt: skip
