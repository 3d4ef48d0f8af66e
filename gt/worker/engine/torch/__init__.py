"""The PyTorch engine, on a GPU when there is one. Pointwise rows carry PyTorch's names, so its functions are their kernels;
torch_kernels.py holds its faster kernels for other rows, and the rest run generically over `Namespace`."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import psutil
import torch

from gt import environment
from gt.ops import Kind, random
from gt.ops.rules import promote
from gt.spec import DTYPES, DType, Spec, bfloat16
from gt.worker.engine import OWN as OURS
from gt.worker.engine import philox
from gt.worker.engine.torch.kernels import GATHERED, NUMBERS, OWN
from gt.worker.engine.torch.training import over_dying

TORCH: dict[DType, torch.dtype] = {d: getattr(torch, d.name) for d in DTYPES}


def forward(index: tuple, shape: Any) -> tuple[tuple, list[int]]:
    """An index without backward slices, which PyTorch lacks, and the axes of its result to turn round afterwards."""
    if not any(isinstance(i, slice) and i.step is not None and i.step < 0 for i in index):
        return index, []
    ahead: list[Any] = []
    back, out = [], 0
    for i, d in zip(index, shape):
        if isinstance(i, slice) and i.step is not None and i.step < 0:
            places = range(*i.indices(d))
            i = slice(places[-1], places[0] + 1, -i.step) if places else slice(0, 0)
            back.append(out)
        ahead.append(i)
        out += isinstance(i, slice)
    return tuple(ahead), back


class Namespace:
    """NumPy's names over PyTorch, as far as generic kernels use them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.block = 1 << 14 if device.type == "cpu" else 1 << 24  # a CPU's passes should stay in cache, a GPU's be few

    def __getattr__(self, name: str) -> Any:
        value = getattr(torch, name, None) or getattr(torch.special, name)
        setattr(self, name, value)
        return value

    def _random(self, name: str, seed: Any, number: Any, *args: int) -> torch.Tensor:
        """NumPy's generator on the host; PyTorch's operations elsewhere, and where the seed is a tensor (a graph's)."""
        if self.device.type == "cpu" and isinstance(seed, int) and isinstance(number, int):
            return torch.from_numpy(getattr(philox, name)(seed, number, *args))
        return getattr(random, name)(self, seed, number, *args)

    def fractions(self, seed: Any, number: Any, first: int, count: int) -> torch.Tensor:
        return self._random("fractions", seed, number, first, count)

    def words(self, seed: Any, number: Any, first: int, count: int) -> torch.Tensor:
        return self._random("words", seed, number, first, count)

    def bernoulli(self, seed: Any, number: Any, first: int, count: int, least: int) -> torch.Tensor:
        return self._random("bernoulli", seed, number, first, count, least)

    def solve_triangle(self, t: torch.Tensor, b: torch.Tensor, upper: bool) -> torch.Tensor:
        return torch.linalg.solve_triangular(t, b, upper=upper)

    def fft_complex(self, a: torch.Tensor, axes: tuple, forward: bool) -> torch.Tensor:
        if not a.numel():  # MKL refuses a batch of none
            return a.clone()
        return torch.fft.fftn(a, dim=axes) if forward else torch.fft.ifftn(a, dim=axes, norm="forward")

    def fft_half(self, a: torch.Tensor, axes: tuple) -> torch.Tensor:
        if not a.numel():
            return a.narrow(axes[-1], 0, a.shape[axes[-1]] // 2 + 1).to(a.dtype.to_complex())
        return torch.fft.rfftn(a, dim=axes)

    def fft_real(self, a: torch.Tensor, axes: tuple, n: int) -> torch.Tensor:
        if not a.numel():
            return a.real.new_zeros([n if i == axes[-1] else d for i, d in enumerate(a.shape)])
        return torch.fft.irfftn(a, [*(a.shape[i] for i in axes[:-1]), n], axes, norm="forward")

    def dtype(self, code: int) -> torch.dtype:
        return TORCH[DTYPES[code]]

    def cast(self, a: torch.Tensor, code: int) -> torch.Tensor:
        dtype = TORCH[DTYPES[code]]
        if a.is_complex() and not dtype.is_complex and dtype is not torch.bool:
            a = a.real  # PyTorch warns of the imaginary part that is dropped
        return a.to(dtype)

    def bitcast(self, a: torch.Tensor, old: int, new: int) -> torch.Tensor:
        a = a.resolve_conj().resolve_neg()
        if a.ndim and a.stride(-1) != 1 or not a.is_contiguous():
            a = torch.empty_like(a, memory_format=torch.contiguous_format).copy_(a)
        return a.view(TORCH[DTYPES[new]])

    def getitem(self, a: torch.Tensor, index: tuple) -> torch.Tensor:
        index, back = forward(index, a.shape)
        return a[index].flip(back) if back else a[index]

    def setitem(self, a: torch.Tensor, index: tuple, value: Any) -> torch.Tensor:
        index, back = forward(index, a.shape)
        if back and isinstance(value, torch.Tensor):
            value = value.expand(a[index].shape).flip(back)
        a[index] = value
        return a

    def add_at(self, a: torch.Tensor, index: tuple, value: Any) -> torch.Tensor:
        if sum(isinstance(i, slice) for i in index) + a.ndim - len(index) == a.ndim - 1:
            axis = next(n for n, i in enumerate(index) if not isinstance(i, slice))
            if index[axis].ndim == 1:
                return a.index_add_(axis, index[axis], value)
        return a.index_put_([None if isinstance(i, slice) else i for i in index], value, accumulate=True)

    def copy(self, a: torch.Tensor) -> torch.Tensor:
        return a.clone()

    def asarray(self, a: Any) -> torch.Tensor:
        return torch.as_tensor(a, device=self.device)

    def expand_dims(self, a: torch.Tensor, axis: int) -> torch.Tensor:
        return a.unsqueeze(axis)

    def take_along_axis(self, a: torch.Tensor, index: torch.Tensor, axis: int) -> torch.Tensor:
        return torch.take_along_dim(a, index, axis)

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


def _unlent(run: Callable[..., Any], a: torch.Tensor, *operands: Any) -> Any:
    """A view of a buffer that a graph will write again is taken of a copy."""
    return run(a.clone() if getattr(a, "lent", False) else a, *operands)


class TorchEngine:
    name = "pytorch"
    base = ""

    def __init__(self, device: str) -> None:
        self.at = torch.device(device)
        self.device = device if self.at.type == "cpu" else f"{device} {torch.cuda.get_device_name(self.at)}"
        self.xp = Namespace(self.at)
        self.clock: Callable[[], float] = float  # the shell gives a real one
        self.fell_back: dict[str, str] = {}

    def begin(self) -> None:
        self.mode = torch.inference_mode()  # for good: nothing here ever asks PyTorch for a gradient
        self.mode.__enter__()  # (the object is kept, as the mode ends with it)

    def kernel(self, kind: Kind) -> Callable[..., Any]:
        run = self.plain(kind)
        return partial(_unlent, run) if kind.row.view and self.at.type == "cuda" else run

    def way(self, kind: Kind) -> str:
        return OURS

    def plain(self, kind: Kind) -> Callable[..., Any]:
        """A kernel whose result may share memory with its operand."""
        row = kind.row
        own = OWN.get(row.name)
        if own is None and row.pointwise:
            own = getattr(torch, row.name, None) or getattr(torch.special, row.name, None)
        if own is not None and row.pointwise and row.name not in OWN:
            if row.name not in NUMBERS or not isinstance(kind.ins[0], Spec):
                own = self.tensors_only(own, kind)
        if own is None:
            return self.generic(kind)
        return partial(own, **kind.settings) if kind.settings else own

    def generic(self, kind: Kind) -> Callable[..., Any]:
        """The row's own kernel, which takes 0-d tensors where numbers stand."""
        assert kind.row.kernel is not None, f"{kind.row} has no kernel of its own"
        return partial(kind.row.kernel, self.xp, **kind.settings)

    def over(self, kind: Kind) -> Callable[..., Any] | None:
        name = kind.row.name
        if self.at.type != "cpu" or kind.outs != kind.ins[:1] or self.kernel(kind) is not getattr(torch, name, None):
            return None
        return getattr(torch.Tensor, f"{name}_", None)

    def update(self, kind: Kind) -> Callable[..., Any] | None:
        run = GATHERED.get(kind.row.name)
        return partial(over_dying, run, **kind.settings) if run is not None else None

    def faster(self, program: Any) -> Any:
        if program.compile or environment.AUTO_COMPILE.value():
            from gt.worker.engine.torch.inductor import Inductor

            return Inductor(program, self)
        if self.at.type == "cuda" and environment.CUDA_GRAPHS.value():
            from gt.worker.engine.torch.cuda_graph import Graph

            return Graph(program, self)
        if self.at.type == "cpu":
            from gt.worker.engine.torch.numpy_traces import numpy_trace

            return numpy_trace(program)
        return None

    def tensors_only(self, function: Callable[..., Any], kind: Kind) -> Callable[..., Any]:
        """A function that takes no numbers, or none first: they become 0-d tensors of the dtype computed in."""
        if all(isinstance(s, Spec) for s in kind.ins):
            return function
        dtype = TORCH[promote(*kind.ins)]

        def call(*operands: Any) -> Any:
            return function(*[
                o if isinstance(o, torch.Tensor) else torch.full((), o, dtype=dtype, device=self.at) for o in operands
            ])  # fmt: skip

        return call

    def load(self, buffer: memoryview, spec: Spec, copy: bool) -> torch.Tensor:
        if spec.numel == 0:
            return torch.empty(spec.shape, dtype=TORCH[spec.dtype], device=self.at)
        if memoryview(buffer).readonly:
            buffer, copy = memoryview(bytearray(buffer)), False  # PyTorch knows no read-only memory
        host = torch.frombuffer(buffer, dtype=TORCH[spec.dtype], count=spec.numel).reshape(spec.shape)
        if self.at.type != "cpu":
            return host.to(self.at)
        return host.clone() if copy else host

    def store(self, array: torch.Tensor, spec: Spec) -> memoryview:
        if spec.numel == 0:
            return memoryview(b"")
        host = array if self.at.type == "cpu" else array.cpu()
        if spec.dtype is bfloat16:  # which NumPy lacks
            host = host.view(torch.int16)
        return np.ascontiguousarray(host.detach().numpy()).reshape(-1).view(np.uint8).data

    def sync(self) -> None:
        if self.at.type == "cuda":
            torch.cuda.synchronize(self.at)

    def memory(self) -> tuple[int, int]:
        if self.at.type == "cuda":
            return torch.cuda.memory_allocated(self.at), torch.cuda.get_device_properties(self.at).total_memory
        return psutil.Process().memory_info().rss, psutil.virtual_memory().total


def best_device() -> str:
    """The GPU that is this process's turn, or the CPU where there is none."""
    if not torch.cuda.is_available():
        return "cpu"
    rank = int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0)
    return f"cuda:{rank % torch.cuda.device_count()}"


def make(name: str = "pytorch") -> TorchEngine:
    return TorchEngine(best_device())
