"""Variants of view functions that PyTorch names separately: copies, strides, writes into another tensor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gt.client.autograd import Tensor
from gt.client.functions.create import as_tensor, empty, zeros
from gt.client.functions.in_place import in_place
from gt.client.functions.registry import FUNCTIONS, both, function, method
from gt.client.strides import is_contiguous, offset
from gt.client.views import Custom, custom_view, root_of
from gt.client.writes import become
from gt.errors import ArgumentError
from gt.spec import DType, int64

# Values on workers never change, so a copy takes no more than the view.
VIEWS = ["alias", "as_strided", "diagonal", "expand", "narrow", "permute", "split_with_sizes", "squeeze", "t", "transpose"]
VIEWS += ["unbind", "unfold", "unsqueeze", "view"]


def _positions(size: Any, stride: Any, offset: int, elements: int) -> Tensor:
    """The position of each element of a strided tensor in a flat tensor of `elements`."""
    if len(size) != len(stride):
        raise ArgumentError(f"as_strided: expected a stride for each axis, got {tuple(stride)} for {tuple(size)}")
    places = np.full(tuple(size), int(offset), np.int64)
    for axis, (d, s) in enumerate(zip(size, stride)):
        places += (np.arange(d, dtype=np.int64) * s).reshape((-1,) + (1,) * (len(size) - axis - 1))
    if places.size and not 0 <= places.min() <= places.max() < elements:
        raise ArgumentError(f"as_strided reaches element {places.max()} of {elements}: {tuple(size)} by {tuple(stride)}")
    return as_tensor(places)


@both
def as_strided(input: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """Elements, at strides, of the flattened tensor, or of the base of a view."""
    base, first = root_of(input), offset(input) if storage_offset is None else int(storage_offset)
    if input.requires_grad and not base.requires_grad:  # a leaf that is a view: the gradient is its own
        if not is_contiguous(input):
            raise RuntimeError(
                "as_strided of a leaf that is a view: expected a contiguous leaf, clone() it before requires_grad_()"
            )
        base, first = input, first - offset(input)
    dtype = input.dtype
    places = _positions(size, stride, first, base.nbytes // dtype.size)

    def picked(x: Tensor) -> Tensor:
        return _row_of(x, dtype)[places]

    return custom_view(base, Custom(picked, lambda _: tuple(map(int, stride)), None, lambda _: first))


def _row_of(x: Tensor, dtype: DType) -> Tensor:
    """All elements flattened, in the dtype of a view of them. Positions of elements have a dtype of their own."""
    if x.dtype.is_complex and dtype is x.dtype.to_real():
        return FUNCTIONS["view_as_real"](x).reshape(-1)
    row = x.reshape(-1)
    return row if dtype is x.dtype or x.dtype is int64 else row.view(dtype)


method(in_place("as_strided", as_strided, view=True))
FUNCTIONS["as_strided_"] = Tensor.as_strided_  # type: ignore[attr-defined]


@both
def as_strided_scatter(input: Tensor, src: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """A copy with `src` at the elements of `as_strided`."""
    places = _positions(size, stride, storage_offset or 0, input.numel())
    if src.shape != tuple(size):
        raise ArgumentError(f"as_strided_scatter to {tuple(size)}: expected a source of that shape, got {src.shape}")
    return input.reshape(-1).index_put((places.reshape(-1),), src.reshape(-1)).reshape(input.shape)


def _copying(name: str) -> None:
    def copy(input: Tensor, *args: Any, **settings: Any) -> Any:
        if name == "alias":
            return input.clone()
        found = getattr(Tensor, name)(input, *args, **settings)
        return [t.clone() for t in found] if isinstance(found, (list, tuple)) else found.clone()

    copy.__name__ = copy.__qualname__ = f"{name}_copy"
    copy.__doc__ = f"`{name}`, as a tensor of its own."
    (both if name == "narrow" else function)(copy)


for _name in VIEWS:
    _copying(_name)


@function
def empty_strided(size: Any, stride: Any, **settings: Any) -> Tensor:
    """`empty`: tensors are contiguous here, whatever strides are requested."""
    if len(tuple(size)) != len(tuple(stride)):
        raise ArgumentError(f"empty_strided: expected a stride for each axis, got {tuple(stride)} for {tuple(size)}")
    return empty(size, **settings)


@function
def empty_permuted(size: Any, physical_layout: Any, **settings: Any) -> Tensor:
    """`empty`: tensors are contiguous here, whatever order of axes is requested."""
    if sorted(physical_layout) != list(range(len(size))):
        raise ArgumentError(f"empty_permuted: expected an order of the {len(size)} axes, got {tuple(physical_layout)}")
    return empty(size, **settings)


@method
def new_empty_strided(self: Tensor, size: Any, stride: Any, dtype: Any = None, **settings: Any) -> Tensor:
    return empty_strided(size, stride, dtype=dtype or self.dtype, **settings)


@method
def resize_(self: Tensor, *size: Any, memory_format: Any = None) -> Tensor:
    """Change the shape of this variable: its first elements, followed by zeros if there are too few."""
    shape = tuple(size[0]) if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
    if self.requires_grad:
        raise RuntimeError("cannot resize a variable that requires gradients")
    want, have = math.prod(shape), self.numel()

    def resized(x: Tensor) -> Tensor:
        flat = x.reshape(-1)
        if want > have:
            flat = FUNCTIONS["cat"]([flat, zeros(want - have, dtype=x.dtype)])
        return flat[:want].reshape(shape)

    return become(self, resized)


@method
def resize_as_(input: Tensor, other: Tensor, memory_format: Any = None) -> Tensor:
    return resize_(input, other.shape)


FUNCTIONS["resize_as_"] = resize_as_
