"""Functions of one number, element by element. Rows are named as PyTorch names them."""

from __future__ import annotations

import math
from functools import partial

from gt.ops import table
from gt.ops.elementwise import ABOVE, ONE, X, no_bools
from gt.ops.rules import by_axis, linear, pointwise, pointwise_float
from gt.ops.table import Try, Values
from gt.spec import Spec, bool_, int64

op = partial(table.op, pointwise=True)

POSITIVE: Try = ((ABOVE,), {})
INSIDE: Try = ((Values(X, -0.9, 0.9),), {})
WHOLE: Try = ((Spec((3,), int64),), {})
TWO_BY_ROOT_PI = 2.0 / math.sqrt(math.pi)

op("neg", shape=no_bools("negate", "use ~ or logical_not"), shard=linear, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.negative(a),
   grad=(lambda g: -g,))  # fmt: skip
op("abs", shape=no_bools("take the magnitude of"), shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.abs(a),
   grad=(lambda g, a: g * a.sign(),))  # fmt: skip
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
op("square", shape=lambda a: a if a.dtype is not bool_ else Spec(a.shape, int64), shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.square(a),
   grad=(lambda g, a: g * (a * 2.0),))  # fmt: skip
op("reciprocal", autocast="high", shape=pointwise_float, shard=by_axis, tries=(POSITIVE, WHOLE),
   kernel=lambda xp, a: 1.0 / a,
   grad=(lambda g, y: -g * (y * y),))  # fmt: skip
op("sqrt", shape=pointwise_float, shard=by_axis, tries=(POSITIVE, ONE, WHOLE),
   kernel=lambda xp, a: xp.sqrt(a),
   grad=(lambda g, y: g / (y * 2.0),))  # fmt: skip
op("rsqrt", autocast="high", shape=pointwise_float, shard=by_axis, tries=(POSITIVE, ONE, WHOLE),
   kernel=lambda xp, a: 1.0 / xp.sqrt(a),
   grad=(lambda g, y: g * (y * y * y) * -0.5,))  # fmt: skip
op("exp", autocast="high", shape=pointwise_float, shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.exp(a),
   grad=(lambda g, y: g * y,))  # fmt: skip
op("exp2", shape=pointwise_float, shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.exp2(a),
   grad=(lambda g, y: g * y * math.log(2.0),))  # fmt: skip
op("expm1", autocast="high", shape=pointwise_float, shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.expm1(a),
   grad=(lambda g, y: g * (y + 1.0),))  # fmt: skip
op("log", autocast="high", shape=pointwise_float, shard=by_axis, tries=(POSITIVE, ONE, WHOLE),
   kernel=lambda xp, a: xp.log(a),
   grad=(lambda g, a: g / a,))  # fmt: skip
op("log2", autocast="high", shape=pointwise_float, shard=by_axis, tries=(POSITIVE, ONE, WHOLE),
   kernel=lambda xp, a: xp.log2(a),
   grad=(lambda g, a: g / (a * math.log(2.0)),))  # fmt: skip
op("log10", autocast="high", shape=pointwise_float, shard=by_axis, tries=(POSITIVE, ONE, WHOLE),
   kernel=lambda xp, a: xp.log10(a),
   grad=(lambda g, a: g / (a * math.log(10.0)),))  # fmt: skip
op("log1p", autocast="high", shape=pointwise_float, shard=by_axis, tries=(POSITIVE, ONE, WHOLE),
   kernel=lambda xp, a: xp.log1p(a),
   grad=(lambda g, a: g / (a + 1.0),))  # fmt: skip
op("sin", shape=pointwise_float, shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.sin(a),
   grad=(lambda g, a: g * a.cos(),))  # fmt: skip
op("cos", shape=pointwise_float, shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.cos(a),
   grad=(lambda g, a: -g * a.sin(),))  # fmt: skip
op("tan", autocast="high", shape=pointwise_float, shard=by_axis, tries=(INSIDE, WHOLE),
   kernel=lambda xp, a: xp.tan(a),
   grad=(lambda g, y: g * (y * y + 1.0),))  # fmt: skip
op("asin", autocast="high", shape=pointwise_float, shard=by_axis, tries=(INSIDE, ONE, WHOLE),
   kernel=lambda xp, a: xp.asin(a),
   grad=(lambda g, a: g * (1.0 - a * a).rsqrt(),))  # fmt: skip
op("acos", autocast="high", shape=pointwise_float, shard=by_axis, tries=(INSIDE, ONE, WHOLE),
   kernel=lambda xp, a: xp.acos(a),
   grad=(lambda g, a: -g * (1.0 - a * a).rsqrt(),))  # fmt: skip
op("atan", shape=pointwise_float, shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.atan(a),
   grad=(lambda g, a: g / (a * a + 1.0),))  # fmt: skip
op("sinh", autocast="high", shape=pointwise_float, shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.sinh(a),
   grad=(lambda g, a: g * a.cosh(),))  # fmt: skip
op("cosh", autocast="high", shape=pointwise_float, shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.cosh(a),
   grad=(lambda g, a: g * a.sinh(),))  # fmt: skip
op("asinh", shape=pointwise_float, shard=by_axis, tries=(ONE, WHOLE),
   kernel=lambda xp, a: xp.asinh(a),
   grad=(lambda g, a: g * (a * a + 1.0).rsqrt(),))  # fmt: skip
op("acosh", shape=pointwise_float, shard=by_axis, tries=(((Values(X, 1.1, 3.0),), {}), ONE, WHOLE),
   kernel=lambda xp, a: xp.acosh(a),
   grad=(lambda g, a: g * (a * a - 1.0).rsqrt(),))  # fmt: skip
op("atanh", shape=pointwise_float, shard=by_axis, tries=(INSIDE, ONE, WHOLE),
   kernel=lambda xp, a: xp.atanh(a),
   grad=(lambda g, a: g / (1.0 - a * a),))  # fmt: skip
op("erf", shape=pointwise_float, shard=by_axis, tries=(ONE, ((Values(X, -6, 6),), {}), WHOLE),
   kernel=lambda xp, a: xp.erf(a),
   grad=(lambda g, a: g * (a * a * -1.0).exp() * TWO_BY_ROOT_PI,))  # fmt: skip
op("erfc", shape=pointwise_float, shard=by_axis, tries=(ONE, ((Values(X, -6, 6),), {}), WHOLE),
   kernel=lambda xp, a: xp.erfc(a),
   grad=(lambda g, a: g * (a * a * -1.0).exp() * -TWO_BY_ROOT_PI,))  # fmt: skip
op("erfinv", autocast="high", shape=pointwise_float, shard=by_axis, tries=(INSIDE, ((Values(X, -1.5, 1.5),), {}), WHOLE),
   kernel=lambda xp, a: xp.erfinv(a),
   grad=(lambda g, y: g * (y * y).exp() * (1.0 / TWO_BY_ROOT_PI),))  # fmt: skip
