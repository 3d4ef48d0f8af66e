"""Concatenation and stacking."""

from __future__ import annotations

from functools import partial
from typing import Any

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.create import as_tensor
from gt.client.functions.registry import FUNCTIONS, axis_spelling, function
from gt.client.functions.reshape import reshape, unsqueeze
from gt.errors import ArgumentError
from gt.ops.rules import axis_of, promote
from gt.ops.table import TABLE


@function
def cat(tensors: Any, axis: Any = None, *, dim: Any = None) -> Tensor:
    """Concatenate tensors along an axis (0)."""
    parts = tuple([x if type(x) is Tensor else as_tensor(x) for x in tensors])
    if not parts:
        raise ArgumentError("cat was given no tensors: expected a list of at least one")
    axis = axis_spelling(axis, dim)
    axis = 0 if axis is None else axis
    try:
        return apply(TABLE["cat"], parts, (axis_of(axis, parts[0].handle.spec.ndim),))
    except (ArgumentError, IndexError):
        others = _without_nothing(parts)
        if len(others) == len(parts):
            raise
        if not others:  # any axis will do, as in PyTorch
            return apply(TABLE["cat"], parts, (0,))
        return apply(TABLE["cat"], others, (axis_of(axis, others[0].handle.spec.ndim),))


def _without_nothing(parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Without tensors of shape (0,), which count for the dtype alone where others have more axes: `cat([tensor([]), x])`."""
    dtype = promote(*(p.handle.spec for p in parts))
    return tuple(p.to(dtype) for p in parts if p.handle.spec.shape != (0,))


@function
def stack(tensors: Any, axis: Any = None, *, dim: Any = None) -> Tensor:
    """Stack tensors of one shape along a new axis (0)."""
    parts = [as_tensor(x) for x in tensors]
    if not parts:
        raise ArgumentError(f"stack: expected a list of at least one tensor, got {tensors!r}")
    axis = axis_spelling(axis, dim)
    axis = 0 if axis is None else axis
    if len({p.handle.spec.shape for p in parts}) > 1:
        raise ArgumentError(f"cannot stack {', '.join(str(p.handle.spec.shape) for p in parts)}: expected one shape")
    return cat([unsqueeze(p, axis) for p in parts], axis_of(axis, parts[0].handle.spec.ndim + 1))


def _at_least(x: Any, n: int) -> Tensor:
    """With at least `n` axes, inserted as NumPy does."""
    x = as_tensor(x)
    if x.ndim == 0:
        return reshape(x, (1,) * n)
    if x.ndim == 1 and n > 1:
        x = unsqueeze(x, 0)
    return unsqueeze(x, 2) if x.ndim == 2 and n == 3 else x


def _each_at_least(n: int, *tensors: Any) -> Any:
    """The result for one tensor, or a tuple for several."""
    several = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
    if several is tensors and len(tensors) == 1:
        return _at_least(tensors[0], n)
    return tuple(_at_least(t, n) for t in several)


for _n in (1, 2, 3):
    FUNCTIONS[f"atleast_{_n}d"] = partial(_each_at_least, _n)


@function
def hstack(tensors: Any) -> Tensor:
    parts = [_at_least(t, 1) for t in tensors]
    if not parts:
        raise ArgumentError("hstack was given no tensors: expected a list of at least one")
    return cat(parts, 0 if parts[0].ndim == 1 else 1)


@function
def vstack(tensors: Any) -> Tensor:
    return cat([_at_least(t, 2) for t in tensors], 0)


@function
def dstack(tensors: Any) -> Tensor:
    return cat([_at_least(t, 3) for t in tensors], 2)


@function
def column_stack(tensors: Any) -> Tensor:
    return cat([t if t.ndim > 1 else reshape(t, (-1, 1)) for t in map(as_tensor, tensors)], 1)


FUNCTIONS["concat"] = FUNCTIONS["concatenate"] = cat
FUNCTIONS["row_stack"] = vstack
