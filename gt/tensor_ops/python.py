"""The Python backend: NumPy only, always available. It works in blocks that fit into the cache.

Results are computed in float32 or float64 and rounded once.
"""

import math
from typing import Any

import numpy as np

from gt.tensor_ops.arrays import narrow, widen

name = "python"
dtypes = ("float32", "float64", "float16", "bfloat16")
on_device = False

_BLOCK = 1 << 15


def reason_unavailable() -> str | None:
    return None


def elementwise(op: str, x: np.ndarray, out: np.ndarray, dtype: str) -> None:
    formula = _FORMULAS[op]
    x, out = x.reshape(-1), out.reshape(-1)
    with np.errstate(all="ignore"):
        for at in range(0, x.size, _BLOCK):
            out[at : at + _BLOCK] = narrow(formula(widen(x[at : at + _BLOCK], dtype)), dtype)


def rms_norm(x: np.ndarray, weight: np.ndarray, out: np.ndarray, eps: float, dtype: str) -> None:
    rows = max(1, _BLOCK // max(1, x.shape[1]))
    with np.errstate(all="ignore"):
        for at in range(0, x.shape[0], rows):
            out[at : at + rows] = narrow(_rms_norm(widen(x[at : at + rows], dtype), weight, eps), dtype)


def _rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    wide = x.astype(np.float64)  # (rows, columns)
    if x.dtype == np.float64:
        # Squares of doubles can leave their range: everything is divided by the largest magnitude first.
        most = np.fmax(np.nanmax(np.abs(wide), axis=-1, keepdims=True, initial=0.0), np.sqrt(eps))
        most = np.minimum(most, np.finfo(np.float64).max)
        wide = wide / most
        eps_scaled: Any = (np.sqrt(eps) / most) ** 2
    else:
        eps_scaled = eps
    scale = 1.0 / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + eps_scaled)
    return (wide * scale * weight).astype(x.dtype)


def _gate(x: np.ndarray, a: np.ndarray) -> np.ndarray:
    """x * sigmoid(a). The root of exp(-|a|) does not underflow before the result does."""
    root = np.exp(-0.5 * np.minimum(np.abs(a), 1400.0))
    return np.where(a < 0, x * root * root, x) / (1 + root * root)


# Both in float64, also for float32: NumPy's float32 exp is off by 2.5 units on some CPUs, and the root's square doubles that.
def _silu(x: np.ndarray) -> np.ndarray:
    wide = np.maximum(x.astype(np.float64), -1000.0)  # beyond it the result is zero, also for -inf
    return _gate(wide, wide).astype(x.dtype)


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    wide = np.maximum(x.astype(np.float64), -40.0)
    return _gate(wide, wide * (1.5957691216057308 + 0.07135481627260025 * (wide * wide))).astype(x.dtype)


# erfc(t) = exp(-t^2) * P((t - 2) / (t + 2)) / (1 + 2t) to one part in 10^9, highest power first.
_ERFC = (
    (8.06256479505e-5, 0.000172223353327, -0.000399907185781, -0.00142316590445, 0.00125119765069, 0.00870969170279)
    + (-0.00803032943895, -0.0542178675874, 0.164050974698, -0.166030522527, -0.0927638186159, 1.27697838271)
)  # fmt: skip


def _gelu_erf(x: np.ndarray) -> np.ndarray:
    """x * Phi(x) = max(x, 0) - |x| / 2 * erfc(|x| / sqrt(2))."""
    size = np.minimum(np.abs(x).astype(np.float64), 60.0)
    t = size * 0.7071067811865476
    if x.dtype == np.float64:
        erfc = np.array([math.erfc(v) for v in t.ravel()]).reshape(t.shape)
    else:
        erfc = np.exp(-t * t) * np.polyval(_ERFC, (t - 2) / (t + 2)) / (1 + 2 * t)
    return (np.where(x < 0, 0.0, x) - 0.5 * size * erfc).astype(x.dtype)


_FORMULAS = {"silu": _silu, "gelu_tanh": _gelu_tanh, "gelu_erf": _gelu_erf}
