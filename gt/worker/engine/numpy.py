"""The NumPy engine: the reference. bfloat16, which NumPy lacks, is held in float32 and rounded after every op."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import psutil

from gt.ops import Kind
from gt.spec import DTYPES, DType, Spec, bfloat16


def round_bfloat16(a: np.ndarray) -> np.ndarray:
    """The nearest value that bfloat16 holds, ties to even, in float32."""
    a = np.ascontiguousarray(a, np.float32).reshape(np.shape(a))
    bits = a.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(a), a, rounded)


def numpy_dtype(dtype: DType) -> np.dtype:
    return np.dtype("float32" if dtype is bfloat16 else dtype.name)


class Namespace:
    """NumPy's names, and the few that kernels need beside them."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(np, name)
        setattr(self, name, value)
        return value

    @staticmethod
    def dtype(code: int) -> np.dtype:
        return numpy_dtype(DTYPES[code])

    @staticmethod
    def cast(a: Any, code: int) -> np.ndarray:
        if DTYPES[code] is bfloat16:
            return round_bfloat16(a)
        with np.errstate(invalid="ignore"):
            return np.asarray(a).astype(numpy_dtype(DTYPES[code]), copy=False)

    @staticmethod
    def getitem(a: np.ndarray, index: tuple) -> np.ndarray:
        return a[index]

    @staticmethod
    def setitem(a: np.ndarray, index: tuple, value: np.ndarray) -> np.ndarray:
        a[index] = value
        return a


XP = Namespace()


class NumPyEngine:
    name = "numpy"
    device = "cpu"

    def begin(self) -> None:
        pass

    def kernel(self, kind: Kind) -> Callable[..., Any]:
        row = kind.row
        assert row.kernel is not None, f"{row} has no kernel of its own"
        run = partial(row.kernel, XP, **kind.settings) if kind.settings else partial(row.kernel, XP)
        return partial(_several if len(kind.outs) > 1 else _one, run, kind.outs if len(kind.outs) > 1 else kind.outs[0])

    def faster(self, program: Any) -> None:
        return None

    def load(self, buffer: memoryview, spec: Spec, copy: bool) -> np.ndarray:
        if spec.dtype is bfloat16:
            wide = np.frombuffer(buffer, np.uint16).astype(np.uint32) << 16
            return wide.view(np.float32).reshape(spec.shape)
        array = np.frombuffer(buffer, numpy_dtype(spec.dtype), spec.numel).reshape(spec.shape)
        return array.copy() if copy else array

    def store(self, array: np.ndarray, spec: Spec) -> memoryview:
        if spec.dtype is bfloat16:
            array = (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return memoryview(np.ascontiguousarray(array)).cast("B") if array.size else memoryview(b"")

    def sync(self) -> None:
        pass

    def memory(self) -> tuple[int, int]:
        return psutil.Process().memory_info().rss, psutil.virtual_memory().total


def _one(run: Callable, spec: Spec, *operands: Any) -> np.ndarray:
    with np.errstate(all="ignore"):  # infinities and nans are values, as on every other engine
        return _fit(run(*operands), spec)


def _several(run: Callable, specs: tuple[Spec, ...], *operands: Any) -> tuple[np.ndarray, ...]:
    with np.errstate(all="ignore"):
        return tuple(_fit(a, s) for a, s in zip(run(*operands), specs))


def _fit(a: Any, spec: Spec) -> np.ndarray:
    """NumPy gives scalars for 0-d results and promotes in its own way; the spec says what it must be."""
    if spec.dtype is bfloat16:
        return round_bfloat16(a)
    want = numpy_dtype(spec.dtype)
    if type(a) is not np.ndarray or a.dtype != want:
        a = np.asarray(a, want)
    return a


def make() -> NumPyEngine:
    return NumPyEngine()
