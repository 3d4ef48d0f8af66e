"""One call of one op on one backend: check the arguments, find or make the output, run the kernel.

Calls of every backend pass through here, so all refuse bad input alike. A backend is a module with
`name`, `dtypes`, `on_device`, `reason_unavailable()`, `elementwise(op, x, out, dtype)` on arrays of any
shape and `rms_norm(x, weight, out, eps, dtype)` on (rows, columns) ones; its arrays are contiguous and checked.
"""

import math
from typing import Any

import numpy as np

from gt.tensor_ops.arrays import RawArray, contiguous, plain, widen

Backend = Any


def silu(backend: Backend, x: Any, out: Any = None) -> Any:
    return _elementwise(backend, "silu", "silu", x, out)


def gelu(backend: Backend, x: Any, approximate: str = "tanh", out: Any = None) -> Any:
    return _elementwise(backend, "gelu", gelu_form(approximate), x, out)


def gelu_form(approximate: str) -> str:
    if approximate == "tanh":
        return "gelu_tanh"
    if approximate == "none":
        return "gelu_erf"
    raise ValueError(f"gelu's approximate must be 'tanh' or 'none', got {approximate!r}")


def _lies_on_gpu(backend: Backend, x: Any) -> bool:
    return backend.name == "cuda" and bool(getattr(x, "is_cuda", False))


def _elementwise(backend: Backend, op: str, kernel: str, x: Any, out: Any) -> Any:
    if _lies_on_gpu(backend, x):
        return backend.elementwise_there(op, kernel, x, out)
    source = plain(x, f"{op}'s x")
    _supported(backend, op, source.dtype)
    raw = source.raw
    if out is None:
        # Column-major memory takes as long as row-major here, and the result keeps the layout.
        turned = not raw.flags.c_contiguous and raw.flags.f_contiguous
        flat = contiguous(raw.T if turned else raw)
        made = _empty(backend, flat.shape, flat.dtype)
        if flat.size:
            backend.elementwise(kernel, flat, made, source.dtype)
        return source.wrap(made.T if turned else made)
    target = _target(op, out, source)
    with_copy = _apart(raw, target.raw)
    flat = contiguous(raw.copy() if with_copy else raw)
    room = target.raw if _is_plain(target.raw) else np.empty(raw.shape, raw.dtype)
    if flat.size:
        backend.elementwise(kernel, flat, room, source.dtype)
    if room is not target.raw:
        target.raw[...] = room
    return out


def rms_norm(backend: Backend, x: Any, weight: Any, eps: float = 1e-6, out: Any = None) -> Any:
    eps = _eps(eps)
    if _lies_on_gpu(backend, x):
        return backend.rms_norm_there(x, weight, eps, out)
    source = plain(x, "rms_norm's x")
    _supported(backend, "rms_norm", source.dtype)
    scale = _weight(weight, source)
    raw = source.raw
    target = None if out is None else _target("rms_norm", out, source)
    flat = contiguous(raw.copy() if target is not None and _apart(raw, target.raw) else raw)
    if target is None:
        room = _empty(backend, raw.shape, raw.dtype)
    else:
        room = target.raw if _is_plain(target.raw) else np.empty(raw.shape, raw.dtype)
        if np.may_share_memory(scale, target.raw):
            scale = scale.copy()
    if flat.size:
        rows = (-1, raw.shape[-1])
        two = (flat, room) if flat.ndim == 2 else (flat.reshape(rows), room.reshape(rows))
        backend.rms_norm(two[0], scale, two[1], eps, source.dtype)
    if target is None:
        return source.wrap(room)
    if room is not target.raw:
        target.raw[...] = room
    return out


def _supported(backend: Backend, op: str, dtype: str) -> None:
    if dtype not in backend.dtypes:
        raise TypeError(f"{op} on the {backend.name} backend: expected {', '.join(backend.dtypes)}, got {dtype}")


def _weight(weight: Any, source: RawArray) -> np.ndarray:
    """The weight in the type kernels compute in, checked against x."""
    shape = source.raw.shape
    if not shape:
        raise ValueError("rms_norm: expected x with at least one axis, got a 0-d array")
    given = plain(weight, "rms_norm's weight")
    if given.raw.shape != shape[-1:]:
        raise ValueError(f"rms_norm of x {shape}: expected a weight {shape[-1:]}, got {given.raw.shape}")
    wide = source.dtype in ("float16", "bfloat16") and given.dtype == "float32"
    if given.dtype != source.dtype and not wide:
        raise TypeError(f"rms_norm's weight is {given.dtype} and x is {source.dtype}: expected the same dtype")
    return contiguous(widen(given.raw, given.dtype))


def _eps(eps: Any) -> float:
    if isinstance(eps, bool) or not isinstance(eps, int | float | np.number):
        raise TypeError(f"rms_norm's eps must be a number, got {type(eps).__name__}")
    if not (eps >= 0 and math.isfinite(eps)):
        raise ValueError(f"rms_norm's eps must be finite and not negative, got {eps}")
    return float(eps)


def _target(op: str, out: Any, source: RawArray) -> RawArray:
    target = plain(out, f"{op}'s out")
    if target.dtype != source.dtype or target.raw.shape != source.raw.shape:
        want, found = f"{source.dtype} {source.raw.shape}", f"{target.dtype} {target.raw.shape}"
        raise ValueError(f"{op}'s out must be {want}, got {found}")
    if not target.raw.flags.writeable:
        raise ValueError(f"{op}'s out is read-only")
    if not _is_plain(target.raw) and any(s == 0 and n > 1 for s, n in zip(target.raw.strides, target.raw.shape)):
        raise ValueError(f"{op}'s out has several elements in the same memory")
    return target


def _apart(x: np.ndarray, out: np.ndarray) -> bool:
    """Whether x must be copied first: memory shared with out, unless it is the very same elements in place."""
    if not np.may_share_memory(x, out):
        return False
    same = x.strides == out.strides and x.__array_interface__["data"] == out.__array_interface__["data"]
    return not same


def _is_plain(raw: np.ndarray) -> bool:
    flags = raw.flags
    return bool(flags.c_contiguous and flags.aligned)


def _empty(backend: Backend, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    make = getattr(backend, "empty", None)
    return make(shape, dtype) if make is not None else np.empty(shape, dtype)
