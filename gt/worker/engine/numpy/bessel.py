"""Bessel and Airy functions for NumPy, which lacks them, to the precision of float64: by the trapezoidal rule on integrals over
a period or along a line of fast decay, where it converges exponentially, and by Hankel's asymptotic series for large
arguments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

EULER = 0.57721566490153286
FAR = 25.0  # arguments from which Hankel's series is exact to float64
_TURN = (np.arange(128) + 0.5) * (math.pi / 128)
_SINE = np.sin(_TURN)
_K = np.arange(1, 41)
_SIGN = np.where(_K % 2, -1.0, 1.0)
# Neumann's series of Bessel functions of higher orders, summed over the orders before the integral is taken.
_SERIES_0 = (_SIGN / _K) @ np.cos(2 * _K[:, None] * _TURN)
_SERIES_1 = (_SIGN * (2 * _K + 1) / (_K * (_K + 1))) @ np.sin((2 * _K[:, None] + 1) * _TURN)


def _hankel(order: int, x: np.ndarray, terms: int = 16) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The series p and q and the angle: J is sqrt(2 / (pi x)) * (p cos - q sin), Y is sqrt(2 / (pi x)) * (p sin + q cos)."""
    p, q, term = np.ones_like(x), np.zeros_like(x), np.ones_like(x)
    for k in range(1, terms):
        term = term * ((4 * order * order - (2 * k - 1) ** 2) / (8.0 * k)) / x
        part = term if k % 4 in (0, 1) else -term
        if k % 2:
            q = q + part
        else:
            p = p + part
    return p, q, x - (order / 2 + 0.25) * math.pi


