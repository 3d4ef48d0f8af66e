"""The right answers, in float64 or wider, and the distance of an answer from them in units in the last place."""

import math

import numpy as np

# Results smaller than this may be returned as zero; see docs/tensor_ops.md.
FLUSHED = {"float16": 0.0, "bfloat16": 6e-37, "float32": 6e-37, "float64": 1e-300}
DIGITS = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}
LOWEST = {"float16": -14, "bfloat16": -126, "float32": -126, "float64": -1022}
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def gate(x, a):
    with np.errstate(all="ignore"):
        root = np.exp(-0.5 * np.abs(np.maximum(a, -1e4)))
        return np.where(a < 0, np.maximum(x, -1e4) * root * root, x) / (1 + root * root)


def silu(x):
    x = np.asarray(x, np.float64)
    return gate(x, x)


def gelu_tanh(x):
    x = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        return gate(x, x * (1.5957691216057308 + 1.5957691216057308 * 0.044715 * x * x))


def gelu_erf(x):
    x = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        return np.where(x == -np.inf, -0.0, 0.5 * x * _erfc(-x / math.sqrt(2)))


def rms_norm(x, weight, eps):
    wide = np.asarray(x, np.longdouble)
    if not wide.size:
        return wide
    with np.errstate(all="ignore"):
        return wide / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + np.longdouble(eps)) * weight


def ulps(got, want, dtype):
    """The largest distance in units in the last place of `dtype`. Infinite unless NaN and infinity agree."""
    got, want = np.asarray(got, np.longdouble), np.asarray(want, np.longdouble)
    most = np.longdouble(2) ** (1 - LOWEST[dtype]) * (2 - np.longdouble(2) ** -DIGITS[dtype])
    want = np.where(np.abs(want) > most * (1 + np.longdouble(2) ** (-DIGITS[dtype] - 2)), np.copysign(np.inf, want), want)
    special = ~np.isfinite(want)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    if not np.all(same[special]):
        return math.inf
    got, want = got[~special], want[~special]
    if not np.all(np.isfinite(got)):
        return math.inf
    if not got.size:
        return 0.0
    exponent = np.maximum(np.frexp(np.abs(want))[1] - 1, LOWEST[dtype])
    distance = np.abs(got - want) / np.ldexp(np.longdouble(1), exponent - DIGITS[dtype])
    flushed = (np.abs(want) < FLUSHED[dtype]) & (np.abs(got) < FLUSHED[dtype])
    return float(np.max(np.where(flushed, 0, distance)))
