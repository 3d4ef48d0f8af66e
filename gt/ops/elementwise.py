"""Arithmetic and comparison, elementwise. Rows have PyTorch's names, so PyTorch's own function is their kernel. Functions of
one number are in math.py, logic in bits.py, activations in activation.py."""

from __future__ import annotations

import math
from functools import partial

from gt.errors import UnsupportedDTypeError
from gt.ops import table
from gt.ops.rules import bilinear, by_axis, compare, floats_only, linear, pointwise, pointwise_float, promote
from gt.ops.table import Kind, Operand, Try, Values
from gt.spec import DTYPES, Spec, bool_, float32, float64, int64

op = partial(table.op, pointwise=True)

X = Spec((2, 3), float32)
ROW = Spec((3,), float32)
ONE: Try = ((X,), {})
TWO: Try = ((X, ROW), {})
TIMES: Try = ((X, float), {})
INTS: Try = ((Spec((3,), int64), Spec((2, 1), int64)), {})
WHOLE: Try = ((Values(Spec((3,), int64), -9, 9), Values(Spec((2, 1), int64), 1, 5)), {})
APART: Try = ((X, Values(ROW, 0.5, 2.0)), {})  # a divisor away from zero
ABOVE = Values(X, 0.2, 2.0)


def numbers(*operands: Operand) -> bool:
    return not any(isinstance(s, Spec) for s in operands)


def is_bool(s: Operand) -> bool:
    return s is bool or isinstance(s, Spec) and s.dtype is bool_


def no_bools(name: str, instead: str = "cast first"):
    """Broadcast and promote; PyTorch does not define the op for booleans."""

    def rule(*operands: Operand, **_: object) -> Spec:
        out = pointwise(*operands)
        if out.dtype is bool_:
            raise UnsupportedDTypeError(f"cannot {name} booleans: {instead}")
        return out

    return rule


def _sub(*operands: Operand) -> Spec:
    if any(is_bool(s) for s in operands):
        raise TypeError("cannot subtract booleans: use ^ or logical_xor")
    return pointwise(*operands)


def _larger(a: Operand, b: Operand) -> Spec:
    return no_bools("clamp")(a, b) if bool in (a, b) else pointwise(a, b)


def _where(c: Spec, a: Operand, b: Operand) -> Spec:
    if c.dtype is not bool_:
        raise TypeError(f"where: expected a condition of booleans, got {c.dtype.name}: compare first")
    if numbers(a, b):
        return Spec(c.shape, float32 if float in (a, b) else int64 if int in (a, b) else bool_)
    return Spec(pointwise(c, a, b).shape, promote(a, b))


def _floats(name: str):
    """Broadcast floating-point tensors of one dtype."""

    def rule(*operands: Operand, **_: object) -> Spec:
        found = {s.dtype for s in operands if isinstance(s, Spec)}
        if len(found) > 1 or next(iter(found)).rank < 2:
            names = ", ".join(sorted(d.name for d in found))
            raise TypeError(f"{name}: expected floating-point tensors of one dtype, got {names}")
        return pointwise(*operands)

    return rule


def _fused(name: str, divides: bool):
    """Broadcast and promote a + value * (b with c); refuses booleans and a fractional value for integers."""

    def rule(a: Spec, b: Spec, c: Spec, value: type) -> Spec:
        dtype = promote(a, b, c)
        if dtype is bool_ or dtype.rank == 1 and (value is float or divides):
            raise TypeError(f"{name} of {value.__name__} cannot give {dtype.name}: cast to a floating-point dtype first")
        return Spec(pointwise(a, b, c).shape, dtype)

    return rule


def _scaled(a: Spec, b: Spec, scale: type) -> Spec:
    out = pointwise(a, b)
    if out.dtype.rank < 2 and scale is float:
        raise TypeError(f"cannot add {out.dtype.name} scaled by a float: cast first")
    return out


def _power_gradient(g: Spec, a: Spec, b: type) -> Spec:
    if g.shape != a.shape:
        raise ValueError(f"pow_grad: expected a gradient of {a.shape}, got {g.shape}")
    return g if g.dtype.is_complex else floats_only("a gradient")(g)


def _power_grad(g, a, b):
    if isinstance(b, (int, float)):
        return g.pow_grad(a, b)
    return (b == 0).pick(0.0, g * (b * a ** (b - 1)))


