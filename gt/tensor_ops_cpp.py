"""rms_norm, silu and gelu on the C++ backend, whatever `gt.tensor_ops` chooses. Calls raise where it is missing."""

from typing import Any

from gt.tensor_ops import calls
from gt.tensor_ops.cpp import backend as _backend
from gt.tensor_ops.cpp.backend import get_optimization_info

__all__ = ["gelu", "get_optimization_info", "rms_norm", "silu"]


def rms_norm(x: Any, weight: Any, eps: float = 1e-6, *, out: Any = None) -> Any:
    return calls.rms_norm(_backend, x, weight, eps, out)


def silu(x: Any, *, out: Any = None) -> Any:
    return calls.silu(_backend, x, out)


def gelu(x: Any, approximate: str = "tanh", *, out: Any = None) -> Any:
    return calls.gelu(_backend, x, approximate, out)
