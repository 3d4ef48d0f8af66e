"""Creation of tensors: from data, of one value, of ranges."""

from __future__ import annotations

import math
from operator import index
from typing import Any

import numpy as np

from gt.client.apply import apply
from gt.client.arrays import as_array, load, remember
from gt.client.autograd import Tensor
from gt.client.default_dtype import DEFAULT
from gt.client.functions.registry import FUNCTIONS, function, method
from gt.errors import ArgumentError, ArgumentTypeError
from gt.ops.table import TABLE
from gt.spec import DType, dtype_of, int64, uint8

FULL = TABLE["full"]


def shape_of(size: tuple, shape: Any = None) -> tuple[int, ...]:
    """`randn(2, 3)`, `randn((2, 3))` and `randn(size=(2, 3))` mean the same."""
    if shape is not None:
        size = (shape,)
    if len(size) == 1 and isinstance(size[0], (tuple, list)):
        size = tuple(size[0])
    try:
        out = tuple(map(index, size))
    except TypeError:
        raise ArgumentTypeError(f"a shape: expected integers, got {size}") from None
    if out and min(out) < 0:
        raise ArgumentError(f"a shape: expected sizes of 0 or more, got {out}")
    return out


def made(t: Tensor, requires_grad: bool) -> Tensor:
    if requires_grad:
        if t.handle.spec.dtype.rank < 2:
            raise ArgumentTypeError(f"only floating-point and complex tensors have gradients, not {t.handle.spec.dtype.name}")
        t.requires_grad = True
    return t


