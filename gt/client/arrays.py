"""Tensors from arrays, nested lists and PyTorch's tensors: their bytes are loaded, without an op."""

from __future__ import annotations

from functools import reduce
from itertools import chain
from typing import Any

import numpy as np

from gt.client.autograd import Tensor
from gt.client.default_dtype import DEFAULT
from gt.client.handle import Handle
from gt.client.here import here
from gt.client.scope import Scope
from gt.errors import ArgumentError, ArgumentTypeError
from gt.ops import row
from gt.spec import DTYPES, DType, Spec, bfloat16, dtype_of, int64, promote_types

LOAD = row("load")
NUMPY = {dtype: np.dtype(dtype.name) for dtype in DTYPES if dtype is not bfloat16}  # of this machine's byte order
GT = {numpy: dtype for dtype, numpy in NUMPY.items()}
WIDER = {"uint16": "int32", "uint32": "int64", "uint64": "int64", "longdouble": "float64", "clongdouble": "complex128"}
LARGEST = np.iinfo(np.int64).max
SMALL, REMEMBERED = 64, 64  # most elements of a remembered array, and number of the last arrays remembered


def to_bfloat16_bits(array: np.ndarray) -> np.ndarray:
    """float to bfloat16's 16 bits, ties to even."""
    wide = np.ascontiguousarray(array, np.float32)
    bits = wide.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(wide), np.uint16(0x7FC0), rounded).reshape(array.shape)


MOST_AXES = 64  # as in NumPy


def as_array(data: Any) -> tuple[np.ndarray, DType]:
    """The data as an array, and its dtype."""
    if type(data) is np.ndarray and (dtype := GT.get(data.dtype)) is not None:
        return data, dtype
    if type(data).__module__.split(".")[0] == "torch":
        if data.ndim > MOST_AXES:
            raise ArgumentError(f"a tensor has at most {MOST_AXES} axes, not {data.ndim}")
        if str(data.dtype) == "torch.bfloat16":
            return data.detach().float().numpy(), bfloat16
        data = data.detach().cpu().resolve_conj().resolve_neg().numpy()
    python = isinstance(data, (list, tuple))
    tensors = python and (any(isinstance(x, Tensor) for x in data) or isinstance(_first_element(data), Tensor))
    try:
        array = np.asarray(_with_numbers(data) if tensors else data)
    except ValueError as wrong:
        error = ArgumentTypeError if python and _mixed(data) else ArgumentError
        raise error(f"cannot make a tensor of this: {wrong}") from None
    if array.dtype.kind not in "biufc":
        refused = str if array.dtype.kind == "U" else int  # a list that begins with one is a ValueError in PyTorch
        error = ArgumentError if python and isinstance(_first_element(data), refused) else ArgumentTypeError
        raise error(f"cannot make a tensor of {array.dtype} data: expected numbers of at most 64 bits")
    if tensors or python and array.dtype in (np.float64, np.complex128):
        return array, reduce(promote_types, _dtypes_in(data))
    return array, dtype_of(WIDER.get(array.dtype.name, array.dtype.name))


def _first_element(data: Any) -> Any:
    while isinstance(data, (list, tuple)) and data:
        data = data[0]
    return data


def _with_numbers(data: list[Any] | tuple[Any, ...]) -> list[Any]:
    """Nested lists with arrays of no axes in place of tensors, which have to be numbers."""
    return [_number(x) if isinstance(x, Tensor) else _with_numbers(x) if isinstance(x, (list, tuple)) else x for x in data]


def _number(t: Tensor) -> np.ndarray:
    if t.numel() != 1:
        error = ArgumentError if t.dtype.is_floating_point or t.dtype.is_complex else ArgumentTypeError
        raise error(f"a tensor in a list has to be one number, not of shape {tuple(t.shape)}: gt.stack or gt.cat the list")
    return t.detach().numpy().reshape(())


def _mixed(data: Any) -> bool:
    """Whether numbers and lists stand in one list."""
    parts = [x for x in data if isinstance(x, (list, tuple, np.ndarray))]
    return bool(parts) and (len(parts) < len(data) or _mixed(list(chain.from_iterable(parts))))


def _dtypes_in(data: Any) -> set[DType]:
    """The dtypes that nested lists bring: NumPy's numbers and arrays their own, Python's fractions the default one."""
    kinds: set[Any] = set(map(type, data))
    found = set[DType]()
    if kinds == {float}:
        return {DEFAULT.dtype}
    for kind in kinds:
        if issubclass(kind, (list, tuple)):
            found |= _dtypes_in(list(chain.from_iterable(part for part in data if type(part) is kind)))
        elif issubclass(kind, Tensor):
            found.update(part.dtype for part in data if type(part) is kind)
        elif issubclass(kind, np.ndarray):
            found.update(dtype_of(WIDER.get(part.dtype.name, part.dtype.name)) for part in data if type(part) is kind)
        elif issubclass(kind, np.generic):
            found.add(dtype_of(WIDER.get(kind.__name__, np.dtype(kind).name)))
        else:
            found.add(DEFAULT.of(next(part for part in data if type(part) is kind)))
    return found or {DEFAULT.dtype}


def load(array: np.ndarray, dtype: DType) -> Tensor:
    """A tensor of an array's elements, cast to a dtype."""
    scope = here()
    spec = Spec(array.shape, dtype)
    if dtype is bfloat16:
        array = to_bfloat16_bits(array)
    elif array.dtype != NUMPY[dtype]:
        if dtype is int64 and array.dtype == np.uint64 and array.size and array.max() > LARGEST:
            raise ArgumentError(f"{array.max()} is not a number of int64: expected at most {LARGEST}")
        with np.errstate(invalid="ignore"):
            array = array.astype(NUMPY[dtype])
    return _sent(array, spec, scope)


def loaded(data: np.ndarray, shape: tuple[int, ...], dtype: DType) -> Tensor:
    """A tensor of an array's bytes."""
    return _sent(np.ascontiguousarray(data), Spec(shape, dtype), here())


def _sent(array: np.ndarray, spec: Spec, scope: Scope) -> Tensor:
    key = ("load", spec)
    known = scope.kinds.get(key)
    if known is None:
        statics = (spec.shape, spec.shape, (0,) * len(spec.shape), spec.dtype.code)
        known = scope.learn(key, LOAD, (int, int, int), statics)
    made = Tensor(Handle(scope.session.load(array, known.number), spec, scope.session))
    if spec.numel <= SMALL and spec.dtype is not bfloat16:
        remember(made, array.copy())
    return made


def remember(t: Tensor, array: np.ndarray) -> None:
    """Keep a copy of a small array, to check its values without a read."""
    loaded = t.handle.session.loaded
    if len(loaded) >= REMEMBERED:
        del loaded[next(iter(loaded))]
    loaded[t.handle.id] = array
