"""Special functions for NumPy, which lacks them, to the precision of float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

# Cody (1969), rational approximations on three ranges: erf(x) / x in x*x, erfc(x) * exp(x*x) in x, and in 1 / (x*x).
_A = (
    3.16112374387056560e00,
    1.13864154151050156e02,
    3.77485237685302021e02,
    3.20937758913846947e03,
    1.85777706184603153e-1,
)
_B = (2.36012909523441209e01, 2.44024637934444173e02, 1.28261652607737228e03, 2.84423683343917062e03)
_C = (5.64188496988670089e-1, 8.88314979438837594e00, 6.61191906371416295e01, 2.98635138197400131e02, 8.81952221241769090e02,
      1.71204761263407058e03, 2.05107837782607147e03, 1.23033935479799725e03, 2.15311535474403846e-8)  # fmt: skip
_D = (1.57449261107098347e01, 1.17693950891312499e02, 5.37181101862009858e02, 1.62138957456669019e03, 3.29079923573345963e03,
      4.36261909014324716e03, 3.43936767414372164e03, 1.23033935480374942e03)  # fmt: skip
_P = (3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1, 1.60837851487422766e-2,
      6.58749161529837803e-4, 1.63153871373020978e-2)  # fmt: skip
_Q = (
    2.56852019228982242e00,
    1.87295284992346047e00,
    5.27905102951428412e-1,
    6.05183413124413191e-2,
    2.33520497626869185e-3,
)


def _ratio(x: np.ndarray, over: tuple, under: tuple) -> np.ndarray:
    """Both polynomials by Horner's rule; the last coefficient above leads."""
    top, bottom = over[-1] * x, x
    for a, b in zip(over[:-2], under[:-1]):
        top, bottom = (top + a) * x, (bottom + b) * x
    return (top + over[-2]) / (bottom + under[-1])


def _tail(y: np.ndarray) -> np.ndarray:
    """erfc of arguments above 0.46875."""
    near = _ratio(np.minimum(y, 4.0), _C, _D)
    z = 1.0 / np.square(np.maximum(y, 4.0))
    far = (1.0 / math.sqrt(math.pi) - z * _ratio(z, _P, _Q)) / np.maximum(y, 4.0)
    whole = np.trunc(y * 16.0) / 16.0  # exp(-y*y) in two factors, so that the square loses no digits
    return np.exp(-whole * whole) * np.exp(-(y - whole) * (y + whole)) * np.where(y <= 4.0, near, far)