@function
def tensor(
    data: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None, layout: Any = None,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """A tensor holding a copy of the data: numbers, nested lists, arrays.

    >>> gt.tensor([1, 2, 3, 4]) + gt.tensor([5, 6, 7, 8])
    tensor([ 6,  8, 10, 12])
    """
    if isinstance(data, Tensor):
        copied = data.detach().clone()
        return made(copied if dtype is None else copied.to(dtype), requires_grad)
    if isinstance(data, (bool, int, float, complex)) and not isinstance(data, np.generic):
        one = full((), data, dtype=dtype or DEFAULT.of(data), requires_grad=requires_grad)
        remember(one, np.asarray(data))
        return one
    array, found = as_array(data)
    return made(load(array, dtype_of(dtype) if dtype is not None else found), requires_grad)


@function
def from_numpy(array: np.ndarray, requires_grad: bool = False) -> Tensor:
    """A tensor holding a copy of a NumPy array, of its dtype."""
    if not isinstance(array, (np.ndarray, np.generic)):
        raise ArgumentTypeError(f"from_numpy: expected a NumPy array, got {type(array).__name__}: use gt.tensor")
    array, dtype = as_array(array)
    return made(load(array, dtype), requires_grad)


@function
def full(
    size: Any, fill_value: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None, layout: Any = None,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """A tensor of one value."""
    result_dtype = dtype_of(dtype) if dtype is not None else DEFAULT.of(fill_value)
    shape = shape_of((size,)) if not isinstance(size, int) else (size,)
    value = fill_value.item() if hasattr(fill_value, "item") else fill_value
    if isinstance(value, complex):
        found = apply(TABLE["full_complex"], (value.real, value.imag), (shape, result_dtype.to_complex().code))
        return made(found if result_dtype.is_complex else found.to(result_dtype), requires_grad)
    if result_dtype.rank == 1 and not -128 <= value < 128:
        _check_fits(value, result_dtype)
    return made(apply(FULL, (value,), (shape, result_dtype.code)), requires_grad)


def _check_fits(value: float, dtype: DType) -> None:
    """Negative numbers of an unsigned dtype wrap, as in PyTorch."""
    high = (1 << 8 * dtype.size - (dtype is not uint8)) - 1
    if not -high - (dtype is not uint8) <= value <= high:
        raise ArgumentError(f"{value} is not a number of {dtype.name}: expected at most {high}")


@function
def zeros(
    *dims: Any, size: Any = None, shape: Any = None, dtype: Any = None, requires_grad: bool = False, device: Any = None,
    layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    code = (DEFAULT.dtype if dtype is None else dtype_of(dtype)).code
    return made(apply(FULL, (0,), (shape_of(dims, shape if size is None else size), code)), requires_grad)


@function
def ones(
    *dims: Any, size: Any = None, shape: Any = None, dtype: Any = None, requires_grad: bool = False, device: Any = None,
    layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    code = (DEFAULT.dtype if dtype is None else dtype_of(dtype)).code
    return made(apply(FULL, (1,), (shape_of(dims, shape if size is None else size), code)), requires_grad)


@function
def arange(
    start: Any, end: Any = None, step: Any = 1, dtype: Any = None, requires_grad: bool = False, device: Any = None,
    layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Numbers from start (0) to end, end excluded."""
    if end is None:
        start, end = 0, start
    if step == 0 or not math.isfinite(end - start) or (end - start) * step < 0:
        raise ArgumentError(f"arange from {start} to {end} cannot go by steps of {step}")
    n = math.ceil((end - start) / step)
    result_dtype = (
        dtype_of(dtype)
        if dtype is not None
        else DEFAULT.dtype
        if any(isinstance(x, float) for x in (start, end, step))
        else int64
    )
    first, by = (float(start), float(step)) if result_dtype.rank == 2 else (int(start), int(step))
    return made(apply(TABLE["iota"], (first, by), ((n,), (n,), (0,), result_dtype.code)), requires_grad)


@function
def eye(
    n: int, m: int | None = None, dtype: Any = None, requires_grad: bool = False, device: Any = None, layout: Any = None,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    shape = (n, n if m is None else m)
    return made(apply(TABLE["eye"], (), (shape, shape, (0, 0), dtype_of(dtype or DEFAULT.dtype).code)), requires_grad)


@function
def empty(
    *dims: Any, size: Any = None, shape: Any = None, dtype: Any = None, requires_grad: bool = False, device: Any = None,
    layout: Any = None, pin_memory: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """An uninitialised tensor in PyTorch; here zeros."""
    return zeros(*dims, size=size, shape=shape, dtype=dtype, requires_grad=requires_grad)


@function
def linspace(
    start: float, end: float, steps: int, dtype: Any = None, requires_grad: bool = False, device: Any = None,
    layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """`steps` evenly spaced numbers from start to end, both included."""
    if not isinstance(steps, int) or steps < 0:
        raise (ArgumentError if isinstance(steps, int) else ArgumentTypeError)(
            f"linspace: expected 0 steps or more, got {steps}"
        )
    by = (end - start) / (steps - 1) if steps > 1 else 0.0
    result_dtype = dtype_of(dtype or DEFAULT.dtype)
    found = apply(TABLE["iota"], (float(start), float(by)), ((steps,), (steps,), (0,), result_dtype.code))
    return made(found, requires_grad)


@function
def logspace(
    start: float, end: float, steps: int, base: float = 10.0, dtype: Any = None, device: Any = None, layout: Any = None,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """`base` to the power of evenly spaced numbers."""
    return (float(base) ** linspace(start, end, steps)).to(dtype or DEFAULT.dtype)


def like_form(name: str) -> None:
    make = FUNCTIONS[name]

    value = {"zeros": 0, "ones": 1, "empty": 0}.get(name)

    def like(
        input: Tensor, dtype: Any = None, requires_grad: bool = False, device: Any = None, layout: Any = None,
        pin_memory: bool = False, memory_format: Any = None,
    ) -> Tensor:  # fmt: skip
        if value is not None:  # placed as the other tensor
            return full_like(input, value, dtype, requires_grad)
        return make(input.shape, dtype=dtype or input.dtype, requires_grad=requires_grad)

    like.__name__ = like.__qualname__ = f"{name}_like"
    like.__doc__ = f"`{name}`, of another tensor's shape and dtype."
    function(like)

    def new(
        self: Tensor, *sizes: Any, size: Any = None, dtype: Any = None, requires_grad: bool = False, device: Any = None,
        layout: Any = None, pin_memory: bool = False,
    ) -> Tensor:  # fmt: skip
        sizes = sizes if size is None else (tuple(size),)
        return make(*sizes, dtype=dtype or self.dtype, requires_grad=requires_grad)

    if name not in ("rand", "randn"):
        new.__name__ = new.__qualname__ = f"new_{name}"
        new.__doc__ = f"`{name}`, of this tensor's dtype."
        method(new)


for _name in ("zeros", "ones", "empty"):
    like_form(_name)


@function
def full_like(
    input: Tensor, fill_value: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None, layout: Any = None,
    pin_memory: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """A tensor of one value with the shape and placement of another."""
    value = fill_value.item() if hasattr(fill_value, "item") else fill_value
    if isinstance(value, complex):
        return full(input.shape, value, dtype=dtype or input.dtype, requires_grad=requires_grad)
    return made(apply(TABLE["full_like"], (input, value), (dtype_of(dtype or input.dtype).code,)), requires_grad)


@method
def new_full(
    self: Tensor, size: Any, fill_value: Any, dtype: Any = None, device: Any = None, layout: Any = None,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    return full(size, fill_value, dtype=dtype or self.dtype)


@method
def new_tensor(
    self: Tensor, data: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None, layout: Any = None,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    return tensor(data, dtype=dtype or self.dtype, requires_grad=requires_grad)


@function
def as_tensor(data: Any, dtype: Any = None, device: Any = None, layout: Any = None, pin_memory: bool = False) -> Tensor:
    """The data as a tensor; a tensor is returned unchanged."""
    if isinstance(data, Tensor):
        return data if dtype is None else data.to(dtype)
    return tensor(data, dtype=dtype)


@function
def range_(start: float, end: float | None = None, step: float = 1, dtype: Any = None) -> Tensor:
    """As PyTorch's deprecated torch.range: the end is included."""
    start, end = (0, start) if end is None else (start, end)
    n = math.floor((end - start) / step) + 1
    return (arange(n) * step + start).to(dtype or DEFAULT.dtype)


FUNCTIONS["range"] = FUNCTIONS.pop("range_")


@function
def scalar_tensor(
    s: Any, dtype: Any = None, device: Any = None, layout: Any = None, pin_memory: bool = False, requires_grad: bool = False
) -> Tensor:
    return full((), s, dtype=dtype or DEFAULT.dtype)


@function
def asarray(obj: Any, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Tensor:
    return FUNCTIONS["as_tensor"](obj, dtype=dtype)


@function
def frombuffer(buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0) -> Tensor:
    """A tensor holding a copy of bytes."""
    return from_numpy(np.frombuffer(buffer, dtype_of(dtype).name, count, offset))