def _exponent_grad(g, y, a, b):
    """The gradient in the exponent is 0 where a zero has an exponent that is not negative."""
    if isinstance(a, (int, float)):
        return (b.real >= 0).pick(0.0, g * y * float("-inf")) if a == 0 else g * (y * _log(a))
    return ((a == 0) & (b.real >= 0)).pick(0.0, g * (y * a.log()))


def _log(x: float) -> float:
    return math.log(x) if x > 0 else math.nan


def _larger_grad(g, a, b):
    """Equal elements share the gradient; a number gets none of it."""
    if isinstance(b, (int, float)):
        return (a >= b).pick(g, 0.0)
    return (a == b).pick(g / 2.0, (a > b).pick(g, 0.0))


def _smaller_grad(g, a, b):
    if isinstance(b, (int, float)):
        return (a <= b).pick(g, 0.0)
    return (a == b).pick(g / 2.0, (a < b).pick(g, 0.0))


op("add", adds=True, complex="analytic", shape=pointwise, shard=linear, tries=(TWO, TIMES, INTS),
   kernel=lambda xp, a, b: xp.add(a, b),
   grad=(lambda g: g, lambda g: g))  # fmt: skip
op("sub", complex="analytic", shape=_sub, shard=linear, tries=(TWO, TIMES, INTS),
   kernel=lambda xp, a, b: xp.subtract(a, b),
   grad=(lambda g: g, lambda g: -g))  # fmt: skip
op("mul", complex="analytic", shape=pointwise, shard=bilinear, tries=(TWO, TIMES, INTS),
   kernel=lambda xp, a, b: xp.multiply(a, b),
   grad=(lambda g, b: g * b, lambda g, a: g * a))  # fmt: skip
op("div", unchecked="y", complex="analytic", shape=pointwise_float, shard=by_axis, tries=(APART, TIMES, WHOLE),
   kernel=lambda xp, a, b: xp.true_divide(a, b),
   grad=(lambda g, b: g / b, lambda g, y, a, b: -g * y / b))  # fmt: skip
op("pow", complex="analytic", autocast="high", shape=no_bools("raise to powers"), shard=by_axis,
   tries=(((ABOVE, float), {}), ((X, 3), {}), ((ABOVE, Values(ROW, 0.0, 2.0)), {}), ((2.5, X), {}),
          ((Spec((3,), int64), Values(Spec((2, 1), int64), 0, 4)), {})),
   kernel=lambda xp, a, b: xp.power(a, b),
   grad=(_power_grad, _exponent_grad))  # fmt: skip
op("pow_grad", complex="analytic", shape=_power_gradient, shard=by_axis,
   tries=(((X, ABOVE, 2.5), {}), ((X, X, 2), {}), ((X, X, 0), {})),
   kernel=lambda xp, g, a, b: g * (xp.power(a, b - 1) * b) if b else g * 0.0,
   grad=(lambda g, b, c: g.pow_grad(b, c), lambda g, a, b, c: (g * a).pow_grad(b, c - 1) * c, None))  # fmt: skip
op("floor_divide", shape=no_bools("divide"), shard=by_axis, tries=(APART, TIMES, WHOLE),
   kernel=lambda xp, a, b: xp.floor_divide(a, b),
   grad=(lambda g, b: g * 0.0, lambda g, a, b: g * 0.0))  # fmt: skip
op("remainder", shape=no_bools("divide"), shard=by_axis, tries=(APART, TIMES, WHOLE),
   kernel=lambda xp, a, b: xp.remainder(a, b),
   grad=(lambda g: g, lambda g, a, b: -g * (a / b).floor()))  # fmt: skip
op("fmod", shape=no_bools("divide"), shard=by_axis, tries=(APART, TIMES, WHOLE),
   kernel=lambda xp, a, b: xp.fmod(a, b),
   grad=(lambda g: g, lambda g, a, b: -g * (a / b).trunc()))  # fmt: skip
op("atan2", shape=pointwise_float, shard=by_axis, tries=(APART, INTS),
   kernel=lambda xp, a, b: xp.atan2(a, b),
   grad=(lambda g, a, b: g * b / (a * a + b * b), lambda g, a, b: -g * a / (a * a + b * b)))  # fmt: skip
op("maximum", shape=_larger, shard=by_axis, tries=(TWO, TIMES, INTS),
   kernel=lambda xp, a, b: xp.maximum(a, b),
   grad=(_larger_grad, _smaller_grad))  # fmt: skip
