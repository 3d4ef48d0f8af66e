"""Activations, and their gradients as rows of their own, since each is one kernel."""

from __future__ import annotations

import math
from functools import partial

from gt.errors import UnsupportedDTypeError
from gt.ops import table
from gt.ops.elementwise import ONE, X, no_bools
from gt.ops.rules import by_axis, pointwise_float
from gt.ops.table import Operand, Try
from gt.spec import DType, Spec, int8, int16, int32, int64, uint8

op = partial(table.op, pointwise=True, shard=by_axis)

PAIR: Try = ((X, X), {})
INTEGERS = (uint8, int8, int16, int32, int64)
ROOT_HALF = math.sqrt(0.5)
ROOT_TWO_BY_PI = math.sqrt(2.0 / math.pi)
GELU_ZERO = -1e4  # gelu is zero from here down, in every dtype; the product that gives it must not have infinity as a factor


def floats(name: str, *whole: DType):
    """The first operand's Spec: a floating-point tensor, or one of these dtypes of whole numbers."""

    def rule(a: Spec, *rest: Operand, **_: object) -> Spec:
        if a.dtype.rank < 2 and a.dtype not in whole:
            raise UnsupportedDTypeError(
                f"{name}: expected a floating-point tensor, got {a.dtype.name}: cast with .float() first"
            )
        return a

    return rule


def paired(g: Spec, a: Spec, *rest: Operand, **_: object) -> Spec:
    """The spec of a gradient, which has the shape of its value."""
    floats("a gradient")(g)
    if g.shape != a.shape:
        raise ValueError(f"expected a gradient of the value's shape {a.shape}, got {g.shape}")
    return g


def _signed(a: Spec) -> Spec:
    if not a.dtype.is_signed:
        raise TypeError(f"hardtanh: expected a signed dtype, got {a.dtype.name}")
    return a


def _sigmoid(xp, a):
    """The logistic function without overflow on either side."""
    if a.dtype in (xp.complex64, xp.complex128):
        return 1.0 / (1.0 + xp.exp(-a))
    small = xp.exp(-xp.abs(a))
    return xp.where(a >= 0, 1.0, small) / (1.0 + small)


def _gelu(xp, a, *, tanh):
    least = xp.clip(a, GELU_ZERO, None)
    if tanh:
        return least * 0.5 * (1.0 + xp.tanh(ROOT_TWO_BY_PI * (a + 0.044715 * a * a * a)))
    return least * 0.5 * (1.0 + xp.erf(a * ROOT_HALF))


def _gelu_grad(xp, g, a, *, tanh):
    if tanh:
        t = xp.tanh(ROOT_TWO_BY_PI * (a + 0.044715 * a * a * a))
        slope = ROOT_TWO_BY_PI * (1.0 + 3.0 * 0.044715 * a * a)
        return g * (0.5 * (1.0 + t) + 0.5 * a * (1.0 - t * t) * slope)
    bell = xp.exp(a * a * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))
    return g * (0.5 * (1.0 + xp.erf(a * ROOT_HALF)) + a * bell)


def _lower_gelu(a, *, tanh):
    least = a.maximum(GELU_ZERO)
    if tanh:
        return least * 0.5 * (((a + a * a * a * 0.044715) * ROOT_TWO_BY_PI).tanh() + 1.0)
    return least * 0.5 * ((a * ROOT_HALF).erf() + 1.0)


def _lower_gelu_grad(g, a, *, tanh):
    if tanh:
        t = ((a + a * a * a * 0.044715) * ROOT_TWO_BY_PI).tanh()
        slope = (a * a * (3.0 * 0.044715) + 1.0) * ROOT_TWO_BY_PI
        return g * ((t + 1.0) * 0.5 + a * 0.5 * (1.0 - t * t) * slope)
    bell = (a * a * -0.5).exp() * (1.0 / math.sqrt(2.0 * math.pi))
    return g * (((a * ROOT_HALF).erf() + 1.0) * 0.5 + a * bell)


def _silu_grad(xp, g, a):
    s = _sigmoid(xp, a)
    return g * s * (1.0 + a * (1.0 - s))


def _lower_silu_grad(g, a):
    s = a.sigmoid()
    return g * s * (a * (1.0 - s) + 1.0)


def _softplus(xp, a, beta, threshold):
    """Linear above the threshold, as in PyTorch."""
    scaled = a * beta
    return xp.where(scaled > threshold, a, (xp.clip(scaled, 0.0, None) + xp.log1p(xp.exp(-xp.abs(scaled)))) / beta)


op("relu", shape=no_bools("rectify"), tries=(ONE,),
   kernel=lambda xp, a: xp.clip(a, 0, None),
   grad=(lambda g, y: g.relu_grad(y),))  # fmt: skip
