"""Elements by index arrays: gather, scatter and related functions. Where the number of elements depends on values (nonzero,
masked_select), the values are read."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.client.apply import apply, operand
from gt.client.autograd import Tensor
from gt.client.functions.checks import require_of
from gt.client.functions.create import arange, as_tensor, full
from gt.client.functions.in_place import in_place
from gt.client.functions.index import put
from gt.client.functions.registry import both, function, method
from gt.errors import ArgumentError, ArgumentIndexError, ArgumentTypeError
from gt.ops.rules import axis_of, broadcast
from gt.ops.table import TABLE
from gt.spec import bool_, int64


def places(index: Any) -> Any:
    """Indices converted to int64, as the rows require."""
    return index.to(int64) if isinstance(index, Tensor) and index.dtype.rank == 1 and index.dtype is not int64 else index


def _along(row: str, input: Tensor, dim: int, index: Tensor, values: tuple, statics: Any) -> Tensor:
    """A row over slices along an axis; a 0-d tensor counts as one element."""
    at = axis_of(dim, input.ndim)
    if input.ndim:
        return apply(TABLE[row], statics(input, values, places(index)), _settings(row, at))
    flat = tuple(v.reshape(1) if isinstance(v, Tensor) and not v.ndim else v for v in values)
    return apply(TABLE[row], statics(input.reshape(1), flat, places(index)), _settings(row, 0)).reshape(())


def _settings(row: str, axis: int) -> tuple:
    return ((axis,), False) if row == "index_put" else (axis,)


@both
def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """The elements at these indices along an axis: `out[i][j] = input[i][index[i][j]]` for dim 1."""
    return apply(TABLE["gather"], (input, places(index)), (axis_of(dim, input.ndim),))


@both
def scatter(input: Tensor, dim: int, index: Tensor, src: Any = None, value: Any = None, *, reduce: str | None = None) -> Tensor:
    """A copy with these values at these indices along an axis."""
    source = operand(src if value is None else value)
    if reduce is None:
        return apply(TABLE["scatter"], (input, places(index), source), (axis_of(dim, input.ndim),))
    if reduce not in ("add", "multiply"):
        raise ArgumentError(f"scatter has no reduce {reduce!r}: known are None, 'add', 'multiply'")
    source = source if isinstance(source, Tensor) else input.new_full(index.shape, source)
    return input.scatter_reduce(dim, index, source, {"add": "sum", "multiply": "prod"}[reduce])


@both
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """A copy with these values added at these indices along an axis."""
    return apply(TABLE["scatter_add"], (input, places(index), src), (axis_of(dim, input.ndim),))


@both
def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """`gather` with the other axes broadcast."""
    if dim is None:
        return gather(input.reshape(-1), 0, indices.reshape(-1))
    at = axis_of(dim, input.ndim)
    rest = broadcast(_but(input.shape, at), _but(indices.shape, at))
    lead, tail = rest[:at], rest[at:]
    have, want = (*lead, input.shape[at], *tail), (*lead, indices.shape[at], *tail)
    return gather(input.expand(have), at, indices.expand(want).clone())  # PyTorch keeps a copy, so that these may change


def _but(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


@both
def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices at these indices along an axis."""
    return apply(TABLE["index_select"], (input, places(index)), (axis_of(dim, input.ndim),))


@both
def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """A copy with these slices added at these indices along an axis."""
    if not input.ndim and source.ndim:
        raise ArgumentError(f"index_add to a tensor of no axes: expected a source of none, got {source.shape}")
    return _along("index_add", input, dim, index, (source, alpha), lambda x, v, i: (x, i, *v))


@both
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """A copy with these slices at these indices along an axis."""
    if source.dtype is not input.dtype:
        raise ArgumentTypeError(f"index_copy into {input.dtype.name}: expected that dtype, got {source.dtype.name}")
    return _along("index_put", input, dim, _flat(index), (source,), lambda x, v, i: (x, *v, i))


def _flat(index: Tensor) -> Tensor:
    return index.reshape(1) if not index.ndim else index


@both
def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """A copy with one value in the slices at these indices along an axis."""
    if index.dtype is not int64:
        raise ArgumentIndexError(f"index_fill: expected indices of int64, got {index.dtype.name}")
    if isinstance(value, Tensor) and value.ndim:
        raise ArgumentError(f"index_fill: expected one value, a number or a tensor of no axes, got {value.shape}")
    value = value.to(input.dtype) if isinstance(value, Tensor) else _number(value, input)
    if isinstance(value, Tensor) and value.requires_grad:  # a slice named twice counts once in the value's gradient
        at, shape = axis_of(dim, input.ndim), input.shape or (1,)
        named = apply(TABLE["index_put"], (full((shape[at],), False), True, places(_flat(index))), ((0,), False))
        return named.reshape((-1,) + (1,) * (len(shape) - at - 1)).pick(value, input.reshape(shape)).reshape(input.shape)
    return _along("index_put", input, dim, _flat(index), (value,), lambda x, v, i: (x, *v, i))


