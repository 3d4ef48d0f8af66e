"""Tensors split along an axis: pieces, slices and windows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import arange
from gt.client.functions.registry import alias, axis_spelling, both, method
from gt.client.views import Custom, custom_view, one_of_several
from gt.errors import ArgumentError, ArgumentTypeError
from gt.ops.rules import axis_of


def _with_axes(tensor: Tensor, name: str) -> Tensor:
    if not tensor.ndim:
        raise ArgumentError(f"{name}: expected at least one axis, got a 0-d tensor")
    return tensor


@both
def split(
    tensor: Tensor, split_size: Any = None, axis: Any = None, *, dim: Any = None, split_size_or_sections: Any = None
) -> tuple[Tensor, ...]:
    """Pieces of one size along an axis (0), the last possibly smaller, or of the listed sizes."""
    split_size = split_size if split_size_or_sections is None else split_size_or_sections
    axis = axis_spelling(axis, dim)
    at = axis_of(0 if axis is None else axis, _with_axes(tensor, "split").ndim)
    n = tensor.shape[at]
    if isinstance(split_size, int):
        if split_size < 0 or split_size == 0 and n:
            raise ArgumentError(f"split: expected pieces of a size above 0, got {split_size}")
        sizes = [split_size] * (n // split_size) + ([n % split_size] if n % split_size else []) if n else [0]
    else:
        sizes = [int(s) for s in split_size]
        if sum(sizes) != n:
            raise ArgumentError(f"split: expected sizes that sum to {n}, axis {at} of {tensor.shape}, got {sizes}")
    found, start = [], 0
    for size in sizes:
        found.append(tensor.narrow(at, start, size))
        start += size
    return one_of_several(found, "split")


@both
def chunk(input: Tensor, chunks: int, axis: Any = None, *, dim: Any = None) -> tuple[Tensor, ...]:
    """At most this many pieces of one size along an axis (0), the last possibly smaller."""
    axis = axis_spelling(axis, dim)
    at = axis_of(0 if axis is None else axis, _with_axes(input, "chunk").ndim)
    if chunks < 1:
        raise ArgumentError(f"chunk: expected at least one piece, got {chunks}")
    return split(input, -(-input.shape[at] // chunks) or [0] * chunks, at)


@both
def tensor_split(input: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """This many pieces, the first ones larger by one if the size is not divisible, or split at these indices."""
    at = axis_of(dim, input.ndim)
    n = input.shape[at]
    if isinstance(indices_or_sections, Tensor):
        indices_or_sections = indices_or_sections.tolist()
    if isinstance(indices_or_sections, int):
        k = indices_or_sections
        bounds = [i * (n // k) + min(i, n % k) for i in range(k + 1)]
        return tuple(input.narrow(at, a, b - a) for a, b in zip(bounds, bounds[1:]))
    bounds = [0, *[min(max(i + n if i < 0 else i, 0), n) for i in indices_or_sections], n]
    return tuple(input.narrow(at, a, max(b - a, 0)) for a, b in zip(bounds, bounds[1:]))


@both
def unbind(input: Tensor, axis: Any = None, *, dim: Any = None) -> tuple[Tensor, ...]:
    """The slices along an axis (0), without that axis."""
    axis = axis_spelling(axis, dim)
    at = axis_of(0 if axis is None else axis, input.ndim)
    return one_of_several([select(input, at, i) for i in range(input.shape[at])], "unbind")


@both
def select(input: Tensor, dim: int, index: int) -> Tensor:
    """One slice along an axis, without that axis."""
    return input[(slice(None),) * axis_of(dim, input.ndim) + (index,)]


def _evenly(name: str, input: Tensor, sections: Any, axis: int, least: int) -> tuple[Tensor, ...]:
    """`tensor_split`; with a number, into pieces of one size."""
    if input.ndim < least:
        raise ArgumentError(f"{name}: expected at least {least} axes, got {input.shape}")
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


for _name in ("chunk", "split", "split_with_sizes"):
    alias(f"unsafe_{_name}", lambda input, *args, _name=_name, **settings: getattr(input, _name)(*args, **settings))


@method
def unfold(self: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """Sliding windows of an axis, each along a new last axis."""
    at = axis_of(dimension, self.ndim)
    if not self.ndim:
        return unfold(self.reshape(1), 0, size, step).reshape((size,) if size else (0,))
    if not 0 <= size <= self.shape[at] or step < 1:
        raise ArgumentError(
            f"unfold of axis {at} of {self.shape}: expected a size up to its length and a step above 0, got {size}, {step}"
        )
    n = (self.shape[at] - size) // step + 1
    places = (arange(n).unsqueeze(1) * step + arange(size)).reshape(-1)

    def windows(x: Tensor) -> Tensor:
        wide = x.index_select(at, places)
        return wide.reshape((*x.shape[:at], n, size, *x.shape[at + 1 :])).movedim(at + 1, -1)

    return custom_view(self, Custom(windows, lambda s: (*s[:at], s[at] * step, *s[at + 1 :], s[at])))


@method
def __iter__(self: Tensor) -> Iterator[Tensor]:
    if not self.handle.spec.shape:
        raise ArgumentTypeError("cannot iterate over a 0-d tensor")
    return (one_of_several([self[i]], "unbind")[0] for i in range(self.handle.spec.shape[0]))
