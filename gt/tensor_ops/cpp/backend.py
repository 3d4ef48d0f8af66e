"""The compiled kernels as a backend: loading, calling, output memory, and the instruction set in use."""

import ctypes
import functools
import math
import os
import sys
from typing import Any

import numpy as np

from gt.tensor_ops.cpp.build import BuildError, build

name = "cpp"
dtypes = ("float32", "float64", "float16", "bfloat16")
on_device = False

_OPS = {"silu": 0, "gelu_tanh": 1, "gelu_erf": 2, "exp": 3, "sigmoid": 4, "relu": 5}
_PAIRS = {"add": 0, "sub": 1, "mul": 2, "div": 3, "relu_grad": 4, "sigmoid_grad": 5, "silu_grad": 6}
_DTYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}
unary, pairs = tuple(_OPS), tuple(_PAIRS)  # the ops of `elementwise` and `binary`
_RECYCLED = 1 << 16  # smaller outputs come from NumPy, which keeps small blocks itself


@functools.cache
def _load() -> ctypes.CDLL | BuildError:
    if sys.platform not in ("linux", "darwin"):
        return BuildError(f"the kernels are for Linux and macOS, not {sys.platform}")
    try:
        lib = ctypes.CDLL(str(build()))
    except BuildError as error:
        return error
    except OSError as error:
        return BuildError(f"the compiled kernels do not load: {error}")
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    for function, arguments, result in (
        (lib.gt_elementwise, (ctypes.c_int, ctypes.c_int, pointer, pointer, size), None),
        (lib.gt_binary, (ctypes.c_int, ctypes.c_int, pointer, pointer, pointer, size, size), None),
        (lib.gt_rms_norm, (ctypes.c_int, pointer, pointer, pointer, pointer, size, size, ctypes.c_double), None),
        (lib.gt_copy, (pointer, pointer, size), None),
        (lib.gt_take, (size,), pointer),
        (lib.gt_give, (pointer, size), None),
        (lib.gt_keep, (size,), None),
        (lib.gt_kept, (), size),
        (lib.gt_set_threads, (ctypes.c_int,), None),
        (lib.gt_set_name, (), ctypes.c_char_p),
        (lib.gt_large_results, (ctypes.c_int,), size),
    ):
        function.argtypes, function.restype = arguments, result
    lib.gt_set_threads(_cpus())
    return lib


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def library() -> ctypes.CDLL:
    """The loaded library; the first call builds it. Raises BuildError."""
    loaded = _load()
    if isinstance(loaded, BuildError):
        raise BuildError(str(loaded))
    return loaded


def reason_unavailable() -> str | None:
    try:
        library()
    except BuildError as error:
        return str(error)
    return None


def _address_by_interface(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _address_by_field(array: np.ndarray) -> int:
    # The first field of NumPy's array struct, after the object header. Four times as fast as `.ctypes`.
    return ctypes.c_void_p.from_address(id(array) + object.__basicsize__).value or 0


def _fields_are_there() -> bool:
    probe = np.empty(3)
    return sys.implementation.name == "cpython" and _address_by_field(probe) == _address_by_interface(probe)


_address = _address_by_field if _fields_are_there() else _address_by_interface


def elementwise(op: str, x: np.ndarray, out: np.ndarray, dtype: str) -> None:
    library().gt_elementwise(_OPS[op], _DTYPES[dtype], _address(x), _address(out), x.size)


def binary(op: str, x: np.ndarray, y: np.ndarray, out: np.ndarray, dtype: str) -> None:
    """y has x's shape, its last axes, or one element."""
    library().gt_binary(_PAIRS[op], _DTYPES[dtype], _address(x), _address(y), _address(out), x.size, y.size)


def rms_norm(
    x: np.ndarray, weight: np.ndarray, out: np.ndarray, eps: float, dtype: str, rstd: np.ndarray | None = None
) -> None:
    """`rstd`, if given, becomes 1 / sqrt(mean(x^2) + eps) of each row, in the weight's dtype."""
    rows, columns = x.shape
    kept = None if rstd is None else _address(rstd)
    library().gt_rms_norm(_DTYPES[dtype], _address(x), _address(weight), _address(out), kept, rows, columns, eps)


def copy(x: np.ndarray, out: np.ndarray) -> None:
    """Copy contiguous memory with the kernels' threads: the yardstick of the benchmarks."""
    library().gt_copy(_address(x), _address(out), x.nbytes)


class _Block:
    """Memory lent to one output array and returned when its last view is deleted."""

    __slots__ = ("__array_interface__", "_at", "_bytes", "_give")

    def __init__(self, lib: ctypes.CDLL, shape: tuple[int, ...], dtype: np.dtype, size: int):
        self._at, self._bytes, self._give = lib.gt_take(size), size, lib.gt_give
        if not self._at:
            raise MemoryError(f"no memory for an output of {size} bytes")
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str, "data": (self._at, False)}

    def __del__(self) -> None:
        if getattr(self, "_at", None):
            self._give(self._at, self._bytes)


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    if size < _RECYCLED:
        return np.empty(shape, dtype)
    return np.asarray(_Block(library(), shape, dtype, size))


def set_threads(threads: int) -> None:
    """The number of threads of a call, including the caller's. Defaults to the CPUs this process may run on."""
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    library().gt_set_threads(threads)


def keep_memory(limit: int) -> int:
    """Keep at most `limit` bytes of returned output memory (default 256 MiB); returns the number kept."""
    lib = library()
    lib.gt_keep(limit)
    return lib.gt_kept()


def get_optimization_info() -> dict[str, Any]:
    """The instruction set whose kernels the library chose, the number of threads, and how results of 8 MiB and more were
    written on x86-64: each op measures both ways and takes the faster."""
    lib = library()
    used = lib.gt_set_name().decode()
    return {
        "machine": os.uname().machine,
        "instruction_set": used,
        "avx": used in ("avx2", "avx512"),
        "avx2": used in ("avx2", "avx512"),
        "avx512": used == "avx512",
        "fma": used in ("avx2", "avx512", "neon"),
        "neon": used == "neon",
        "threads": lib.gt_threads(),
        "large_results": {"through_cache": lib.gt_large_results(0), "past_cache": lib.gt_large_results(1)},
        "library": str(build()),
    }
