"""`x[...]` and `x[...] = v`. Ints, slices, `...` and None become one `slice` op and a reshape; arrays of indices are applied
after them, as in PyTorch, and boolean masks are read first, since they determine the number of elements."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from gt.client.apply import apply, as_operand
from gt.client.autograd import Tensor
from gt.client.functions.create import as_tensor
from gt.client.functions.operators import copy_, fill_
from gt.client.functions.registry import both, method
from gt.client.views import raw_handle, whole
from gt.client.writes import assign, check_overlap, fill_at, repeats
from gt.errors import ArgumentError, ArgumentIndexError, ArgumentTypeError
from gt.ops.rules import axis_of, broadcast
from gt.ops.table import TABLE
from gt.spec import bool_, int64, uint8

PLACES = (int, tuple)  # types of an index that a copy at the client may answer
PLAIN = frozenset((int, type(None), type(Ellipsis)))
REMEMBERED = 1 << 12  # parsed indices
PICTURES: dict[tuple, Picture] = {}  # without their index arrays, by the shape indexed and the parts of the index


class Picture:
    """A parsed index: the slices, the shape they give (including new axes), and the index arrays applied to it."""

    __slots__ = ("starts", "take", "shape", "places", "axes", "whole")

    def __init__(self, shape: tuple[int, ...], index: Any) -> None:
        parts = list(index) if isinstance(index, tuple) else [index]
        if isinstance(index, list) and _several(index):
            parts = list(index)
        parts = [_array(p) for p in parts]
        used = sum(_axes(p) for p in parts)
        if used > len(shape):
            raise ArgumentIndexError(f"too many indices for a tensor of {len(shape)} dimensions: {used}")
        self.starts: list[int] = []
        self.take: list[tuple[int, int]] = []
        self.places: list[Tensor] = []
        self.axes: list[int] = []
        out: list[int] = []
        axis = 0
        for p in _spelled_out(parts, len(shape) - used):
            if p is None:
                out.append(1)
                continue
            if isinstance(p, Tensor) and p.dtype is bool_:
                self._mask(p, shape, axis, out)
                axis += p.ndim
                continue
            size = shape[axis]
            if isinstance(p, slice):
                start, stop, step = p.indices(size)
                n = len(range(start, stop, step))
                self._keep(start if n else 0, n, step, out)
            elif isinstance(p, Tensor):
                self._place(p.to(int64), size, out)
            else:
                self.starts.append(_position(p, size, axis, shape))
                self.take.append((-1, 1))
            axis += 1
        if len({places.shape for places in self.places}) > 1:
            self._check_places()
        self.shape = tuple(out)
        self.whole = all(t == (d, 1) for t, d in zip(self.take, shape))

    def _check_places(self) -> None:
        shapes = [places.shape for places in self.places]
        try:
            broadcast(*shapes)
        except ValueError:
            raise ArgumentIndexError(
                f"index arrays: expected shapes that broadcast, got {', '.join(map(str, shapes))}"
            ) from None

    def _keep(self, start: int, n: int, step: int, out: list[int]) -> None:
        self.starts.append(start)
        self.take.append((n, step))
        out.append(n)

    def _place(self, places: Tensor, size: int, out: list[int]) -> None:
        """An axis that an index array selects from: taken whole by the slice."""
        self.places.append(places)
        self.axes.append(len(out))
        self._keep(0, size, 1, out)

    def _mask(self, mask: Tensor, shape: tuple[int, ...], axis: int, out: list[int]) -> None:
        """The indices of the true elements of a mask, for each of its axes. A 0-d mask adds an axis of one element or none."""
        if mask.shape != shape[axis : axis + mask.ndim]:
            raise ArgumentIndexError(f"a mask of {mask.shape} does not fit {shape} at axis {axis}")
        if not mask.ndim:
            self.places.append(as_tensor(np.zeros(int(mask.item()), np.int64)))
            self.axes.append(len(out))
            out.append(1)
            return
        for places, size in zip(np.nonzero(mask.numpy()), mask.shape):
            self._place(as_tensor(places.astype(np.int64)), size, out)

    def of(self, places: list[Tensor]) -> Picture:
        """The same with other index arrays."""
        made = Picture.__new__(Picture)
        made.starts, made.take, made.shape, made.axes, made.whole = self.starts, self.take, self.shape, self.axes, self.whole
        made.places = places
        return made

    def sliced(self, x: Tensor) -> Tensor:
        picked = x if self.whole else apply(TABLE["slice"], (x, *self.starts), (tuple(self.take),))
        return picked if picked.handle.spec.shape == self.shape else picked.reshape(self.shape)


def _several(index: list) -> bool:
    """Whether a list is an index for each axis, as a tuple is, and not one array: NumPy's old rule, which PyTorch keeps."""
    parts = (slice, type(None), type(Ellipsis), Tensor, list, tuple, range, np.ndarray)
    return len(index) < 32 and any(isinstance(p, parts) for p in index)


