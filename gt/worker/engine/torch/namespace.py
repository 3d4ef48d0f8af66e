"""NumPy's names over PyTorch, for the rows' generic kernels."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import torch

from gt.ops import random
from gt.spec import DTYPES
from gt.worker.engine import philox
from gt.worker.engine.torch.dtypes import TORCH


def forward(index: tuple, shape: Any) -> tuple[tuple, list[int]]:
    """An index without negative steps, which PyTorch lacks, and the axes of its result to flip afterwards."""
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


DRAWN = {"fractions": torch.float32, "words": torch.int64, "bernoulli": torch.bool, "normals": torch.float32}


_length_of_dispatch_stack, _empty = torch._C._len_torch_dispatch_stack, torch.empty


def _traced() -> bool:
    """Whether a compiler of PyTorch traces the call."""
    return bool(_length_of_dispatch_stack())


@cache
def _random_kernels() -> Any:
    """The module of random Triton kernels; None if Triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        return None
    return importlib.import_module("gt.worker.engine.torch.random_kernels")  # which imports Triton


class TorchNamespace:
    """NumPy's names over PyTorch, as far as generic kernels use them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.on_cpu = device.type == "cpu"  # a question to the device itself takes as long as a hundred numbers
        self.block = 1 << 14 if self.on_cpu else 1 << 24  # a CPU's blocks should fit in the cache, a GPU's be few

    def __getattr__(self, name: str) -> Any:
        value = getattr(torch, name, None) or getattr(torch.special, name)
        setattr(self, name, value)
        return value

    def _random(self, name: str, seed: Any, number: Any, first: int, count: int, *least: int) -> torch.Tensor:
        """The host's generator on a CPU; PyTorch's operations on other devices, and if the seed is a CUDA graph's tensor."""
        if self.on_cpu and isinstance(seed, int) and isinstance(number, int):
            if philox.NATIVE is None or _length_of_dispatch_stack():
                return torch.from_numpy(getattr(philox, name)(seed, number, first, count, *least))
            out = _empty(count, dtype=DRAWN[name])  # a small array of NumPy's is drawn faster than made a tensor
            philox.write(name, out.data_ptr(), seed, number, first, count, *least)
            return out
        return getattr(random, name)(self, seed, number, first, count, *least)

    def fractions(self, seed: Any, number: Any, first: int, count: int) -> torch.Tensor:
        kernels = None if self.on_cpu else self._triton()
        if kernels is not None and count:
            return kernels.uniform(seed, number, first, count, self.device)
        return self._random("fractions", seed, number, first, count)

    def words(self, seed: Any, number: Any, first: int, count: int) -> torch.Tensor:
        return self._random("words", seed, number, first, count)

    def bernoulli(self, seed: Any, number: Any, first: int, count: int, least: int) -> torch.Tensor:
        return self._random("bernoulli", seed, number, first, count, least)

    def normals(self, seed: Any, number: Any, first: int, count: int) -> torch.Tensor:
        kernels = None if self.on_cpu else self._triton()
        if kernels is not None and count:
            return kernels.normal(seed, number, first, count, self.device)
        if philox.NATIVE is None:
            return random.normals(self, seed, number, first, count)
        return self._random("normals", seed, number, first, count)

    def dropped(self, a: torch.Tensor, p: Any, seed: Any, number: Any, first: int) -> torch.Tensor:
        kernels = self._triton()
        if kernels is not None and isinstance(p, float) and a.dtype.itemsize <= 4:
            return kernels.dropout(a, p, seed, number, first)
        whole = isinstance(seed, int) and isinstance(number, int) and isinstance(p, float)
        if philox.NATIVE is None or not self.on_cpu or not whole or a.dtype is not torch.float32 or _traced():
            return random.dropped(self, a, p, seed, number, first)
        a = a.contiguous()
        y = torch.empty_like(a)
        scale = 1.0 / (1.0 - p) if p < 1 else 0.0
        philox.dropout(seed, number, first, a.numel(), y.data_ptr(), a.data_ptr(), round(p * (1 << 16)), scale)
        return y

    def _triton(self) -> Any:
        """GT's Triton kernels, on a GPU outside of tracing."""
        return None if self.on_cpu or self.device.type != "cuda" or _traced() else _random_kernels()

    def solve_triangle(self, t: torch.Tensor, b: torch.Tensor, upper: bool) -> torch.Tensor:
        return torch.linalg.solve_triangular(t, b, upper=upper)

    def fft_complex(self, a: torch.Tensor, axes: tuple, forward: bool) -> torch.Tensor:
        if not a.numel():  # MKL refuses an empty batch
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
        if a.dtype is dtype:
            return a
        if a.is_complex() and not dtype.is_complex and dtype is not torch.bool:
            a = a.real  # else PyTorch warns about the dropped imaginary part
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


class Uncopied(TorchNamespace):
    """For kernels that copy an operand only to write into the copy."""

    def copy(self, a: torch.Tensor) -> torch.Tensor:
        return a
