"""Arguments as NumPy memory: NumPy, torch and DLPack arrays, without a copy.

bfloat16, which NumPy lacks, is passed as raw uint16 with the dtype's name. Arrays on a GPU are refused here; the CUDA backend
has a path of its own for them.
"""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

NAMES = {np.dtype(np.float32): "float32", np.dtype(np.float64): "float64", np.dtype(np.float16): "float16"}
RAW = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": np.uint16}
FLOATS = "float16, bfloat16, float32 or float64"


class RawArray(NamedTuple):
    """An array's memory, the name of its dtype, and a function that makes an array of the caller's type from memory."""

    raw: np.ndarray
    dtype: str
    wrap: Callable[[np.ndarray], Any]


def itself(raw: np.ndarray) -> np.ndarray:
    return raw


def plain(x: Any, what: str) -> RawArray:
    """`what` names the argument in errors: "silu's x"."""
    if type(x) is np.ndarray and (name := NAMES.get(x.dtype)) is not None:
        return RawArray(x, name, itself)
    if isinstance(x, np.ndarray):
        return _from_numpy(x, what)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _from_torch(torch, x, what)
    if hasattr(x, "__dlpack__"):
        try:
            return _from_numpy(np.from_dlpack(x), what)
        except (BufferError, RuntimeError) as error:
            raise TypeError(f"{what} cannot be read through DLPack: {error}") from error
    raise TypeError(f"{what} must be a NumPy, torch or DLPack array, got {type(x).__name__}")


def _from_numpy(x: np.ndarray, what: str) -> RawArray:
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{what} is a masked array, whose mask would be lost: pass .filled(value)")
    dtype = x.dtype
    x = np.asarray(x)
    if name := NAMES.get(dtype):
        return RawArray(x, name, itself)
    if dtype.name == "bfloat16" and dtype.itemsize == 2:  # the dtype that ml_dtypes registers
        return RawArray(x.view(np.uint16), "bfloat16", lambda raw: raw.view(dtype))
    raise TypeError(f"{what} must be {FLOATS}, got {dtype}")


def _from_torch(torch: Any, x: Any, what: str) -> RawArray:
    if x.requires_grad and torch.is_grad_enabled():
        raise TypeError(f"{what} requires grad, which would be lost: pass .detach(), or use the ops of gt")
    if x.device.type != "cpu":
        raise TypeError(f"{what} is on {x.device}: only the cuda backend accepts that, for others use .cpu()")
    if x.layout != torch.strided:
        raise TypeError(f"{what} has layout {x.layout}: pass .to_dense()")
    x = x.detach()
    if x.dtype == torch.bfloat16:
        raw = x.view(torch.int16).numpy().view(np.uint16)
        return RawArray(raw, "bfloat16", lambda raw: torch.from_numpy(raw.view(np.int16)).view(torch.bfloat16))
    if x.dtype not in (torch.float16, torch.float32, torch.float64):
        raise TypeError(f"{what} must be {FLOATS}, got {str(x.dtype).removeprefix('torch.')}")
    raw = x.numpy()
    return RawArray(raw, NAMES[raw.dtype], torch.from_numpy)


def widen(raw: np.ndarray, dtype: str) -> np.ndarray:
    """The values in the type that kernels compute in: float32, or float64 for float64."""
    if dtype == "bfloat16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    if dtype != "float16":
        return raw
    with np.errstate(invalid="ignore"):  # ARM's conversion reports a signalling NaN, which becomes a quiet one
        return raw.astype(np.float32)


def narrow(values: np.ndarray, dtype: str) -> np.ndarray:
    """The inverse of `widen`, rounding to nearest with ties to even."""
    if dtype != "bfloat16":
        return values.astype(RAW[dtype], copy=False)
    u = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (u + np.uint32(0x7FFF) + ((u >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (u >> 16) | 0x40, rounded).astype(np.uint16)


def contiguous(raw: np.ndarray) -> np.ndarray:
    """C-ordered, aligned memory with the same values: the array itself if possible."""
    return raw if raw.flags.c_contiguous and raw.flags.aligned else np.require(raw, requirements=("C", "A"))