op("relu_grad", shape=paired, tries=(PAIR,),
   kernel=lambda xp, g, y: xp.where(y <= 0, 0.0, g),
   grad=(lambda g, b: g.relu_grad(b), None))  # fmt: skip
op("sigmoid", complex="analytic", shape=pointwise_float, tries=(ONE,),
   kernel=_sigmoid,
   grad=(lambda g, y: g.sigmoid_grad(y),))  # fmt: skip
op("sigmoid_grad", complex="analytic", shape=paired, tries=(PAIR,),
   kernel=lambda xp, g, y: g * y * (1.0 - y),
   grad=(lambda g, b: g.sigmoid_grad(b), lambda g, a, b: g * a * (1.0 - b * 2.0)))  # fmt: skip
op("tanh", complex="analytic", shape=pointwise_float, tries=(ONE,),
   kernel=lambda xp, a: xp.tanh(a),
   grad=(lambda g, y: g.tanh_grad(y),))  # fmt: skip
op("tanh_grad", complex="analytic", shape=paired, tries=(PAIR,),
   kernel=lambda xp, g, y: g * (1.0 - y * y),
   grad=(lambda g, b: g.tanh_grad(b), lambda g, a, b: g * a * b * -2.0))  # fmt: skip
op("gelu", shape=floats("gelu"), tries=(((X,), {"tanh": False}), ((X,), {"tanh": True})),
   kernel=_gelu, lower=_lower_gelu,
   grad=(lambda g, a, tanh: g.op("gelu_grad", a, tanh=tanh),))  # fmt: skip
op("gelu_grad", shape=paired, tries=(((X, X), {"tanh": False}), ((X, X), {"tanh": True})),
   kernel=_gelu_grad,
   lower=_lower_gelu_grad)  # fmt: skip
op("silu", complex="own", shape=floats("silu"), tries=(ONE,),
   kernel=lambda xp, a: a * _sigmoid(xp, a),
   lower=lambda a: a * a.sigmoid(),
   grad=(lambda g, a: g.silu_grad(a),))  # fmt: skip
op("silu_grad", shape=paired, tries=(PAIR,),
   kernel=_silu_grad,
   lower=_lower_silu_grad)  # fmt: skip
op("leaky_relu", shape=floats("leaky_relu"), tries=(((X, 0.1), {}),),
   kernel=lambda xp, a, slope: xp.where(a > 0, a, a * slope),
   grad=(lambda g, a, b: g.leaky_relu_grad(a, b), None))  # fmt: skip
op("leaky_relu_grad", shape=paired, tries=(((X, X, 0.1), {}),),
   kernel=lambda xp, g, a, slope: xp.where(a > 0, g, g * slope),
   grad=(lambda g, b, c: g.leaky_relu_grad(b, c), None, None))  # fmt: skip
op("elu", shape=floats("elu"), tries=(((X, 1.0), {}), ((X, 0.5), {})),
   kernel=lambda xp, a, alpha: xp.where(a > 0, a, alpha * xp.expm1(xp.clip(a, None, 0.0))),
   grad=(lambda g, a, b: g.elu_grad(a, b), None))  # fmt: skip
op("elu_grad", shape=paired, tries=(((X, X, 0.5), {}),),
   kernel=lambda xp, g, a, alpha: xp.where(a > 0, g, g * alpha * xp.exp(xp.clip(a, None, 0.0))),
   lower=lambda g, a, alpha: (a > 0).pick(g, g * alpha * a.minimum(0.0).exp()))  # fmt: skip
op("softplus", autocast="high", shape=floats("softplus"), tries=(((X, 1.0, 20.0), {}), ((X, 2.0, 1.5), {})),
   kernel=_softplus,
   grad=(lambda g, a, b, c: g.softplus_grad(a, b, c), None, None))  # fmt: skip
op("softplus_grad", shape=paired, tries=(((X, X, 2.0, 1.5), {}),),
   kernel=lambda xp, g, a, beta, threshold: xp.where(a * beta > threshold, g, g * _sigmoid(xp, a * beta)),
   lower=lambda g, a, beta, threshold: (a * beta > threshold).pick(g, g * (a * beta).sigmoid()))  # fmt: skip
op("hardtanh", shape=lambda a, low, high: _signed(a), tries=(((X, -1.0, 0.5), {}),),
   kernel=lambda xp, a, low, high: xp.clip(a, low, high),
   grad=(lambda g, a, b, c: g.hardtanh_grad(a, b, c), None, None))  # fmt: skip
op("hardtanh_grad", shape=paired, tries=(((X, X, -1.0, 0.5), {}),),
   kernel=lambda xp, g, a, low, high: xp.where((a <= low) | (a >= high), 0.0, g),
   grad=(lambda g, b, c, d: g.hardtanh_grad(b, c, d), None, None, None))  # fmt: skip
