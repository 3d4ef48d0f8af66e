"""softmax and its logarithm. Other functions of layers are in `gt.nn.functional`."""

from __future__ import annotations

from typing import Any

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.registry import axis_spelling, both
from gt.errors import ArgumentTypeError
from gt.ops.rules import axis_of
from gt.ops.table import TABLE


def _axis(x: Tensor, axis: Any, dim: Any) -> int:
    axis = axis_spelling(axis, dim)
    if axis is None:
        raise ArgumentTypeError("name the axis: softmax(x, dim=-1)")
    return axis_of(axis, x.ndim)


@both
def softmax(input: Tensor, axis: Any = None, dtype: Any = None, *, dim: Any = None) -> Tensor:
    """exp of each element, divided by the sum of all along an axis."""
    input = input if dtype is None else input.to(dtype)
    return apply(TABLE["softmax"], (input,), (_axis(input, axis, dim),))


@both
def log_softmax(input: Tensor, axis: Any = None, dtype: Any = None, *, dim: Any = None) -> Tensor:
    """The logarithm of `softmax`."""
    input = input if dtype is None else input.to(dtype)
    return apply(TABLE["log_softmax"], (input,), (_axis(input, axis, dim),))
