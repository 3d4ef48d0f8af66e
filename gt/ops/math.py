"""Functions of one number, elementwise. Rows have PyTorch's names."""

from __future__ import annotations

import math
from functools import partial

from gt.ops import table
from gt.ops.elementwise import ABOVE, ONE, X, no_bools
from gt.ops.rules import by_axis, linear, pointwise, pointwise_float, real_part
from gt.ops.table import Try, Values
from gt.spec import Spec, bool_, int64

op = partial(table.op, pointwise=True)

POSITIVE: Try = ((ABOVE,), {})
INSIDE: Try = ((Values(X, -0.9, 0.9),), {})
WHOLE: Try = ((Spec((3,), int64),), {})
TWO_BY_ROOT_PI = 2.0 / math.sqrt(math.pi)


def _acosh_grad(g, a):
    if a.is_complex():  # the root of each factor, as the root of the product may be on the other branch
        return g * ((a - 1.0).rsqrt() * (a + 1.0).rsqrt())
    return g * (a * a - 1.0).rsqrt()


op("neg", complex="analytic", shape=no_bools("negate", "use ~ or logical_not"), shard=linear, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.negative(a),
   grad=(lambda g: -g,))  # fmt: skip
op("abs", complex="own", shape=lambda a: real_part(no_bools("take the magnitude of")(a)), shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.abs(a),
   grad=(lambda g, a: g * a.sgn(),))  # fmt: skip
op("sign", shape=pointwise, shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: 1 * (a > 0) - 1 * (a < 0),
   grad=(lambda g: g * 0.0,))  # fmt: skip
op("floor", shape=no_bools("round"), shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.floor(a),
   grad=(lambda g: g * 0.0,))  # fmt: skip
op("ceil", shape=no_bools("round"), shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.ceil(a),
   grad=(lambda g: g * 0.0,))  # fmt: skip
op("round", shape=no_bools("round"), shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.round(a),
   grad=(lambda g: g * 0.0,))  # fmt: skip
op("trunc", shape=no_bools("round"), shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.trunc(a),
   grad=(lambda g: g * 0.0,))  # fmt: skip
op("square", complex="analytic", shape=lambda a: a if a.dtype is not bool_ else Spec(a.shape, int64), shard=by_axis,
   tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.square(a),
   grad=(lambda g, a: g * (a * 2.0),))  # fmt: skip
op("reciprocal", complex="analytic", autocast="high", shape=pointwise_float, shard=by_axis, tries=(POSITIVE, WHOLE),
   kernel=lambda xp, a: 1.0 / a,
   grad=(lambda g, y: -g * (y * y),))  # fmt: skip
op("sqrt", complex="analytic", shape=pointwise_float, shard=by_axis, tries=(POSITIVE, ONE, WHOLE),
   kernel=lambda xp, a: xp.sqrt(a),
   grad=(lambda g, y: g / (y * 2.0),))  # fmt: skip
op("rsqrt", complex="analytic", autocast="high", shape=pointwise_float, shard=by_axis, tries=(POSITIVE, ONE, WHOLE),
   kernel=lambda xp, a: 1.0 / xp.sqrt(a),
   grad=(lambda g, y: g * (y * y * y) * -0.5,))  # fmt: skip
op("exp", complex="analytic", autocast="high", shape=pointwise_float, shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.exp(a),
   grad=(lambda g, y: g * y,))  # fmt: skip
op("exp2", complex="analytic", shape=pointwise_float, shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.exp2(a),
   grad=(lambda g, y: g * y * math.log(2.0),))  # fmt: skip
op("expm1", complex="analytic", autocast="high", shape=pointwise_float, shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.expm1(a),
   grad=(lambda g, y: g * (y + 1.0),))  # fmt: skip
op("log", complex="analytic", autocast="high", shape=pointwise_float, shard=by_axis, tries=(POSITIVE, ONE, WHOLE),
   kernel=lambda xp, a: xp.log(a),
   grad=(lambda g, a: g / a,))  # fmt: skip
op("log2", complex="analytic", autocast="high", shape=pointwise_float, shard=by_axis, tries=(POSITIVE, ONE, WHOLE),
   kernel=lambda xp, a: xp.log2(a),
   grad=(lambda g, a: g / (a * math.log(2.0)),))  # fmt: skip