def _array(p: Any) -> Any:
    """A part of an index, with lists and arrays as tensors and 0-d integers as ints."""
    if isinstance(p, (bool, np.bool_)):
        return as_tensor(bool(p))
    if isinstance(p, (list, range)):
        return as_tensor(np.asarray(list(p), None if len(p) else np.int64))
    if isinstance(p, tuple):
        return as_tensor(np.asarray(p))
    if isinstance(p, np.ndarray) and p.ndim:
        p = as_tensor(p)
    if isinstance(p, Tensor) and p.dtype is uint8:
        warnings.warn("an index of uint8 is a mask, as in PyTorch, which is giving these up: use bool", stacklevel=2)
        return p != 0
    if isinstance(p, Tensor) and p.dtype.rank == 2:
        raise ArgumentIndexError(f"an index: expected integers or booleans, got {p.dtype.name}")
    return p


def _axes(p: Any) -> int:
    """The number of axes that a part of an index consumes."""
    if p is None or p is Ellipsis:
        return 0
    return p.ndim if isinstance(p, Tensor) and p.dtype is bool_ else 1


def _spelled_out(parts: list, missing: int) -> list:
    """The index with `...`, or missing axes at the end, written as whole slices."""
    if sum(p is Ellipsis for p in parts) > 1:
        raise ArgumentIndexError("an index has at most one ... (Ellipsis), and several were given")
    out: list = []
    for p in parts if any(p is Ellipsis for p in parts) else (*parts, Ellipsis):
        out.extend([slice(None)] * missing if p is Ellipsis else [p])
    return out


def _position(p: Any, size: int, axis: int, shape: tuple) -> int:
    if not hasattr(p, "__index__"):
        error = ArgumentTypeError if isinstance(p, str) else ArgumentIndexError
        raise error(f"cannot index by {type(p).__name__}: expected ints, slices, arrays of ints or booleans, ... and None")
    i = p.__index__()
    if not -size <= i < size:
        raise ArgumentIndexError(f"index {i} is out of range for axis {axis} of {shape}: expected {-size} to {size - 1}")
    return i % size


def _picture(shape: tuple[int, ...], index: Any) -> Picture:
    """The parsed index, which is remembered where its parts are ints, slices, `...`, None and tensors of int64."""
    parts: list = []
    places: list[Tensor] = []
    for p in index if type(index) is tuple else (index,):
        if type(p) is Tensor and p.dtype is int64:
            places.append(p)
            parts.append(("places", *p.shape))
        elif type(p) is slice and type(p.start) in PLAIN and type(p.stop) in PLAIN and type(p.step) in PLAIN:
            parts.append((p.start, p.stop, p.step))
        elif type(p) in PLAIN:
            parts.append(p)
        else:
            return Picture(shape, index)
    key = shape, *parts
    known = PICTURES.get(key)
    if known is None:
        known = Picture(shape, index)
        if len(PICTURES) >= REMEMBERED:
            PICTURES.clear()  # at once, as other threads may add to it
        PICTURES[key] = known.of([])
        return known
    return known.of(places) if places else known


@method
def __getitem__(self: Tensor, index: Any) -> Tensor:
    if type(index) in PLACES and (copies := raw_handle(self).session.copies) is not None:
        found = copies.at(self, index)
        if found is not None:
            return found
    picture = _picture(self.handle.spec.shape, index)
    picked = picture.sliced(self)
    if not picture.places:
        return whole(self) if picked is self else picked
    return apply(TABLE["index"], (picked, *picture.places), (tuple(picture.axes),))


