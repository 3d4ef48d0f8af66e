"""rms_norm, silu and gelu on arrays, by the fastest backend this machine has: CUDA, OpenCL, C++ or NumPy.

    >>> import numpy as np
    >>> from gt import tensor_ops
    >>> tensor_ops.silu(np.array([0.0, 2.0], dtype=np.float32)).round(3).tolist()
    [0.0, 1.7619999647140503]

Takes NumPy, torch and DLPack arrays of float16, bfloat16, float32 and float64, and returns the dtype it was given:
torch tensors for torch tensors, NumPy arrays for others. No gradients; GT tensors have those: on them, these are the ops
`gt.silu` and so on, which workers compute.
"""

from typing import Any

from gt.tensor_ops import calls, tensors
from gt.tensor_ops.choice import process as _choice

__all__ = ["gelu", "get_backend", "get_backend_info", "rms_norm", "set_backend", "silu"]


def rms_norm(x: Any, weight: Any, eps: float = 1e-6, *, out: Any = None) -> Any:
    """x / sqrt(mean(x^2) + eps) * weight, over the last axis. 16-bit x may have a float32 weight."""
    if tensors.is_tensor(x):
        return tensors.rms_norm(x, weight, eps, out)
    return calls.rms_norm(_choice.pick(x), x, weight, eps, out)


def silu(x: Any, *, out: Any = None) -> Any:
    """x * sigmoid(x)."""
    if tensors.is_tensor(x):
        return tensors.apply("silu", x, out=out)
    return calls.silu(_choice.pick(x), x, out)


def gelu(x: Any, approximate: str = "tanh", *, out: Any = None) -> Any:
    """x * Phi(x): by tanh as most language models have it, or exactly with approximate="none"."""
    if tensors.is_tensor(x):
        return tensors.apply("gelu", x, out=out, tanh=calls.gelu_form(approximate) == "gelu_tanh")
    return calls.gelu(_choice.pick(x), x, approximate, out)


def get_backend() -> str:
    """The name of the backend in use: cuda, opencl, cpp or python."""
    return _choice.active().name


def get_backend_info() -> dict[str, Any]:
    """The backend in use, the source of this choice, the other available backends, and why others are not available."""
    return _choice.info()


def set_backend(name: str | None) -> None:
    """Use this backend from now on, or with "auto" or None the configured one. Raises if it is not available."""
    _choice.set(name)
