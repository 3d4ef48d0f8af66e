"""Making tensors: from data, of one value, of positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.default_dtype import DEFAULT
from gt.client.functions import FUNCTIONS, function, method
from gt.client.session import here
from gt.errors import ArgumentError, ArgumentTypeError
from gt.ops.table import TABLE
from gt.spec import DType, Spec, bfloat16, dtype_of, int64


def shape_of(size: tuple, shape: Any = None) -> tuple[int, ...]:
    """`randn(2, 3)`, `randn((2, 3))` and `randn(size=(2, 3))` mean the same."""
    if shape is not None:
        size = (shape,)
    if len(size) == 1 and isinstance(size[0], (tuple, list)):
        size = tuple(size[0])
    try:
        out = tuple(d.__index__() for d in size)
    except AttributeError:
        raise ArgumentTypeError(f"a shape is whole numbers, not {size}") from None
    if any(d < 0 for d in out):
        raise ArgumentError(f"a shape has no negative sizes: {out}")
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
        return full((), data, dtype=dtype or DEFAULT.of(data), requires_grad=requires_grad)
    array, found = _as_array(data)
    return made(_loaded(array, dtype_of(dtype) if dtype is not None else found), requires_grad)


def _as_array(data: Any) -> tuple[np.ndarray, DType]:
    """The data as an array, and the dtype it stands for."""
    if type(data).__module__.split(".")[0] == "torch":
        if str(data.dtype) == "torch.bfloat16":
            return data.detach().float().numpy(), bfloat16
        data = data.detach().cpu().resolve_conj().resolve_neg().numpy()
    if isinstance(data, (list, tuple)) and any(isinstance(x, Tensor) for x in data):
        data = [x.numpy() if isinstance(x, Tensor) else x for x in data]
    python = isinstance(data, (list, tuple))
    try:
        array = np.asarray(data)
    except ValueError as wrong:
        raise ArgumentError(f"cannot make a tensor of this: {wrong}") from None
    if array.dtype.kind not in "biufc":
        raise ArgumentTypeError(f"cannot make a tensor of {array.dtype} data: want numbers")
    if python and array.dtype in (np.float64, np.complex128):
        return array, DEFAULT.dtype if array.dtype == np.float64 else DEFAULT.dtype.to_complex()
    name = {"uint16": "int32", "uint32": "int64", "uint64": "int64", "longdouble": "float64", "clongdouble": "complex128"}.get(
        array.dtype.name
    )
    return array, dtype_of(name or array.dtype.name)


def _loaded(array: np.ndarray, dtype: DType) -> Tensor:
    scope = here()
    spec = Spec(array.shape, dtype)
    if dtype is bfloat16:
        from gt.client.functions.read import to_bfloat16_bits

        array = to_bfloat16_bits(array)
    else:
        with np.errstate(invalid="ignore"):
            array = array.astype(dtype.name, copy=False)
    return Tensor(scope.session.load(array, spec, scope))


@function
def from_numpy(array: np.ndarray, requires_grad: bool = False) -> Tensor:
    """A tensor holding a copy of a NumPy array, of its dtype."""
    if not isinstance(array, (np.ndarray, np.generic)):
        raise ArgumentTypeError(f"from_numpy wants a NumPy array, not {type(array).__name__}: use gt.tensor")
    array, dtype = _as_array(array)
    return made(_loaded(array, dtype), requires_grad)


@function
def full(
    size: Any, fill_value: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None, layout: Any = None,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """A tensor of one value."""
    kind = dtype_of(dtype) if dtype is not None else DEFAULT.of(fill_value)
    shape = shape_of((size,)) if not isinstance(size, int) else (size,)
    value = fill_value.item() if hasattr(fill_value, "item") else fill_value
    if isinstance(value, complex):
        found = apply(TABLE["full_complex"], (value.real, value.imag), (shape, kind.to_complex().code))
        return made(found if kind.is_complex else found.to(kind), requires_grad)
    return made(apply(TABLE["full"], (value,), (shape, kind.code)), requires_grad)


@function
def zeros(
    *dims: Any, size: Any = None, shape: Any = None, dtype: Any = None, requires_grad: bool = False, device: Any = None,
    layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    return full(shape_of(dims, shape if size is None else size), 0, dtype=dtype or DEFAULT.dtype, requires_grad=requires_grad)


@function
def ones(
    *dims: Any, size: Any = None, shape: Any = None, dtype: Any = None, requires_grad: bool = False, device: Any = None,
    layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    return full(shape_of(dims, shape if size is None else size), 1, dtype=dtype or DEFAULT.dtype, requires_grad=requires_grad)


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
    kind = (
        dtype_of(dtype)
        if dtype is not None
        else DEFAULT.dtype
        if any(isinstance(x, float) for x in (start, end, step))
        else int64
    )
    first, by = (float(start), float(step)) if kind.rank == 2 else (int(start), int(step))
    return made(apply(TABLE["iota"], (first, by), ((n,), (n,), (0,), kind.code)), requires_grad)


@function
def eye(
    n: int, m: int | None = None, dtype: Any = None, requires_grad: bool = False, device: Any = None, layout: Any = None,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    shape = (n, n if m is None else m)
    return made(apply(TABLE["eye"], (), (shape, shape, (0, 0), dtype_of(dtype or DEFAULT.dtype).code)), requires_grad)


@function
def empty(
    *size: Any, dtype: Any = None, requires_grad: bool = False, shape: Any = None, device: Any = None, layout: Any = None,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """A tensor to be filled: zeros, since nothing is gained by leaving it undefined."""
    return zeros(*size, dtype=dtype, requires_grad=requires_grad, shape=shape)


@function
def linspace(
    start: float, end: float, steps: int, dtype: Any = None, requires_grad: bool = False, device: Any = None,
    layout: Any = None, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """So many numbers from start to end, both included, at equal distances."""
    if not isinstance(steps, int) or steps < 0:
        raise (ArgumentError if isinstance(steps, int) else ArgumentTypeError)(f"linspace wants 0 steps or more, not {steps}")
    by = (end - start) / (steps - 1) if steps > 1 else 0.0
    kind = dtype_of(dtype or DEFAULT.dtype)
    found = apply(TABLE["iota"], (float(start), float(by)), ((steps,), (steps,), (0,), kind.code))
    return made(found, requires_grad)


@function
def logspace(
    start: float, end: float, steps: int, base: float = 10.0, dtype: Any = None, device: Any = None, layout: Any = None,
    pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """The base to the power of equally distant numbers."""
    return (float(base) ** linspace(start, end, steps)).to(dtype or DEFAULT.dtype)


def like_form(name: str) -> None:
    make = FUNCTIONS[name]

    value = {"zeros": 0, "ones": 1, "empty": 0}.get(name)

    def like(
        input: Tensor, dtype: Any = None, requires_grad: bool = False, device: Any = None, layout: Any = None,
        pin_memory: bool = False, memory_format: Any = None,
    ) -> Tensor:  # fmt: skip
        if value is not None:  # it lies where the other does
            return full_like(input, value, dtype, requires_grad)
        return make(input.shape, dtype=dtype or input.dtype, requires_grad=requires_grad)

    like.__name__ = like.__qualname__ = f"{name}_like"
    like.__doc__ = f"`{name}`, of another tensor's shape and dtype."
    function(like)

    def new(
        self: Tensor, *size: Any, dtype: Any = None, requires_grad: bool = False, device: Any = None, layout: Any = None,
        pin_memory: bool = False,
    ) -> Tensor:  # fmt: skip
        return make(*size, dtype=dtype or self.dtype, requires_grad=requires_grad)

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
    """A tensor of one value, of another's shape, where that lies."""
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
    """The data as a tensor; a tensor stays what it is."""
    if isinstance(data, Tensor):
        return data if dtype is None else data.to(dtype)
    return tensor(data, dtype=dtype)


def loaded(data: np.ndarray, shape: tuple[int, ...], dtype: DType) -> Tensor:
    """A tensor of these bytes, as they stand."""
    scope = here()
    return Tensor(scope.session.load(np.ascontiguousarray(data), Spec(shape, dtype), scope))
