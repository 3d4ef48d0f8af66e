"""The results of probes, and their computation: a matrix product whose exact result is known."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class Found:
    """The result of a backend that computed: `max_abs_err` shows whether it is right."""

    library: str
    library_version: str
    executes: str
    max_abs_err: float
    seconds: float
    device_count: int = 1
    compute_capability: int = 0
    compute_units: int = 0
    max_memory: int = 0
    max_shared_memory: int = 0
    dtypes: tuple[str, ...] = FLOATS
    tolerance: float = 1e-3

    @property
    def passed(self) -> bool:
        return self.max_abs_err <= self.tolerance


@dataclass(frozen=True)
class Missing:
    """The reason why a backend could not compute."""

    reason: str


Outcome = Found | Missing


def cpu_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def operands() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two matrices of small integers and their product, which float32 holds exactly."""
    a = (np.arange(64 * 96) % 7 - 3).reshape(64, 96).astype(np.float32)
    b = (np.arange(96 * 32) % 5 - 2).reshape(96, 32).astype(np.float32)
    return a, b, (a.astype(np.int64) @ b.astype(np.int64)).astype(np.float32)


def try_product(product: Callable[[np.ndarray, np.ndarray], Any]) -> tuple[float, float]:
    """The largest error of a library's matrix product, and how long it took."""
    return try_on(product, *operands())


def try_on(
    function: Callable[[np.ndarray, np.ndarray], Any], a: np.ndarray, b: np.ndarray, want: np.ndarray
) -> tuple[float, float]:
    """The largest error of a function, and how long it took."""
    began = time.perf_counter()
    got = np.asarray(function(a, b))
    return float(np.max(np.abs(got - want))), time.perf_counter() - began
