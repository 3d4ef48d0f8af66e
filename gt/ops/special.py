"""Functions of analysis and of numbers' parts, element by element. Rows are named as PyTorch names them."""

from __future__ import annotations

import math
from functools import partial

from gt.ops import table
from gt.ops.bits import _whole
from gt.ops.elementwise import APART, INTS, TWO, X
from gt.ops.rules import by_axis, compare, pointwise_float
from gt.ops.table import Try, Values
from gt.spec import Spec, float32, float64, int32, int64

op = partial(table.op, pointwise=True, shard=by_axis)

POSITIVE: Try = ((Values(X, 0.3, 4.0),), {})
BELOW: Try = ((Values(X, -1.9, -1.1),), {})
WHOLE: Try = ((Values(Spec((3,), int64), 1, 9),), {})


def _polygamma(a: Spec, *, n: int) -> Spec:
    if n < 0:
        raise ValueError(f"polygamma has an order of 0 or more, not {n}")
    return pointwise_float(a)


def _poly(xp, a, *, n):
    """The n-th derivative of digamma: sums of powers of what lies one apart."""
    return xp.digamma(a) if n == 0 else (-1.0) ** (n + 1) * math.factorial(n) * xp.zeta(n + 1.0, a)


def _parts(a: Spec) -> tuple[Spec, Spec]:
    if a.dtype.rank != 2:
        raise TypeError(f"frexp wants floating-point numbers, not {a.dtype.name}")
    return a, Spec(a.shape, int32)


op("lgamma", shape=pointwise_float, tries=(POSITIVE, BELOW, WHOLE),
   kernel=lambda xp, a: xp.lgamma(a),
   grad=(lambda g, a: g * a.digamma(),))  # fmt: skip
op("digamma", shape=pointwise_float, tries=(POSITIVE, BELOW, WHOLE),
   kernel=lambda xp, a: xp.digamma(a),
   grad=(lambda g, a: g * a.op("polygamma", n=1),))  # fmt: skip
table.op("polygamma", shape=_polygamma, shard=by_axis,
         tries=((POSITIVE[0], {"n": 1}), (POSITIVE[0], {"n": 0}), (POSITIVE[0], {"n": 3})),
         kernel=_poly,
         grad=(lambda g, a, n: g * a.op("polygamma", n=n + 1),))  # fmt: skip
op("i0", shape=pointwise_float, tries=(((X,), {}), POSITIVE, WHOLE),
   kernel=lambda xp, a: xp.i0(a),
   grad=(lambda g, a: g * a.op("i1"),))  # fmt: skip
op("i1", shape=pointwise_float, tries=(((X,), {}), POSITIVE, WHOLE),
   kernel=lambda xp, a: xp.i1(a),
   grad=(lambda g, y, a: g * ((a == 0).pick(0.5, a.op("i0") - y / (a == 0).pick(1.0, a))),))  # fmt: skip
op("copysign", shape=pointwise_float, tries=(APART, TWO, INTS, ((X, float), {})),
   kernel=lambda xp, a, b: xp.copysign(a, b),
   grad=(lambda g, y, a: (a == 0).pick(0.0, g * (y / (a == 0).pick(1.0, a))), lambda g, y: g * 0.0))  # fmt: skip
op("signbit", shape=compare, tries=(((X,), {}), WHOLE),
   kernel=lambda xp, a: xp.signbit(xp.cast(a, float64.code)))  # fmt: skip
op("gcd", shape=_whole("gcd", bools=False), tries=(INTS,),
   kernel=lambda xp, a, b: xp.gcd(a, b))  # fmt: skip
op("lcm", shape=_whole("lcm", bools=False), tries=(INTS,),
   kernel=lambda xp, a, b: xp.lcm(a, b))  # fmt: skip
table.op("frexp", shape=_parts, shard=by_axis, keep="outputs", tries=(((X,), {}), ((Spec((3,), float32),), {})),
         kernel=lambda xp, a: tuple(xp.frexp(a)),
         grad=lambda gs, ys, ins: [gs[0] / (2.0 ** ys[1].to(gs[0].dtype))])  # fmt: skip