def _value(value: Any, like: Tensor) -> Any:
    """The value to write: a tensor of the right dtype, or a number."""
    if isinstance(value, complex) and value.imag and like.dtype.rank < 3:
        raise ArgumentError(f"cannot write {value} into a tensor of {like.dtype.name}: expected a real number")
    value = value if isinstance(value, Tensor) else as_operand(value)
    if isinstance(value, Tensor):
        return value.to(like.dtype)
    if isinstance(value, float) and like.dtype.rank < 2:
        return int(value)  # truncated, as in PyTorch
    return value


def _without_ones(value: Any, ndim: int) -> Any:
    """Remove leading axes of size 1 that the destination does not have, as PyTorch does."""
    while isinstance(value, Tensor) and value.ndim > ndim and value.shape[0] == 1:
        value = value.reshape(value.shape[1:])
    return value


def put(x: Tensor, index: Any, value: Any, accumulate: bool = False) -> Tensor:
    """A copy of `x` with `value` at `index`."""
    value = _value(value, x)
    mask = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    if isinstance(mask, Tensor) and mask.dtype is uint8 and not isinstance(value, Tensor):
        raise ArgumentError(f"{value} written by a mask: expected a mask of bool, got uint8")
    if isinstance(mask, np.ndarray) or isinstance(mask, list) and not _several(mask):
        mask = _array(mask)
    if isinstance(mask, Tensor) and mask.dtype is bool_ and mask.shape == x.shape and not accumulate:
        if not isinstance(value, Tensor) or value.ndim == 0:
            return mask.pick(value, x)  # without reading the mask
    picture = _picture(x.handle.spec.shape, index)
    if not picture.places:
        value = _without_ones(value, len(picture.shape))
        kept = tuple(n for n, _ in picture.take if n >= 0)
        if isinstance(value, Tensor):
            value = value.expand(picture.shape).reshape(kept) if picture.shape != kept else value
        return apply(TABLE["slice_put"], (x, value, *picture.starts), (tuple(picture.take),))
    picked = picture.sliced(x)
    if isinstance(value, Tensor):
        value = _without_ones(value, _ndim(picture, picked))
    elif accumulate:
        value = x.new_full((), value)
    changed = apply(TABLE["index_put"], (picked, value, *picture.places), (tuple(picture.axes), accumulate))
    if picture.whole:
        return changed.reshape(x.shape)
    kept = tuple(n for n, _ in picture.take if n >= 0)
    return apply(TABLE["slice_put"], (x, changed.reshape(kept), *picture.starts), (tuple(picture.take),))


def _ndim(picture: Picture, picked: Tensor) -> int:
    return picked.ndim - len(picture.places) + max(p.ndim for p in picture.places)


@method
def __setitem__(self: Tensor, index: Any, value: Any) -> None:
    if repeats(self):
        piece = self[index]
        if piece.base is None:
            fill_at(self, "index_put_", lambda at: (at[index], value))
            return
        check_overlap(piece)
        write = copy_ if isinstance(value, (Tensor, np.ndarray, list)) else fill_
        write(piece, value)
        return
    assign(self, put(self, index, value))


@both
def narrow(input: Tensor, dim: int, start: Any, length: int) -> Tensor:
    """`length` elements of an axis, from `start`."""
    if not input.handle.spec.ndim:
        raise ArgumentError("narrow: expected at least one axis, got a 0-d tensor")
    if isinstance(start, Tensor) and (start.ndim or start.dtype.rank != 1):
        raise ArgumentError(
            f"narrow: expected a start that is an integer or a 0-d integer tensor, got {start.dtype.name} of {start.shape}"
        )
    at = axis_of(dim, input.handle.spec.ndim)
    size = input.handle.spec.shape[at]
    start = int(start) + size if int(start) < 0 else int(start)
    if not 0 <= start <= start + length <= size:
        raise ArgumentIndexError(
            f"narrow: {length} elements from {start} are out of range for axis {at} of {input.handle.spec.shape}"
        )
    return input[(slice(None),) * at + (slice(start, start + length),)]
