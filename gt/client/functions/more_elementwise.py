"""What PyTorch's tensors also answer to: questions about layout that have one answer here, and forms of other functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions import FUNCTIONS, alias, as_tensor, both, function, method
from gt.client.functions import linalg as linalg  # the forms below are of functions that must be there first
from gt.client.functions import movement as movement
from gt.client.functions import products as products
from gt.client.functions import reshape as reshape
from gt.client.functions import sort as sort
from gt.client.functions.create import arange, full
from gt.client.functions.index import put
from gt.client.functions.random import rand, randint, randn
from gt.client.session import last_id
from gt.client.strides import is_contiguous, offset, strides
from gt.client.views import Custom, custom_view, is_view, root_of, storage_of
from gt.client.writes import assign, become
from gt.device import Device
from gt.errors import ArgumentError, ArgumentTypeError
from gt.ops.rules import axis_of
from gt.ops.table import TABLE
from gt.spec import dtype_of, int64

_T: Any = Tensor
HOME = Device("gt")


def _same(name: str, doc: str) -> None:
    def answer(self: Tensor, *_: Any, **__: Any) -> Tensor:
        return self

    answer.__name__ = answer.__qualname__ = name
    answer.__doc__ = doc
    method(answer)


for _name in ("cpu", "cuda", "pin_memory"):
    _same(_name, "This tensor: where it lies is the dispatcher's business.")
for _name in ("positive", "to_dense"):
    _same(_name, "This tensor: its numbers are real.")
for _name, _dtype in (("byte", "uint8"), ("char", "int8"), ("short", "int16")):
    setattr(_T, _name, lambda self, memory_format=None, _dtype=_dtype: self.to(_dtype))

_T.device = property(lambda self: HOME)  # which worker holds it, and on what, is the dispatcher's business
for _name in ("cpu", "cuda", "ipu", "maia", "meta", "mkldnn", "mps", "mtia", "nested", "quantized", "sparse", "sparse_csr",
              "vulkan", "xla", "xpu"):  # fmt: skip
    setattr(_T, f"is_{_name}", property(lambda self: False))
for _name in ("conj", "neg", "inference", "pinned", "shared", "distributed"):
    setattr(_T, f"is_{_name}", lambda self: False)
_T.get_device = lambda self: -1
_T.stride = lambda self, dim=None: strides(self) if dim is None else strides(self)[dim]
_T._base = property(lambda self: root_of(self) if is_view(self) else None)
_T._is_view = is_view
_T._version = property(lambda self: storage_of(self).made or 0)
_T.storage_offset = offset
for _name in ("chunk", "split", "split_with_sizes"):
    alias(f"unsafe_{_name}", lambda input, *args, _name=_name, **settings: getattr(input, _name)(*args, **settings))
_T.element_size = lambda self: self.dtype.size
_T.nelement = lambda self: self.handle.spec.numel
_T.ndimension = lambda self: self.ndim
_T.is_contiguous = lambda self, **_: is_contiguous(self)
_T.is_signed = lambda self: self.dtype.is_signed
_T.is_nonzero = lambda self: bool(self)
_T.is_same_size = lambda self, other: self.shape == other.shape
_T.view_as = lambda self, other: self.view(other.shape)
_T.reshape_as = lambda self, other: self.reshape(other.shape)


@both
def fmax(input: Tensor, other: Tensor) -> Tensor:
    """The larger, or the one that is a number."""
    return input.isnan().pick(other, other.isnan().pick(input, input.maximum(other)))


@both
def fmin(input: Tensor, other: Tensor) -> Tensor:
    """The smaller, or the one that is a number."""
    return input.isnan().pick(other, other.isnan().pick(input, input.minimum(other)))


@both
def nextafter(input: Tensor, other: Tensor) -> Tensor:
    """The number next to each of these, towards the other."""
    return apply(TABLE["nextafter"], (input, other))


@both
def deg2rad(input: Tensor) -> Tensor:
    return input * (math.pi / 180)


@both
def rad2deg(input: Tensor) -> Tensor:
    return input * (180 / math.pi)


@both
def float_power(input: Tensor, exponent: Any) -> Tensor:
    """`pow` in float64, or in complex128 where there are complex numbers."""
    both_ = [x.dtype.is_complex if isinstance(x, Tensor) else isinstance(x, complex) for x in (input, exponent)]
    wide = dtype_of("complex128" if any(both_) else "float64")
    base = input if isinstance(input, Tensor) else as_tensor(input)
    other = exponent.to(wide) if isinstance(exponent, Tensor) else exponent if any(both_) else float(exponent)
    return base.to(wide) ** other


@both
def heaviside(input: Tensor, values: Tensor) -> Tensor:
    return (input == 0).pick(values, (input > 0).to(input.dtype))


@both
def isposinf(input: Tensor) -> Tensor:
    return input == math.inf


@both
def isneginf(input: Tensor) -> Tensor:
    return input == -math.inf


@both
def ldexp(input: Tensor, other: Tensor) -> Tensor:
    return input.clone() * 2.0**other  # PyTorch's gradient reads the result, so that the input may change


@both
def logaddexp2(input: Tensor, other: Tensor) -> Tensor:
    top = input.maximum(other).detach()
    return ((input - top).exp2() + (other - top).exp2()).log2() + top


@both
def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = batch1 @ batch2
    return products.weighted_sum(input, product.sum(0).to(product.dtype), beta, alpha)


@both
def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    return input.reshape(-1).diag(offset)


def _evenly(name: str, input: Tensor, sections: Any, axis: int, least: int) -> tuple[Tensor, ...]:
    """`tensor_split`, into so many pieces of one size where a number is given."""
    if input.ndim < least:
        raise ArgumentError(f"{name} wants at least {least} axes, not {input.shape}")
    if isinstance(sections, int) and (sections < 1 or input.shape[axis] % sections):
        raise ArgumentError(f"{name}: {input.shape[axis]} elements along axis {axis} are not {sections} pieces of one size")
    return input.tensor_split(sections, axis)


@both
def hsplit(input: Tensor, sections: Any) -> tuple[Tensor, ...]:
    return _evenly("hsplit", input, sections, 0 if input.ndim == 1 else 1, 1)


@both
def vsplit(input: Tensor, sections: Any) -> tuple[Tensor, ...]:
    return _evenly("vsplit", input, sections, 0, 2)


@both
def dsplit(input: Tensor, sections: Any) -> tuple[Tensor, ...]:
    return _evenly("dsplit", input, sections, 2, 3)


@both
def split_with_sizes(input: Tensor, split_sizes: Any, dim: int = 0) -> tuple[Tensor, ...]:
    return input.split(list(split_sizes), dim)


@method
def unfold(self: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Windows of an axis, each as a last axis of its own."""
    at = axis_of(dimension, self.ndim)
    if not self.ndim:
        return unfold(self.reshape(1), 0, size, step).reshape((size,) if size else (0,))
    if not 0 <= size <= self.shape[at] or step < 1:
        raise ArgumentError(
            f"unfold of axis {at} of {self.shape}: want a size up to its length and a step above 0, not {size}, {step}"
        )
    n = (self.shape[at] - size) // step + 1
    places = (arange(n).unsqueeze(1) * step + arange(size)).reshape(-1)

    def windows(x: Tensor) -> Tensor:
        wide = x.index_select(at, places)
        return wide.reshape((*x.shape[:at], n, size, *x.shape[at + 1 :])).movedim(at + 1, -1)

    return custom_view(self, Custom(windows, lambda s: (*s[:at], s[at] * step, *s[at + 1 :], s[at])))