def _split(a: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The arguments, their absolute values where small, and a mask of the large ones."""
    x = np.asarray(a, np.float64)
    y = np.abs(x)
    return x, np.where(y <= FAR, y, 1.0), np.where(y > FAR, y, FAR)


def _j(order: int, a: Any) -> np.ndarray:
    x, near, far = _split(a)
    wave = near[..., None] * _SINE
    small = np.mean(np.cos(wave), -1) if order == 0 else np.mean(np.sin(wave) * _SINE, -1)
    p, q, angle = _hankel(order, far)
    large = np.sqrt(2.0 / (math.pi * far)) * (p * np.cos(angle) - q * np.sin(angle))
    found = np.where(np.abs(x) <= FAR, small, large)
    return np.where(np.isnan(x), x, np.where(x < 0, -found, found) if order else found)


def bessel_j0(a: Any) -> np.ndarray:
    return _j(0, a)


def bessel_j1(a: Any) -> np.ndarray:
    return _j(1, a)


def _y(order: int, a: Any) -> np.ndarray:
    x, near, far = _split(a)
    near = np.where(near == 0, 1.0, near)
    wave, log = near[..., None] * _SINE, np.log(near / 2.0) + EULER
    if order == 0:
        small = 2 / math.pi * log * _j(0, near) - 4 / math.pi * np.mean(np.cos(wave) * _SERIES_0, -1)
    else:
        small = 2 / math.pi * ((log - 1.0) * _j(1, near) - _j(0, near) / near - np.mean(np.sin(wave) * _SERIES_1, -1))
    p, q, angle = _hankel(order, far)
    large = np.sqrt(2.0 / (math.pi * far)) * (p * np.sin(angle) + q * np.cos(angle))
    found = np.where(x <= FAR, small, large)
    return np.where(x > 0, found, np.where(x == 0, -np.inf, np.nan))


def bessel_y0(a: Any) -> np.ndarray:
    return _y(0, a)


def bessel_y1(a: Any) -> np.ndarray:
    return _y(1, a)


def _ie(order: int, a: Any) -> np.ndarray:
    """The modified function of the first kind, times exp(-|x|)."""
    x = np.asarray(a, np.float64)
    y = np.minimum(np.abs(x), 500.0)
    turn = np.cos((np.arange(256) + 0.5) * (math.pi / 256))
    small = np.mean(np.exp(y[..., None] * (turn - 1.0)) * turn**order, axis=-1)
    far = np.maximum(np.abs(x), 500.0)
    series = term = np.ones_like(far)
    for k in range(1, 10):
        term = term * -((4 * order * order - (2 * k - 1) ** 2) / (8.0 * k)) / far
        series = series + term
    found = np.where(np.abs(x) <= 500.0, small, series / np.sqrt(2 * math.pi * far))
    return np.where(np.isnan(x), x, np.where(x < 0, -found, found) if order else found)


def i0e(a: Any) -> np.ndarray:
    return _ie(0, a)


def i1e(a: Any) -> np.ndarray:
    return _ie(1, a)


def modified_bessel_i0(a: Any) -> np.ndarray:
    return _ie(0, a) * np.exp(np.abs(np.asarray(a, np.float64)))


def modified_bessel_i1(a: Any) -> np.ndarray:
    return _ie(1, a) * np.exp(np.abs(np.asarray(a, np.float64)))


def _ke(order: int, a: Any) -> np.ndarray:
    """The modified function of the second kind, times exp(x): by an integral, or near zero by its series."""
    x = np.asarray(a, np.float64)
    y = np.where((x >= 0.1) & np.isfinite(x), x, 1.0)[..., None]
    t = np.arccosh(1.0 + 745.0 / y) * (np.arange(201) / 200.0)
    weight = np.where(np.arange(201) == 0, 0.5, 1.0)
    large = np.sum(np.exp(-y * (np.cosh(t) - 1.0)) * np.cosh(order * t) * weight, -1) * t[..., 1]
    z = np.where((x > 0) & (x < 0.1), x, 0.05)
    quarter, log, term = z * z / 4.0, np.log(z / 2.0), np.ones_like(z)
    if order == 0:
        small, harmonic = -(log + EULER), 0.0
        for k in range(1, 8):
            term, harmonic = term * quarter / (k * k), harmonic + 1.0 / k
            small = small + term * (harmonic - log - EULER)
    else:
        small, first, second = 1.0 / z, -EULER, 1.0 - EULER
        for k in range(8):
            small = small + term * (z / 2.0) * (log - (first + second) / 2.0)
            term = term * quarter / ((k + 1) * (k + 2))
            first, second = first + 1.0 / (k + 1), second + 1.0 / (k + 2)
    found = np.where(x >= 0.1, large, small * np.exp(z))
    found = np.where(x == np.inf, 0.0, np.where(x == 0, np.inf, found))
    return np.where(x >= 0, found, np.nan)


def scaled_modified_bessel_k0(a: Any) -> np.ndarray:
    return _ke(0, a)


def scaled_modified_bessel_k1(a: Any) -> np.ndarray:
    return _ke(1, a)


def modified_bessel_k0(a: Any) -> np.ndarray:
    return _ke(0, a) * np.exp(-np.asarray(a, np.float64))


def modified_bessel_k1(a: Any) -> np.ndarray:
    return _ke(1, a) * np.exp(-np.asarray(a, np.float64))


def spherical_bessel_j0(a: Any) -> np.ndarray:
    x = np.asarray(a, np.float64)
    found = np.where(x == 0, 1.0, np.sin(x) / np.where(x == 0, 1.0, x))
    return np.where(np.isinf(x), 0.0, found)


def airy_ai(a: Any) -> np.ndarray:
    """Airy's integral along a line above the real axis, through the saddle point if there is one; for large negative arguments
    the asymptotic series."""
    x = np.asarray(a, np.float64)
    near = np.where((x > -FAR) & (x < 120.0), x, 0.0)
    height = np.sqrt(np.maximum(near, 0.25))[..., None]
    t = np.sqrt(40.0 / height) * (np.arange(601) / 600.0)
    weight = np.where(np.arange(601) == 0, 0.5, 1.0)
    z = t + 1j * height
    # the saddle point's exponent is factored out to avoid underflow
    wave = 1j * (z**3 / 3.0 + near[..., None] * z)
    small = np.sum(np.exp(wave).real * weight, -1) * t[..., 1] / math.pi
    y = np.where(x <= -FAR, -x, FAR)
    zeta, u = 2.0 / 3.0 * y**1.5, 1.0
    even, odd = np.ones_like(y), np.zeros_like(y)
    for k in range(1, 10):
        u *= (6 * k - 5) * (6 * k - 3) * (6 * k - 1) / (216.0 * k * (2 * k - 1))
        part = u / zeta**k * (1.0 if k % 4 in (0, 1) else -1.0)
        even, odd = (even, odd + part) if k % 2 else (even + part, odd)
    angle = zeta - math.pi / 4
    large = (np.cos(angle) * even + np.sin(angle) * odd) / (math.sqrt(math.pi) * y**0.25)
    found = np.where(x <= -FAR, large, np.where(x >= 120.0, 0.0, small))
    return np.where(np.isfinite(x), found, np.nan)