def _split(a: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = np.asarray(a, np.float64)
    y = np.minimum(np.abs(x), 40.0)
    inner = x * _ratio(np.square(np.minimum(y, 0.46875)), _A, _B)
    return x, y, inner


def erf(a: Any) -> np.ndarray:
    x, y, inner = _split(a)
    return np.where(y <= 0.46875, inner, np.sign(x) * (1.0 - _tail(np.maximum(y, 0.46875)))) + np.where(np.isnan(x), x, 0.0)


def erfc(a: Any) -> np.ndarray:
    x, y, inner = _split(a)
    tail = _tail(np.maximum(y, 0.46875))
    return np.where(y <= 0.46875, 1.0 - inner, np.where(x > 0, tail, 2.0 - tail)) + np.where(np.isnan(x), x, 0.0)


def erfinv(a: Any) -> np.ndarray:
    """A first guess (Winitzki 2008), then Halley's steps on erf, or on erfc near 1, where erf loses precision."""
    x = np.asarray(a, np.float64)
    y = np.abs(x)
    inside = np.where(y < 1.0, y, 0.0)
    log = np.log1p(-inside * inside)
    half = 2.0 / (math.pi * 0.147) + log / 2.0
    guess = np.sqrt(np.sqrt(half * half - log / 0.147) - half)
    for _ in range(3):
        error = np.where(guess < 0.5, erf(guess) - inside, (1.0 - inside) - erfc(guess))
        step = error * math.sqrt(math.pi) / 2.0 * np.exp(guess * guess)
        guess = guess - step / (1.0 + guess * step)
    found = np.where(y < 1.0, guess, np.where(y == 1.0, np.inf, np.nan))
    return np.copysign(found, x)


def _lgamma(x: float) -> float:
    if x == -math.inf or x <= 0 and x == math.floor(x):
        return math.inf
    return math.lgamma(x)


def lgamma(a: Any) -> np.ndarray:
    return np.vectorize(_lgamma, otypes=[np.float64])(np.asarray(a, np.float64))


# Bernoulli numbers B(2k), for the Euler-Maclaurin formula.
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


def digamma(a: Any) -> np.ndarray:
    """By the recurrence up to where the asymptotic series is exact; below 0.5 by the reflection formula."""
    x = np.asarray(a, np.float64)
    y = np.where(x < 0.5, 1.0 - x, x)
    total = np.zeros_like(y)
    for _ in range(10):
        low = y < 10.0
        total -= np.where(low, 1.0 / y, 0.0)
        y = np.where(low, y + 1.0, y)
    series = sum(b / (2 * k * y ** (2 * k)) for k, b in enumerate(_BERNOULLI, 1))
    found = total + np.log(y) - 0.5 / y - series
    found = np.where(x < 0.5, found - math.pi / np.tan(math.pi * (x - np.floor(x))), found)
    pole = np.where(x == 0, np.copysign(np.inf, -x), np.nan)
    return np.where((x <= 0) & (x == np.floor(x)), pole, found)


def zeta(s: Any, a: Any) -> np.ndarray:
    """The sum of (a + k) ** -s over k from 0, s above 1: some terms, and the Euler-Maclaurin formula for the rest."""
    x = np.asarray(a, np.float64)
    low = np.nanmin(x) if x.size else 0.0
    first = int(min(max(10.0 - low, 10.0), 10_000.0)) if np.isfinite(low) else 10
    total = sum(((x + k) ** -s for k in range(first)), np.zeros_like(x))
    y = x + first
    total += y ** (1.0 - s) / (s - 1.0) + 0.5 * y**-s
    rising = s
    for k, b in enumerate(_BERNOULLI, 1):
        total += b / math.factorial(2 * k) * rising * y ** (1.0 - s - 2 * k)
        rising = rising * ((s + 2 * k - 1) * (s + 2 * k))
    return np.where((x <= 0) & (x == np.floor(x)), np.inf, total)


def i1(a: Any) -> np.ndarray:
    """Bessel's integral by the trapezoidal rule, which converges exponentially over a whole period."""
    x = np.asarray(a, np.float64)
    turn = np.cos((np.arange(256) + 0.5) * (math.pi / 256))
    found = np.mean(np.exp(x[..., None] * turn) * turn, axis=-1)
    return np.where(np.isinf(x), np.nan, found)  # as in PyTorch


def erfcx(a: Any) -> np.ndarray:
    """erfc times exp(x * x)."""
    x, y, inner = _split(a)
    y = np.abs(x)
    near = _ratio(np.clip(y, 0.46875, 4.0), _C, _D)
    z = 1.0 / np.square(np.maximum(y, 4.0))
    far = (1.0 / math.sqrt(math.pi) - z * _ratio(z, _P, _Q)) / np.maximum(y, 4.0)
    tail = np.where(y <= 4.0, near, far)
    square = np.exp(np.square(x))
    found = np.where(y <= 0.46875, square * (1.0 - inner), np.where(x > 0, tail, 2.0 * square - tail))
    return found + np.where(np.isnan(x), x, 0.0)


def ndtr(a: Any) -> np.ndarray:
    return erfc(np.asarray(a, np.float64) * -math.sqrt(0.5)) / 2.0


def log_ndtr(a: Any) -> np.ndarray:
    x = np.asarray(a, np.float64) * math.sqrt(0.5)
    low = np.minimum(x, -math.sqrt(0.5))
    return np.where(x < -math.sqrt(0.5), np.log(erfcx(-low) / 2.0) - low * low, np.log1p(-erfc(x) / 2.0))


def ndtri(a: Any) -> np.ndarray:
    """Newton's method on the logarithm of erfc, which is concave, so that it overshoots at most once."""
    p = np.asarray(a, np.float64)
    inside = (p > 0) & (p < 1)
    twice = np.where(inside, 2.0 * np.minimum(p, 1.0 - p), 1.0)
    z = np.sqrt(np.maximum(-np.log(twice), 0.0))
    for _ in range(30):
        scaled = erfcx(z)
        z = np.maximum(z + (np.log(scaled) - z * z - np.log(twice)) * scaled * (math.sqrt(math.pi) / 2.0), 0.0)
    found = np.where(p < 0.5, -1.0, 1.0) * z * math.sqrt(2.0)
    return np.where(inside, found, np.where(p == 0, -np.inf, np.where(p == 1, np.inf, np.nan)))


def special_zeta(s: Any, a: Any) -> np.ndarray:
    """The Hurwitz zeta function of two arrays."""
    s, a = np.broadcast_arrays(np.asarray(s, np.float64), np.asarray(a, np.float64))
    found = zeta(np.where(s > 1, s, 2.0), a)
    found = np.where((a <= 0) & (a != np.floor(a)) & (s != np.floor(s)), np.nan, found)
    return np.where(s > 1, found, np.where(s == 1, np.inf, np.nan))


def _gamma_shares(a: Any, x: Any) -> tuple[np.ndarray, np.ndarray]:
    """The regularized lower and upper incomplete gamma functions: a series for small x, else a continued fraction."""
    a, x = np.broadcast_arrays(np.asarray(a, np.float64), np.asarray(x, np.float64))
    fine = (a > 0) & (x > 0) & np.isfinite(a) & np.isfinite(x)
    n, y = np.where(fine, a, 1.0), np.where(fine, x, 1.0)
    scale = np.exp(n * np.log(y) - y - lgamma(n))
    small = y < n + 1.0
    total = term = 1.0 / n
    z = np.where(small, y, 0.0)
    for k in range(1, 2000):
        term = term * z / (n + k)
        total = total + term
        if not np.any(np.abs(term) > np.abs(total) * 1e-17):
            break
    w = np.where(small, n + 2.0, y)  # Lentz's algorithm
    b = w + 1.0 - n
    c, d = np.full_like(b, 1e300), 1.0 / b
    h = d
    for k in range(1, 2000):
        factor = -k * (k - n)
        b = b + 2.0
        d = factor * d + b
        d = 1.0 / np.where(np.abs(d) < 1e-300, 1e-300, d)
        c = b + factor / c
        c = np.where(np.abs(c) < 1e-300, 1e-300, c)
        h = h * d * c
        if not np.any(np.abs(d * c - 1.0) > 1e-16):
            break
    low = np.where(small, scale * total, 1.0 - scale * h)
    high = np.where(small, 1.0 - scale * total, scale * h)
    nothing = (x < 0) | (a < 0) | np.isnan(a) | np.isnan(x) | (a == 0) & (x == 0) | np.isinf(a) & np.isinf(x)
    none = (x == 0) & (a > 0) | np.isinf(a)
    low = np.where(fine, low, np.where(nothing, np.nan, np.where(none, 0.0, 1.0)))
    high = np.where(fine, high, np.where(nothing, np.nan, np.where(none, 1.0, 0.0)))
    return low, high


def igamma(a: Any, x: Any) -> np.ndarray:
    return _gamma_shares(a, x)[0]


def igammac(a: Any, x: Any) -> np.ndarray:
    return _gamma_shares(a, x)[1]
