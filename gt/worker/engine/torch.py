"""The PyTorch engine, on a GPU when there is one. Pointwise rows carry PyTorch's names, so its functions are their kernels;
`OWN` holds its faster kernels for other rows, and the rest run generically over `Namespace`."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import psutil
import torch
import torch.nn.functional as F

from gt.ops import Kind
from gt.spec import DTYPES, DType, Spec

TORCH: dict[DType, torch.dtype] = {d: getattr(torch, d.name) for d in DTYPES}


class Namespace:
    """NumPy's names over PyTorch, as far as generic kernels use them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __getattr__(self, name: str) -> Any:
        value = getattr(torch, name)
        setattr(self, name, value)
        return value

    def dtype(self, code: int) -> torch.dtype:
        return TORCH[DTYPES[code]]

    def cast(self, a: torch.Tensor, code: int) -> torch.Tensor:
        return a.to(TORCH[DTYPES[code]])

    def getitem(self, a: torch.Tensor, index: tuple) -> torch.Tensor:
        return a[index]

    def setitem(self, a: torch.Tensor, index: tuple, value: torch.Tensor) -> torch.Tensor:
        a[index] = value
        return a

    def full(self, shape: Any, value: Any, dtype: Any) -> torch.Tensor:
        return torch.full(shape, value, dtype=dtype, device=self.device)

    def zeros(self, shape: Any, dtype: Any) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def arange(self, start: int, stop: int) -> torch.Tensor:
        return torch.arange(start, stop, device=self.device)

    def stack(self, parts: Any, axis: int = 0) -> torch.Tensor:
        return torch.stack(tuple(parts), dim=axis)

    def concat(self, parts: Any, axis: int = 0) -> torch.Tensor:
        return torch.cat(tuple(parts), dim=axis)

    def permute_dims(self, a: torch.Tensor, axes: Any) -> torch.Tensor:
        return a.permute(axes)

    def max(self, a: torch.Tensor, axis: Any, keepdims: bool = False) -> torch.Tensor:
        return torch.amax(a, dim=axis, keepdim=keepdims)

    def min(self, a: torch.Tensor, axis: Any, keepdims: bool = False) -> torch.Tensor:
        return torch.amin(a, dim=axis, keepdim=keepdims)

    def sum(self, a: torch.Tensor, axis: Any, keepdims: bool = False) -> torch.Tensor:
        return torch.sum(a, dim=axis, keepdim=keepdims) if axis or a.ndim else a.sum()

    def mean(self, a: torch.Tensor, axis: Any, keepdims: bool = False) -> torch.Tensor:
        return torch.mean(a, dim=axis, keepdim=keepdims)

    def argmax(self, a: torch.Tensor, axis: int, keepdims: bool = False) -> torch.Tensor:
        return torch.argmax(a, dim=axis, keepdim=keepdims)

    def argmin(self, a: torch.Tensor, axis: int, keepdims: bool = False) -> torch.Tensor:
        return torch.argmin(a, dim=axis, keepdim=keepdims)


def _add_scaled(a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.add(a, b, alpha=scale)


def _sum(a: torch.Tensor, *, axis: Any, keepdims: bool) -> torch.Tensor:
    return a.sum(dim=axis, keepdim=keepdims) if a.ndim else a.sum()


# A row here has a kernel of PyTorch's that is faster than the generic one. Statics arrive as keywords.
OWN: dict[str, Callable[..., Any]] = {
    "add_scaled": _add_scaled,
    "relu_grad": lambda g, y: torch.ops.aten.threshold_backward(g, y, 0),
    "matmul": torch.matmul,
    "linear": F.linear,
    "sum": _sum,
    "reshape": lambda a, *, shape: a.reshape(shape),
    "expand": lambda a, *, shape: a.expand(shape),
    "permute": lambda a, *, axes: a.permute(axes),
}


def _unlent(run: Callable[..., Any], a: torch.Tensor, *operands: Any) -> Any:
    """A view of a buffer that a graph will write again is taken of a copy."""
    return run(a.clone() if getattr(a, "lent", False) else a, *operands)


class TorchEngine:
    name = "pytorch"

    def __init__(self, device: str) -> None:
        self.at = torch.device(device)
        self.device = device if self.at.type == "cpu" else f"{device} {torch.cuda.get_device_name(self.at)}"
        self.xp = Namespace(self.at)

    def begin(self) -> None:
        torch.inference_mode().__enter__()  # for good: nothing here ever asks PyTorch for a gradient

    def kernel(self, kind: Kind) -> Callable[..., Any]:
        run = self.plain(kind)
        return partial(_unlent, run) if kind.row.view and self.at.type == "cuda" else run

    def plain(self, kind: Kind) -> Callable[..., Any]:
        """A kernel whose result may share memory with its operand."""
        row = kind.row
        own = OWN.get(row.name)
        if own is None and row.pointwise and hasattr(torch, row.name):
            own = getattr(torch, row.name)
        if own is None:
            return self.generic(kind)
        return partial(own, **kind.settings) if kind.settings else own

    def generic(self, kind: Kind) -> Callable[..., Any]:
        """The row's own kernel, which takes 0-d tensors where numbers stand."""
        assert kind.row.kernel is not None, f"{kind.row} has no kernel of its own"
        return partial(kind.row.kernel, self.xp, **kind.settings)

    def faster(self, program: Any) -> Any:
        if self.at.type == "cuda" and os.environ.get("GT_CUDA_GRAPHS", "1") != "0":
            from gt.worker.engine.graph import Graph

            return Graph(program, self)
        return None

    def load(self, buffer: memoryview, spec: Spec, copy: bool) -> torch.Tensor:
        if spec.numel == 0:
            return torch.empty(spec.shape, dtype=TORCH[spec.dtype], device=self.at)
        host = torch.frombuffer(buffer, dtype=TORCH[spec.dtype], count=spec.numel).reshape(spec.shape)
        if self.at.type != "cpu":
            return host.to(self.at)
        return host.clone() if copy else host

    def store(self, array: torch.Tensor, spec: Spec) -> memoryview:
        if spec.numel == 0:
            return memoryview(b"")
        return memoryview(array.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())

    def sync(self) -> None:
        if self.at.type == "cuda":
            torch.cuda.synchronize(self.at)

    def memory(self) -> tuple[int, int]:
        if self.at.type == "cuda":
            return torch.cuda.memory_allocated(self.at), torch.cuda.get_device_properties(self.at).total_memory
        return psutil.Process().memory_info().rss, psutil.virtual_memory().total


def make() -> TorchEngine:
    if not torch.cuda.is_available():
        return TorchEngine("cpu")
    rank = int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0)
    return TorchEngine(f"cuda:{rank % torch.cuda.device_count()}")
