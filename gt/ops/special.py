"""Special functions and parts of numbers, elementwise. Rows have PyTorch's names."""

from __future__ import annotations

import math
from functools import partial

from gt.ops import table
from gt.ops.bessel import _wide
from gt.ops.bits import _whole
from gt.ops.elementwise import APART, INTS, TWO, X
from gt.ops.rules import by_axis, compare, pointwise, pointwise_float
from gt.ops.table import Try, Values
from gt.spec import Spec, float32, float64, int32, int64

op = partial(table.op, pointwise=True, shard=by_axis)

POSITIVE: Try = ((Values(X, 0.3, 4.0),), {})
BELOW: Try = ((Values(X, -1.9, -1.1),), {})
WHOLE: Try = ((Values(Spec((3,), int64), 1, 9),), {})


def _polygamma(a: Spec, *, n: int) -> Spec:
    if n < 0:
        raise ValueError(f"polygamma: expected an order of 0 or more, got {n}")
    return pointwise_float(a)


def factorial(n: int) -> float:
    return math.factorial(n) if n <= 170 else math.inf  # past which no float64 holds it


def _poly(xp, a, *, n):
    """The n-th derivative of digamma, by sums of powers."""
    if n == 0:
        return xp.digamma(a)
    return (-1.0) ** (n + 1) * factorial(n) * xp.zeta(n + 1.0, a)


def _parts(a: Spec) -> tuple[Spec, Spec]:
    if a.dtype.rank != 2:
        raise TypeError(f"frexp: expected floating-point numbers, got {a.dtype.name}")
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
table.op("frexp", unchecked="y0", shape=_parts, shard=by_axis, keep="outputs", tries=(((X,), {}), ((Spec((3,), float32),), {})),
         kernel=lambda xp, a: tuple(xp.frexp(a)),
         grad=lambda gs, ys, ins: [gs[0] / (2.0 ** ys[1].to(gs[0].dtype))])  # fmt: skip


ROOT_PI = math.sqrt(math.pi)
PART: Try = ((Values(X, 0.05, 0.95),), {})
SHARES: Try = ((Values(X, 0.3, 6.0), Values(X, 0.1, 9.0)), {})


def _log_or_none(a, b):
    if not hasattr(b, "log1p"):
        return math.log1p(b) if b > -1 else (a == 0).pick(0.0, math.nan if b < -1 else -math.inf)
    return ((a == 0) & (b <= -1.0)).pick(0.0, b.log1p())


def _some_float(a: Spec, b: Spec) -> Spec:
    out = pointwise(a, b)
    if out.dtype.rank < 2:
        raise TypeError(f"igamma: expected floating-point numbers, got {out.dtype.name}: cast first")
    return out


def _slope_1e(g, y, a):
    none = a == 0
    return g * none.pick(0.5, a.op("i0e") - y * (a.sign() + none.pick(1.0, a).reciprocal()))


def _entropy(xp, a):
    inside = -a * xp.log(xp.where(a > 0, a, 1.0))
    return xp.where(a > 0, inside, xp.where(a == 0, 0.0, xp.where(a < 0, -math.inf, a)))


def _share_grad(g, a, b):
    """The density of the gamma distribution at the second argument."""
    return g * ((a - 1.0) * b.log() - b - a.lgamma()).exp()


op("i0e", shape=pointwise_float, tries=(((X,), {}), POSITIVE, WHOLE),
   kernel=lambda xp, a: xp.i0e(a),
   grad=(lambda g, y, a: g * (a.op("i1e") - a.sign() * y),))  # fmt: skip
op("i1e", shape=pointwise_float, tries=(((X,), {}), POSITIVE, WHOLE),
   kernel=lambda xp, a: xp.i1e(a),
   grad=(_slope_1e,))  # fmt: skip
op("erfcx", shape=_wide("erfcx"), tries=(((X,), {}), POSITIVE, WHOLE),
   kernel=lambda xp, a: xp.erfcx(a),
   grad=(lambda g, y, a: g * (a * y * 2.0 - 2.0 / ROOT_PI),))  # fmt: skip
op("ndtr", unchecked="a", shape=pointwise_float, tries=(((X,), {}), POSITIVE, WHOLE),
   kernel=lambda xp, a: xp.ndtr(a),
   grad=(lambda g, a: g * (a * a * -0.5).exp() * (math.sqrt(0.5) / ROOT_PI),))  # fmt: skip
op("log_ndtr", shape=_wide("log_ndtr"), tries=(((Values(X, -9.0, 3.0),), {}), POSITIVE, WHOLE),
   kernel=lambda xp, a: xp.log_ndtr(a),
   grad=(lambda g, a: g / (a * -math.sqrt(0.5)).op("erfcx") * (math.sqrt(2.0) / ROOT_PI),))  # fmt: skip
op("ndtri", shape=_wide("ndtri"), tries=(PART, WHOLE),
   kernel=lambda xp, a: xp.ndtri(a),
   grad=(lambda g, y: g * (y * y * 0.5).exp() * (math.sqrt(2.0) * ROOT_PI),))  # fmt: skip
op("special_zeta", shape=_wide("zeta"), tries=(((Values(X, 1.5, 6.0), Values(Spec((3,), float32), 0.5, 4.0)), {}),),
   kernel=lambda xp, a, b: xp.special_zeta(a, b),
   grad=(None, lambda g, a, b: g * -a * (a + 1.0).op("special_zeta", b)))  # fmt: skip
op("igamma", shape=_some_float, tries=(SHARES,),
   kernel=lambda xp, a, b: xp.igamma(a, b),
   grad=(None, _share_grad))  # fmt: skip
op("igammac", shape=_some_float, tries=(SHARES,),
   kernel=lambda xp, a, b: xp.igammac(a, b),
   grad=(None, lambda g, a, b: -_share_grad(g, a, b)))  # fmt: skip
op("entr", shape=pointwise_float, tries=(POSITIVE, WHOLE),
   kernel=_entropy,
   grad=(lambda g, a: g * (-a.log() - 1.0),))  # fmt: skip
op("xlog1py", shape=pointwise_float, tries=(((X, Values(Spec((3,), float32), -0.5, 3.0)), {}), INTS, ((X, float), {})),
   kernel=lambda xp, a, b: xp.where((a == 0) & (b == b), 0.0 * a, a * xp.log1p(b)),
   grad=(lambda g, a, b: g * _log_or_none(a, b), lambda g, a, b: g * a / (b + 1.0)))  # fmt: skip
