"""Whether a backend computes the right numbers here: the three ops on fixed input against float64 NumPy."""

import time
from typing import Any, NamedTuple

import numpy as np

from gt.tensor_ops import calls

TOLERANCE = 1e-5


class SelfTest(NamedTuple):
    passed: bool
    max_abs_err: float
    seconds: float


def self_test(backend: Any) -> SelfTest:
    began = time.perf_counter()
    x = np.linspace(-9, 9, 3 * 257, dtype=np.float32).reshape(3, 257)
    weight = np.linspace(0.5, 1.5, 257, dtype=np.float32)
    wide = x.astype(np.float64)
    twice_u = 2 * np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    pairs = [
        (calls.silu(backend, x), wide / (1 + np.exp(-wide))),
        (calls.gelu(backend, x), wide / (1 + np.exp(-twice_u))),
        (calls.rms_norm(backend, x, weight), wide / np.sqrt(np.mean(wide**2, -1, keepdims=True) + 1e-6) * weight),
    ]
    worst = max(float(np.max(np.abs(got - want))) for got, want in pairs)
    return SelfTest(worst <= TOLERANCE, worst, time.perf_counter() - began)
