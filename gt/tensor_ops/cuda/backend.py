"""The Triton kernels as a backend: host arrays are moved to the GPU and back, torch tensors on a GPU stay there."""

import functools
from typing import Any

import numpy as np

from gt.backends.machine import driver_reason
from gt.lazy_import import LazyImport

kernels = LazyImport("gt.tensor_ops.cuda.kernels")  # imports Triton

name = "cuda"
dtypes = ("float32", "float64", "float16", "bfloat16")
on_device = True


@functools.cache
def reason_unavailable() -> str | None:
    if reason := driver_reason():
        return reason
    try:
        import torch
    except ImportError as error:
        return f"torch, which holds the GPU's memory, cannot be imported: {error}"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    try:
        import triton  # noqa: F401
    except ImportError as error:
        return f"triton cannot be imported: {error}"
    return None


def _torch() -> Any:
    if reason := reason_unavailable():
        raise RuntimeError(reason)
    import torch

    return torch


def _tensor(torch: Any, raw: np.ndarray, dtype: str) -> Any:
    """A torch view of host memory."""
    if dtype == "bfloat16":
        return torch.from_numpy(raw.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(raw)


def elementwise(op: str, x: np.ndarray, out: np.ndarray, dtype: str) -> None:
    torch = _torch()
    moved = _tensor(torch, _owned(x), dtype).to("cuda")
    kernels.run_elementwise(op, moved, moved, dtype == "float64")
    _tensor(torch, out, dtype).copy_(moved)


def rms_norm(x: np.ndarray, weight: np.ndarray, out: np.ndarray, eps: float, dtype: str) -> None:
    torch = _torch()
    moved = _tensor(torch, _owned(x), dtype).to("cuda")
    scale = torch.from_numpy(_owned(weight)).to("cuda")
    kernels.run_rms_norm(moved, scale, moved, eps, dtype == "float64")
    _tensor(torch, out, dtype).copy_(moved)


def _owned(array: np.ndarray) -> np.ndarray:
    # torch warns about read-only memory, but it is only read here.
    return array if array.flags.writeable else array.copy()


def elementwise_there(op: str, kernel: str, x: Any, out: Any) -> Any:
    """The op on a torch tensor on a GPU; the result is on the same GPU."""
    torch = _torch()
    dtype = _checked(op, "x", x)
    result, room = _room(op, x, out)
    if x.numel():
        with torch.cuda.device(x.device):
            kernels.run_elementwise(kernel, _apart(x, room), room, dtype == "float64")
    return result if room is result else result.copy_(room)


def rms_norm_there(x: Any, weight: Any, eps: float, out: Any) -> Any:
    torch = _torch()
    dtype = _checked("rms_norm", "x", x)
    if x.dim() == 0:
        raise ValueError("rms_norm: expected x with at least one axis, got a 0-d array")
    weight = weight if isinstance(weight, torch.Tensor) else torch.from_dlpack(weight)
    weight_dtype = _checked("rms_norm", "weight", weight)
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"rms_norm of x {tuple(x.shape)}: expected a weight {tuple(x.shape[-1:])}, got {tuple(weight.shape)}")
    if weight_dtype != dtype and not (weight_dtype == "float32" and dtype in ("float16", "bfloat16")):
        raise TypeError(f"rms_norm's weight is {weight_dtype} and x is {dtype}: expected the same dtype")
    result, room = _room("rms_norm", x, out)
    if x.numel():
        rows = (-1, x.shape[-1])
        scale = weight.to(x.device).contiguous()
        scale = scale.clone() if _shares(scale, room) else scale
        with torch.cuda.device(x.device):
            kernels.run_rms_norm(_apart(x, room).reshape(rows), scale, room.view(rows), eps, dtype == "float64")
    return result if room is result else result.copy_(room)


def _room(op: str, x: Any, out: Any) -> tuple[Any, Any]:
    """The result, and the contiguous memory that a kernel writes to: the same tensor if possible."""
    import torch

    result = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else _target(op, out, x)
    if result.is_contiguous():
        return result, result
    return result, torch.empty_like(x, memory_format=torch.contiguous_format)


@functools.cache
def _names() -> dict[Any, str]:
    import torch

    return {getattr(torch, name): name for name in dtypes}


def _checked(op: str, what: str, x: Any) -> str:
    name = _names().get(x.dtype)
    if name is None:
        raise TypeError(
            f"{op}'s {what} must be float16, bfloat16, float32 or float64, got {str(x.dtype).removeprefix('torch.')}"
        )
    import torch

    if x.requires_grad and torch.is_grad_enabled():
        raise TypeError(f"{op}'s {what} requires grad, which would be lost: pass .detach(), or use the ops of gt")
    return name


def _target(op: str, out: Any, x: Any) -> Any:
    _checked(op, "out", out)
    if out.dtype != x.dtype or out.shape != x.shape or out.device != x.device:
        want, found = (f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)} on {t.device}" for t in (x, out))
        raise ValueError(f"{op}'s out must be {want}, got {found}")
    return out


def _apart(x: Any, out: Any) -> Any:
    """x as contiguous memory that out does not overwrite before it is read; in place is fine."""
    same = x.data_ptr() == out.data_ptr() and x.is_contiguous()
    return x.clone(memory_format=_contiguous()) if _shares(x, out) and not same else x.contiguous()


def _shares(x: Any, out: Any) -> bool:
    return x.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()


def _contiguous() -> Any:
    import torch

    return torch.contiguous_format


def get_cuda_info() -> dict[str, Any]:
    """The GPU in use. Raises RuntimeError, with the reason, if there is none."""
    torch = _torch()
    import triton

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    free, total = torch.cuda.mem_get_info()
    return {
        "device": properties.name,
        "device_count": torch.cuda.device_count(),
        "compute_capability": properties.major * 10 + properties.minor,
        "compute_units": properties.multi_processor_count,
        "max_memory": total,
        "free_memory": free,
        "max_shared_memory": getattr(properties, "shared_memory_per_block_optin", 0),
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
    }
