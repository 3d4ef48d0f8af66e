"""Ops that treat each element alike. Rows are named as PyTorch names them, so PyTorch's own function is its kernel."""

from __future__ import annotations

from functools import partial

from gt.ops import table
from gt.ops.rules import bilinear, by_axis, compare, linear, pointwise, pointwise_float
from gt.ops.table import Kind
from gt.spec import DTYPES, Spec, bool_, float32, int64

op = partial(table.op, pointwise=True)

X = Spec((2, 3), float32)
ROW = Spec((3,), float32)
ONE = ((X,), {})
TWO = ((X, ROW), {})
TIMES = ((X, float), {})
INTS = ((Spec((3,), int64), Spec((2, 1), int64)), {})


def _arithmetic(*operands, **statics) -> Spec:
    out = pointwise(*operands)
    if out.dtype is bool_:
        raise TypeError("cannot subtract booleans: use ^ or logical_xor")
    return out


op("add", shape=pointwise, shard=linear, tries=(TWO, TIMES, INTS),
   kernel=lambda xp, a, b: xp.add(a, b),
   grad=(lambda g: g, lambda g: g))  # fmt: skip
op("sub", shape=_arithmetic, shard=linear, tries=(TWO, TIMES, INTS),
   kernel=lambda xp, a, b: xp.subtract(a, b),
   grad=(lambda g: g, lambda g: -g))  # fmt: skip
op("mul", shape=pointwise, shard=bilinear, tries=(TWO, TIMES, INTS),
   kernel=lambda xp, a, b: xp.multiply(a, b),
   grad=(lambda g, b: g * b, lambda g, a: g * a))  # fmt: skip
op("div", shape=pointwise_float, shard=by_axis, tries=(TWO, TIMES, INTS),
   kernel=lambda xp, a, b: xp.true_divide(a, b),
   grad=(lambda g, b: g / b, lambda g, y, b: -g * y / b))  # fmt: skip
op("pow", shape=pointwise, shard=by_axis, tries=(((X, float), {}), ((X, int), {})),
   kernel=lambda xp, a, b: xp.power(a, b),
   grad=(lambda g, a, b: g * b * a ** (b - 1), lambda g, y, a: g * y * a.log()))  # fmt: skip
op("neg", shape=pointwise, shard=linear, tries=(ONE,),
   kernel=lambda xp, a: xp.negative(a),
   grad=(lambda g: -g,))  # fmt: skip
op("abs", shape=pointwise, shard=by_axis, tries=(ONE,),
   kernel=lambda xp, a: xp.abs(a),
   grad=(lambda g, a: g * a.sign(),))  # fmt: skip
op("sign", shape=pointwise, shard=by_axis, tries=(ONE,),
   kernel=lambda xp, a: xp.sign(a),
   grad=(lambda g: g * 0.0,))  # fmt: skip
op("exp", shape=pointwise_float, shard=by_axis, tries=(ONE,),
   kernel=lambda xp, a: xp.exp(a),
   grad=(lambda g, y: g * y,))  # fmt: skip
op("log", shape=pointwise_float, shard=by_axis, tries=(ONE,),
   kernel=lambda xp, a: xp.log(a),
   grad=(lambda g, a: g / a,))  # fmt: skip
op("sqrt", shape=pointwise_float, shard=by_axis, tries=(ONE,),
   kernel=lambda xp, a: xp.sqrt(a),
   grad=(lambda g, y: g / (y * 2.0),))  # fmt: skip
op("tanh", shape=pointwise_float, shard=by_axis, tries=(ONE,),
   kernel=lambda xp, a: xp.tanh(a),
   grad=(lambda g, y: g * (1.0 - y * y),))  # fmt: skip
op("sigmoid", shape=pointwise_float, shard=by_axis, tries=(ONE,),
   kernel=lambda xp, a: xp.where(a >= 0, 1.0, xp.exp(-xp.abs(a))) / (1.0 + xp.exp(-xp.abs(a))),
   grad=(lambda g, y: g * y * (1.0 - y),))  # fmt: skip
op("relu", shape=pointwise, shard=by_axis, tries=(ONE,),
   kernel=lambda xp, a: xp.maximum(a, 0),
   grad=(lambda g, y: g.relu_grad(y),))  # fmt: skip
op("relu_grad", shape=lambda g, y: g, shard=by_axis, tries=(((X, X), {}),),
   kernel=lambda xp, g, y: g * (y > 0),
   grad=(lambda g, b: g.relu_grad(b), None))  # fmt: skip
op("add_scaled", shape=pointwise, shard=by_axis, tries=(((X, X, float), {}),),
   kernel=lambda xp, a, b, scale: a + b * scale,
   grad=(lambda g: g, lambda g, c: g * c, None))  # fmt: skip
op("where", shape=lambda c, a, b: Spec(pointwise(c, a, b).shape, pointwise(a, b).dtype) if not _numbers(a, b)
   else Spec(c.shape, float32 if float in (a, b) else int64 if int in (a, b) else bool_),
   shard=by_axis, tries=(((Spec((2, 3), bool_), X, ROW), {}),),
   kernel=lambda xp, c, a, b: xp.where(c, a, b),
   grad=(None, lambda g, a: a.where(g, 0.0), lambda g, a: a.where(0.0, g)))  # fmt: skip

for _name, _numpy in dict(eq="equal", ne="not_equal", lt="less", le="less_equal", gt="greater", ge="greater_equal").items():
    op(_name, shape=compare, shard=by_axis, tries=(TWO, TIMES, INTS),
       kernel=lambda xp, a, b, _numpy=_numpy: getattr(xp, _numpy)(a, b))  # fmt: skip


def _numbers(*operands) -> bool:
    return not any(isinstance(s, Spec) for s in operands)


def _cast_rules(kind: Kind):
    """A sum of terms survives a cast between floats, not one that rounds to integers or booleans."""
    return linear(kind) if kind.ins[0].dtype.rank == kind.outs[0].dtype.rank == 2 else by_axis(kind)


table.op("cast", shape=lambda a, *, dtype: Spec(a.shape, DTYPES[dtype]), shard=_cast_rules,
         tries=(((X,), {"dtype": int64.code}),), view=True,
         kernel=lambda xp, a, *, dtype: xp.cast(a, dtype),
         grad=(lambda g, sa: g.to(sa.dtype),))  # fmt: skip
