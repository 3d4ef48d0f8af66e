"""GT's own C++ and OpenCL kernels as engines over NumPy arrays; NumPy runs the kinds without a kernel."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from gt.ops import Kind
from gt.spec import DType, Spec, bfloat16, float16
from gt.tensor_ops.arrays import contiguous
from gt.tensor_ops.cpp import backend as cpp
from gt.tensor_ops.opencl import backend as opencl
from gt.worker.engine.mixed import Kernel, resolve
from gt.worker.engine.numpy import NumPyEngine, numpy_dtype, round_bfloat16


class BackendKernels:
    """The kernels of a backend of `gt.tensor_ops`, by kind."""

    def __init__(self, backend: ModuleType) -> None:
        self.backend = backend
        self.dtypes: tuple[str, ...] = backend.dtypes
        self.unary: frozenset[str] = frozenset(backend.unary)
        self.pairs: frozenset[str] = frozenset(backend.pairs)
        self.rows: dict[str, Callable[[Kind], Kernel]] = {"rms_norm": self._rms_norm}  # kernels over the last axes
        self.empty: Callable[..., np.ndarray] = getattr(backend, "empty", np.empty)

    def __call__(self, kind: Kind) -> Kernel | None:
        first = kind.ins[0] if kind.ins else None
        if not isinstance(first, Spec) or first.dtype.rank != 2 or numpy_dtype(first.dtype).name not in self.dtypes:
            return None
        if kind.row.name in self.rows:
            return self.rows[kind.row.name](kind) if first.numel else None
        if kind.outs != (first,):
            return None  # broadcasting and promotion are not supported
        op = kind.row.name + {True: "_tanh", False: "_erf", None: ""}[kind.settings.get("tanh")]
        if op in self.unary and len(kind.ins) == 1:
            return self._unary(op, first.dtype)
        if op in self.pairs and len(kind.ins) == 2:
            return self._pair(op, first, kind.ins[1])
        return None

    def _unary(self, op: str, dtype: DType) -> Kernel:
        run, empty, name, rounds = self.backend.elementwise, self.empty, numpy_dtype(dtype).name, dtype is bfloat16

        def kernel(a: np.ndarray) -> np.ndarray:
            x = contiguous(a)
            out = empty(x.shape, x.dtype)
            if x.size:
                run(op, x, out, name)
            return round_bfloat16(out) if rounds else out

        return kernel

    def _pair(self, op: str, first: Spec, second: Any) -> Kernel | None:
        """The second operand has the first's shape, its last axes or one element, or is a number."""
        if isinstance(second, Spec):
            last = first.shape[first.ndim - second.ndim :] if second.ndim <= first.ndim else None
            if second.dtype is not first.dtype or second.shape != last and second.numel != 1:
                return None
        elif second is bool or first.dtype is float16:  # the kernel would round the number to 16 bits, unlike NumPy
            return None
        run, empty, dtype, rounds = self.backend.binary, self.empty, numpy_dtype(first.dtype), first.dtype is bfloat16

        def kernel(a: np.ndarray, b: Any) -> np.ndarray:
            x = contiguous(a)
            y = contiguous(b) if type(b) is np.ndarray else np.array(b, dtype)
            out = empty(x.shape, dtype)
            if x.size:
                run(op, x, y, out, dtype.name)
            return round_bfloat16(out) if rounds else out

        return kernel

    def _rms_norm(self, kind: Kind) -> Kernel:
        first: Spec = kind.ins[0]
        run, empty, dtype, rounds = self.backend.rms_norm, self.empty, numpy_dtype(first.dtype), first.dtype is bfloat16
        wide = numpy_dtype(kind.outs[1].dtype)
        columns = int(np.prod(first.shape[first.ndim - kind.settings["ndim"] :]))
        ones = np.ones(columns, wide)

        def kernel(a: np.ndarray, eps: float, *weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            w = contiguous(np.asarray(weight[0], wide)).reshape(-1) if weight else ones
            out, rstd = empty(a.shape, dtype), np.empty(kind.outs[1].shape, wide)
            x = contiguous(a).reshape(-1, columns)
            run(x, w, out.reshape(x.shape), eps, dtype.name, rstd)
            return (round_bfloat16(out) if rounds else out), rstd

        return kernel


class HostEngine(NumPyEngine):
    base = "numpy"

    def __init__(self, name: str, device: str, own: BackendKernels) -> None:
        super().__init__()
        self.name, self.device, self.own = name, device, own

    def kernel(self, kind: Kind) -> Kernel:
        return resolve(kind, self.own, super().kernel, views=True)[1]

    def way(self, kind: Kind) -> str:
        return resolve(kind, self.own, super().kernel, views=True)[0]


def make(name: str) -> HostEngine:
    if name == "cpp":
        return HostEngine(name, "cpu", BackendKernels(cpp))
    return HostEngine(name, opencl.get_opencl_info()["device"], BackendKernels(opencl))