def _number(value: Any, like: Tensor) -> Any:
    """A number converted to the tensor's category of dtypes: `True` is 1 among floats."""
    value = operand(value)
    if like.dtype.rank > 2:
        return full((), value, dtype=like.dtype)
    return value if like.dtype.rank == 2 else int(value) if like.dtype.rank == 1 else bool(value)


@both
def index_put(input: Tensor, indices: Any, values: Any, accumulate: bool = False) -> Tensor:
    """A copy with these values at the indices that the arrays, one for each of the first axes, give together."""
    if not isinstance(values, Tensor):
        raise TypeError(f"index_put: expected a tensor of values, got {type(values).__name__}")
    if values.dtype is not input.dtype:
        raise ArgumentError(f"index_put: expected values of {input.dtype.name}, got {values.dtype.name}")
    return put(input, tuple(indices), values, accumulate)


@both
def take(input: Tensor, index: Tensor) -> Tensor:
    """The elements at these indices of the flattened tensor."""
    if index.dtype is not int64:
        raise ArgumentTypeError(f"take: expected indices of int64, got {index.dtype.name}")
    return apply(TABLE["index"], (input.reshape(-1), index), ((0,),))


@both
def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements where the mask is true, as one axis. Reads the mask, which determines the shape."""
    if mask.dtype is not bool_:
        raise ArgumentTypeError(f"masked_select: expected a mask of booleans, got {mask.dtype.name}")
    shape = broadcast(input.shape, mask.shape)
    return input.expand(shape)[mask.expand(shape)]


@both
def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """A copy with the first elements of `source` where the mask is true. Reads the mask."""
    if mask.dtype is not bool_:
        raise ArgumentTypeError(f"masked_scatter: expected a mask of booleans, got {mask.dtype.name}")
    if source.dtype is not input.dtype:
        raise ArgumentTypeError(f"masked_scatter into {input.dtype.name}: expected that dtype, got {source.dtype.name}")
    shape = broadcast(input.shape, mask.shape)
    where = np.flatnonzero(mask.expand(shape).numpy())
    if len(where) > source.numel():
        raise ArgumentError(f"masked_scatter: expected a value for each of {len(where)} True elements, got {source.numel()}")
    flat = input.expand(shape).reshape(-1)
    return apply(TABLE["index_put"], (flat, source.reshape(-1)[: len(where)], as_tensor(where)), ((0,), False)).reshape(shape)


@both
def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """The indices of the nonzero elements. Reads the tensor, which determines the shape."""
    places = np.nonzero(np.atleast_1d(input.numpy()))
    if as_tuple:
        return tuple(as_tensor(p.astype(np.int64)) for p in places)
    found = np.stack(places, axis=1).astype(np.int64) if input.ndim else np.zeros((len(places[0]), 0), np.int64)
    return as_tensor(found)


@both
def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """`nonzero` with a fixed number of rows: the first ones, or all and then rows of `fill_value`."""
    found = np.argwhere(input.numpy()).astype(np.int64)
    rows = np.full((size, input.ndim), fill_value, np.int64)
    rows[: len(found)] = found[:size]
    return as_tensor(rows)


@both
def argwhere(input: Tensor) -> Tensor:
    return nonzero(input)


@function
def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """1 at the index of each class, 0 elsewhere, along a new axis. Without a number of classes the largest class is read."""
    if tensor.dtype is not int64:
        raise ArgumentTypeError(f"one_hot: expected int64 class numbers, got {tensor.dtype.name}")
    n = int(tensor.amax().item()) + 1 if num_classes == -1 else num_classes
    require_of(tensor, lambda c: (c >= 0) & (c < n), f"one_hot: expected classes from 0 to {n - 1}, found others")
    return (tensor.unsqueeze(-1) == arange(n)).to(int64)


@function
def unravel_index(indices: Tensor, shape: Any) -> tuple[Tensor, ...]:
    """Flat indices as indices along each axis."""
    if indices.dtype.rank != 1:
        raise ArgumentTypeError(f"unravel_index: expected integers, got {indices.dtype.name}")
    found, rest = [], indices.to(int64)
    for d in reversed((shape,) if isinstance(shape, int) else tuple(shape)):
        found.append(rest % d)
        rest = rest // d
    return tuple(reversed(found))


for _f in (scatter, scatter_add, index_add, index_copy, masked_scatter):
    method(in_place(_f.__name__, _f))
method(in_place("index_fill", index_fill, filled=lambda at, dim, index, value: (at.index_select(dim, index), value)))
method(in_place("index_put", index_put, filled=lambda at, indices, values, *_: (at[tuple(indices)], values)))