op("log10", complex="analytic", autocast="high", shape=pointwise_float, shard=by_axis, tries=(POSITIVE, ONE, WHOLE),
   kernel=lambda xp, a: xp.log10(a),
   grad=(lambda g, a: g / (a * math.log(10.0)),))  # fmt: skip
op("log1p", complex="analytic", autocast="high", shape=pointwise_float, shard=by_axis, tries=(POSITIVE, ONE, WHOLE),
   kernel=lambda xp, a: xp.log1p(a),
   grad=(lambda g, a: g / (a + 1.0),))  # fmt: skip
op("sin", complex="analytic", shape=pointwise_float, shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.sin(a),
   grad=(lambda g, a: g * a.cos(),))  # fmt: skip
op("cos", complex="analytic", shape=pointwise_float, shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.cos(a),
   grad=(lambda g, a: -g * a.sin(),))  # fmt: skip
op("tan", complex="analytic", autocast="high", shape=pointwise_float, shard=by_axis, tries=(INSIDE, WHOLE),
   kernel=lambda xp, a: xp.tan(a),
   grad=(lambda g, y: g * (y * y + 1.0),))  # fmt: skip
op("asin", complex="analytic", autocast="high", shape=pointwise_float, shard=by_axis, tries=(INSIDE, ONE, WHOLE),
   kernel=lambda xp, a: xp.asin(a),
   grad=(lambda g, a: g * (1.0 - a * a).rsqrt(),))  # fmt: skip
op("acos", complex="analytic", autocast="high", shape=pointwise_float, shard=by_axis, tries=(INSIDE, ONE, WHOLE),
   kernel=lambda xp, a: xp.acos(a),
   grad=(lambda g, a: -g * (1.0 - a * a).rsqrt(),))  # fmt: skip
op("atan", complex="analytic", shape=pointwise_float, shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.atan(a),
   grad=(lambda g, a: g / (a * a + 1.0),))  # fmt: skip
op("sinh", complex="analytic", autocast="high", shape=pointwise_float, shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.sinh(a),
   grad=(lambda g, a: g * a.cosh(),))  # fmt: skip
op("cosh", complex="analytic", autocast="high", shape=pointwise_float, shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.cosh(a),
   grad=(lambda g, a: g * a.sinh(),))  # fmt: skip
op("asinh", complex="analytic", shape=pointwise_float, shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.asinh(a),
   grad=(lambda g, a: g * (a * a + 1.0).rsqrt(),))  # fmt: skip
op("acosh", complex="analytic", shape=pointwise_float, shard=by_axis, tries=(((Values(X, 1.1, 3.0),), {}), ONE, WHOLE),
   kernel=lambda xp, a: xp.acosh(a),
   grad=(_acosh_grad,))  # fmt: skip
op("atanh", complex="analytic", shape=pointwise_float, shard=by_axis, tries=(INSIDE, ONE, WHOLE),
   kernel=lambda xp, a: xp.atanh(a),
   grad=(lambda g, a: g / (1.0 - a * a),))  # fmt: skip
op("erf", shape=pointwise_float, shard=by_axis, tries=(ONE, ((Values(X, -6, 6),), {}), WHOLE),
   kernel=lambda xp, a: xp.erf(a),
   grad=(lambda g, a: g * (a * a * -1.0).exp() * TWO_BY_ROOT_PI,))  # fmt: skip
op("erfc", shape=pointwise_float, shard=by_axis, tries=(ONE, ((Values(X, -6, 6),), {}), WHOLE),
   kernel=lambda xp, a: xp.erfc(a),
   grad=(lambda g, a: g * (a * a * -1.0).exp() * -TWO_BY_ROOT_PI,))  # fmt: skip
op("erfinv", unchecked="y",
   autocast="high", shape=pointwise_float, shard=by_axis, tries=(INSIDE, ((Values(X, -1.5, 1.5),), {}), WHOLE),
   kernel=lambda xp, a: xp.erfinv(a),
   grad=(lambda g, y, a: g * (y * y).exp() * (1.0 / TWO_BY_ROOT_PI),))  # fmt: skip