@both
def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """With `src` as one slice along an axis."""
    return put(input, (slice(None),) * axis_of(dim, input.ndim) + (index,), src)


@both
def slice_scatter(input: Tensor, src: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    """With `src` as a part of an axis."""
    return put(input, (slice(None),) * axis_of(dim, input.ndim) + (slice(start, end, step),), src)


@both
def diagonal_scatter(input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """With `src` as its diagonal."""
    axes = (axis_of(dim1, input.ndim), axis_of(dim2, input.ndim))
    statics = (input.shape, offset, axes)
    spot = apply(TABLE["diagonal_grad"], (full(src.shape, True),), statics)
    return spot.pick(apply(TABLE["diagonal_grad"], (src,), statics), input)


@method
def fill_diagonal_(self: Tensor, fill_value: Any, wrap: bool = False) -> Tensor:
    n = min(self.shape)
    return assign(self, put(self, (arange(n),) * self.ndim, fill_value))


def _in_place(name: str, view: bool) -> None:
    f = getattr(Tensor, name)

    def change(self: Tensor, *args: Any, **settings: Any) -> Tensor:
        if view:
            return become(self, lambda x: f(x, *args, **settings))
        since = last_id(self.handle.session)
        return assign(self, f(self, *args, **settings), since=since)

    change.__name__ = change.__qualname__ = f"{name}_"
    change.__doc__ = f"`{name}`, into this variable."
    method(change)


for _name in ("squeeze", "unsqueeze", "t", "transpose", "swapaxes", "swapdims"):
    _in_place(_name, True)
for _name in ("tril", "triu", "cumsum", "cumprod", "addmm", "baddbmm", "addmv", "addr", "addbmm", "deg2rad", "rad2deg",
              "heaviside", "ldexp", "nextafter", "sgn"):  # fmt: skip
    _in_place(_name, False)


@method
def float_power_(self: Tensor, exponent: Any) -> Tensor:
    """`float_power`, into this variable, which has to be float64."""
    if self.dtype is not dtype_of("float64"):
        raise ArgumentTypeError(f"float_power_ gives float64, and this variable is {self.dtype.name}: use float_power")
    return assign(self, float_power(self, exponent))


@method
def detach_(self: Tensor) -> Tensor:
    """Take this variable off the tape."""
    if is_view(self) and self.requires_grad:
        raise RuntimeError("Can't detach views in-place. Use detach() instead.")
    self.node, self.requires_grad = None, False
    return self


def _random(name: str, numbers: Any) -> None:
    def change(self: Tensor, *args: Any, **settings: Any) -> Tensor:
        return assign(self, numbers(self, *args, **settings))

    change.__name__ = change.__qualname__ = name
    change.__doc__ = "Random numbers, into this variable."
    method(change)


_random("random_", lambda x, low=0, high=None: randint(low, high or (1 << 24), x.shape).to(x.dtype))
_random("log_normal_", lambda x, mean=1.0, std=2.0: (randn(x.shape, dtype=x.dtype) * std + mean).exp())
_random("geometric_", lambda x, p: ((1.0 - rand(x.shape)).log() / math.log(1 - p)).floor().to(x.dtype) + 1)
_random("cauchy_", lambda x, median=0.0, sigma=1.0: ((rand(x.shape, dtype=x.dtype) - 0.5) * math.pi).tan() * sigma + median)


@function
def cartesian_prod(*tensors: Tensor) -> Tensor:
    grids = FUNCTIONS["meshgrid"](*tensors)
    return FUNCTIONS["stack"]([g.reshape(-1) for g in grids], -1) if len(tensors) > 1 else tensors[0]


@function
def block_diag(*tensors: Tensor) -> Tensor:
    """Matrices along a diagonal, zeros beside them."""
    parts = [FUNCTIONS["atleast_2d"](t) for t in tensors]
    width, before, rows = sum(p.shape[1] for p in parts), 0, []
    for p in parts:
        rows.append(FUNCTIONS["pad"](p, (before, width - before - p.shape[1])))
        before += p.shape[1]
    return FUNCTIONS["cat"](rows)


@function
def tril_indices(row: int, col: int, offset: int = 0, *, dtype: Any = int64, device: Any = None, layout: Any = None) -> Tensor:
    """The places of a lower triangle."""
    return as_tensor(np.stack(np.tril_indices(row, offset, col)).astype(np.int64)).to(dtype)


@function
def triu_indices(row: int, col: int, offset: int = 0, *, dtype: Any = int64, device: Any = None, layout: Any = None) -> Tensor:
    """The places of an upper triangle."""
    return as_tensor(np.stack(np.triu_indices(row, offset, col)).astype(np.int64)).to(dtype)


alias("cholesky_solve", FUNCTIONS["cholesky_solve"])
alias("histc", FUNCTIONS["histc"])