op("minimum", shape=_larger, shard=by_axis, tries=(TWO, TIMES, INTS),
   kernel=lambda xp, a, b: xp.minimum(a, b),
   grad=(_smaller_grad, _larger_grad))  # fmt: skip
op("clamp", shape=no_bools("clamp"), shard=by_axis,
   tries=(((X, -0.5, 0.7), {}), ((X, Values(ROW, -2, 0), Values(ROW, 0, 2)), {}), ((Spec((3,), int64), 1, 2), {})),
   kernel=lambda xp, a, b, c: xp.minimum(xp.maximum(a, b), c),
   grad=(lambda g, a, b, c: ((a >= b) & (a <= c)).pick(g, 0.0), lambda g, a, b, c: ((a < b) & (b < c)).pick(g, 0.0),
         lambda g, a, b, c: ((a > c) | (b > c)).pick(g, 0.0)))  # fmt: skip
op("lerp", complex="analytic", shape=_floats("lerp"), shard=by_axis,
   tries=(((X, X, float), {}), ((X, ROW, Values(X, 0.0, 1.0)), {})),
   kernel=lambda xp, a, b, t: a + t * (b - a),
   grad=(lambda g, c: g * (1.0 - c), lambda g, c: g * c, lambda g, a, b: g * (b - a)))  # fmt: skip
op("addcmul", complex="analytic", shape=_fused("addcmul", False), shard=by_axis,
   tries=(((X, ROW, X, float), {}), ((X, X, X, 1), {})),
   kernel=lambda xp, a, b, c, value: a + value * b * c,
   grad=(lambda g: g, lambda g, c, d: g * (c * d), lambda g, b, d: g * (b * d), None))  # fmt: skip
op("addcdiv", complex="analytic", shape=_fused("addcdiv", True), shard=by_axis,
   tries=(((X, X, Values(ROW, 0.5, 2.0), float), {}),),
   kernel=lambda xp, a, b, c, value: a + value * b / c,
   grad=(lambda g: g, lambda g, c, d: g * d / c, lambda g, b, c, d: -g * (b * d) / (c * c), None))  # fmt: skip
op("add_scaled", complex="analytic", shape=_scaled, shard=by_axis, tries=(((X, X, float), {}),),
   kernel=lambda xp, a, b, scale: a + b * scale,
   grad=(lambda g: g, lambda g, c: g * c, None))  # fmt: skip
op("where", complex="analytic", shape=_where, shard=by_axis,
   tries=(((Spec((2, 3), bool_), X, ROW), {}), ((Spec((2, 3), bool_), X, float), {}),
          ((Spec((2, 3), bool_), float, X), {})),
   kernel=lambda xp, c, a, b: xp.where(c, a, b),
   grad=(None, lambda g, a: a.pick(g, 0.0), lambda g, a: a.pick(0.0, g)))  # fmt: skip

for _name, _numpy in dict(eq="equal", ne="not_equal", lt="less", le="less_equal", gt="greater", ge="greater_equal").items():
    op(_name, shape=compare, shard=by_axis, tries=(TWO, TIMES, INTS), complex="own" if _name in ("eq", "ne") else "",
       kernel=lambda xp, a, b, _numpy=_numpy: getattr(xp, _numpy)(a, b))  # fmt: skip


def _cast_rules(kind: Kind):
    """A partial sum may be cast between floats, but not rounded to integers or booleans."""
    return linear(kind) if min(kind.ins[0].dtype.rank, kind.outs[0].dtype.rank) >= 2 else by_axis(kind)


table.op("cast", complex="own", shape=lambda a, *, dtype: Spec(a.shape, DTYPES[dtype]), shard=_cast_rules,
         tries=(((X,), {"dtype": int64.code}),), view=True,
         kernel=lambda xp, a, *, dtype: xp.cast(a, dtype),
         grad=(lambda g, sa: g.to(sa.dtype),))  # fmt: skip


def _next(a: Operand, b: Operand) -> Spec:
    if promote(a, b) not in (float32, float64) or not (isinstance(a, Spec) and isinstance(b, Spec)):
        raise TypeError(f"nextafter: expected two tensors of float32 or float64, got {a} and {b}")
    return pointwise(a, b)


table.op("nextafter", shape=_next, shard=by_axis, tries=(APART,),
         kernel=lambda xp, a, b: xp.nextafter(a, b),
         grad=(lambda g: g, lambda g: g * 0.0))  # fmt: skip
