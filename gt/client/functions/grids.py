"""Coordinates of grids, and combinations of elements."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from gt.client.autograd import Tensor
from gt.client.functions.create import from_numpy
from gt.client.functions.registry import FUNCTIONS, function, given
from gt.client.functions.reshape import reshape
from gt.errors import ArgumentError, ArgumentTypeError


@function
def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """The coordinates of a grid with these axes."""
    axes = [t if t.ndim else t.reshape(1) for t in given(tensors)]
    for axis in axes:
        if axis.ndim > 1:
            raise ArgumentError(f"meshgrid: expected tensors of one axis or none, got {tuple(axis.shape)}")
        if axis.dtype is not axes[0].dtype:
            raise ArgumentTypeError(f"meshgrid: expected tensors of one dtype, got {axes[0].dtype.name} and {axis.dtype.name}")
    if indexing not in ("ij", "xy"):
        raise ArgumentError(f"no indexing {indexing!r}: known are ij, xy")
    swap = indexing == "xy" and len(axes) > 1
    if swap:
        axes[0], axes[1] = axes[1], axes[0]
    shape = tuple(t.numel() for t in axes)
    grids = [reshape(t, (1,) * i + (-1,) + (1,) * (len(axes) - i - 1)).expand(shape) for i, t in enumerate(axes)]
    if swap:
        grids = [grids[1], grids[0], *grids[2:]]
    return tuple(grids)


@function
def cartesian_prod(*tensors: Tensor) -> Tensor:
    grids = FUNCTIONS["meshgrid"](*tensors)
    return FUNCTIONS["stack"]([g.reshape(-1) for g in grids], -1) if len(tensors) > 1 else tensors[0]


@function
def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All combinations of `r` elements, in order."""
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = np.array(list(choose(range(input.shape[0]), r)), np.int64).reshape(-1, r)
    return input.index_select(0, from_numpy(places.reshape(-1))).reshape(places.shape)
