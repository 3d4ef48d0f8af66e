"""PyTorch engines on a library or device that was requested by name. `own` counts only kinds that are certain to run there:

- cpu, cuda, openmp: every op, since PyTorch computes all of them on that device, or in OpenMP loops.
- mkl: products of float32 and float64 matrices, which PyTorch computes by the BLAS it was built with; oneDNN is disabled.
- mkldnn: products of float32 matrices and convolutions, by direct calls of oneDNN: PyTorch itself would decide by size.
- cudnn: convolutions, by direct calls of cuDNN. triton: silu, gelu and rms_norm, by GT's kernels.

All other kinds run by PyTorch, on the same device."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from gt.lazy_import import LazyImport
from gt.ops import Kind
from gt.spec import Spec, float32, float64
from gt.worker.engine import BRIDGED, OWN
from gt.worker.engine.mixed import Kernel, resolve
from gt.worker.engine.torch.dtypes import TORCH
from gt.worker.engine.torch.engine import TorchEngine, best_device

aten = torch.ops.aten
kernels = LazyImport("gt.tensor_ops.cuda.kernels")  # imports Triton


class Everywhere(TorchEngine):
    """PyTorch on a given device, even if there are others."""

    def __init__(self, name: str, device: str) -> None:
        super().__init__(device)
        self.name = name
        if name == "openmp":
            self.threads = self.small_runs = None  # whoever asks for OpenMP gets its threads for every kernel

    def begin(self) -> None:
        if self.name == "openmp":
            torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))))
        super().begin()


class LibraryEngine(TorchEngine):
    """PyTorch, with a library's kernels for the kinds that it has, of any size."""

    base = "pytorch"

    def __init__(self, name: str, device: str, own: Callable[[Kind], Kernel | None], start: Callable[[], Any] = int) -> None:
        super().__init__(device)
        self.name, self.own, self.start, self.small_runs = name, own, start, None

    def begin(self) -> None:
        self.start()
        super().begin()

    def plain(self, kind: Kind) -> Kernel:
        return resolve(kind, self.own, super().plain, views=True)[1]

    def way(self, kind: Kind) -> str:
        return resolve(kind, self.own, super().plain, views=True)[0]


def _all_of(kind: Kind, *dtypes: Any) -> bool:
    return all(s.dtype in dtypes and s.numel for s in kind.ins if isinstance(s, Spec))


class Mkl(TorchEngine):
    """PyTorch, whose matrix products MKL computes, of any size: the kernels are the same, and only the count differs."""

    name, base = "mkl", "pytorch"

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.small_runs = None

    def begin(self) -> None:
        torch.backends.mkldnn.set_flags(False)
        super().begin()

    def way(self, kind: Kind) -> str:
        product = kind.row.blas and kind.outs[0].ndim >= 2
        return OWN if product and _all_of(kind, float32, float64) else BRIDGED


def _bias(b: tuple[torch.Tensor, ...]) -> torch.Tensor | None:
    """oneDNN requires a contiguous bias."""
    return b[0].contiguous() if b else None


def _convolution(kind: Kind) -> tuple | None:
    """Stride, padding, dilation and groups of a convolution over images, or None for other kinds."""
    s = kind.settings
    return (s["padding"], s["stride"], s["dilation"], s["groups"]) if kind.ins[0].ndim == 4 else None


def _onednn_linear(kind: Kind) -> Kernel:
    product = torch.ops.mkldnn._linear_pointwise
    return lambda x, w, *b: product(x, w.contiguous(), _bias(b), "none", [], "")


def _onednn_matmul(kind: Kind) -> Kernel | None:
    product = torch.ops.mkldnn._linear_pointwise
    if any(s.ndim != 2 for s in kind.ins):
        return None
    return lambda a, b: product(a, b.t().contiguous(), None, "none", [], "")


def _onednn_conv(kind: Kind) -> Kernel | None:
    shape = _convolution(kind)
    if shape is None:
        return None
    return lambda a, w, *b: aten.mkldnn_convolution(a.contiguous(), w.contiguous(), _bias(b), *shape)


def _cudnn_conv(kind: Kind) -> Kernel | None:
    shape = _convolution(kind)
    if shape is None:
        return None

    def kernel(a: torch.Tensor, w: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        y = aten.cudnn_convolution(a.contiguous(), w.contiguous(), *shape, False, False, False)
        return y + bias[0].reshape(1, -1, 1, 1) if bias else y

    return kernel


ONEDNN: dict[str, Callable[[Kind], Kernel | None]] = {
    "linear": _onednn_linear, "matmul": _onednn_matmul, "conv": _onednn_conv
}  # fmt: skip
CUDNN: dict[str, Callable[[Kind], Kernel | None]] = {"conv": _cudnn_conv}


def onednn(kind: Kind) -> Kernel | None:
    make = ONEDNN.get(kind.row.name)
    return make(kind) if make is not None and _all_of(kind, float32) else None


def cudnn(kind: Kind) -> Kernel | None:
    make = CUDNN.get(kind.row.name)
    return make(kind) if make is not None and _all_of(kind, float32, float64) else None


def triton(kind: Kind) -> Kernel | None:
    """GT's Triton kernels, on the tensors' device."""
    first = kind.ins[0] if kind.ins else None
    if not isinstance(first, Spec) or first.dtype.rank != 2 or not first.numel:
        return None
    if kind.row.name in TRITON:
        return TRITON[kind.row.name](kind, first)
    op = {"silu": "silu", "gelu": "gelu_tanh" if kind.settings.get("tanh") else "gelu_erf"}.get(kind.row.name)
    if op is None:
        return None
    run_elementwise = kernels.run_elementwise

    def kernel(a: torch.Tensor) -> torch.Tensor:
        x = a.contiguous()
        out = torch.empty_like(x)
        run_elementwise(op, x, out, first.dtype is float64)
        return out

    return kernel


def _triton_rms_norm(kind: Kind, first: Spec) -> Kernel:
    run_rms_norm = kernels.run_rms_norm

    wide, shape = TORCH[kind.outs[1].dtype], kind.outs[1].shape
    columns = torch.Size(first.shape[first.ndim - kind.settings["ndim"] :]).numel()

    def kernel(a: torch.Tensor, eps: float, *weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = a.contiguous().reshape(-1, columns)
        w = weight[0].contiguous().reshape(-1) if weight else torch.ones(columns, dtype=wide, device=a.device)
        out, rstd = torch.empty_like(x), torch.empty(shape, dtype=wide, device=a.device)
        run_rms_norm(x, w, out, eps, first.dtype is float64, rstd)
        return out.reshape(a.shape), rstd

    return kernel


TRITON: dict[str, Callable[[Kind, Spec], Kernel]] = {"rms_norm": _triton_rms_norm}


def make(name: str) -> TorchEngine:
    match name:
        case "mkl":
            return Mkl("cpu")
        case "mkldnn":
            return LibraryEngine(name, "cpu", onednn, lambda: torch.backends.mkldnn.set_flags(True))
        case "cudnn":
            return LibraryEngine(name, best_device(), cudnn)
        case "triton":
            return LibraryEngine(name, best_device(), triton)
        case "cuda":
            return Everywhere(name, best_device())
    return Everywhere(name, "cpu")
