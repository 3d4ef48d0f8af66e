"""Copies, flips, rolls, repeats, broadcasts and padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.create import arange, as_tensor, shape_of
from gt.client.functions.registry import FUNCTIONS, both, function, given, method
from gt.client.functions.reshape import reshape, unsqueeze
from gt.client.saved import note_saved
from gt.client.strides import is_contiguous
from gt.client.views import own
from gt.errors import ArgumentError, ArgumentIndexError
from gt.ops.rules import axes_of, axis_of, broadcast
from gt.ops.table import TABLE


@both
def clone(input: Tensor, *, memory_format: Any = None) -> Tensor:
    """A variable of its own with the same value. Values never change, so a worker copies nothing."""
    return apply(TABLE["clone"], (input,))


@method
def contiguous(self: Tensor, memory_format: Any = None) -> Tensor:
    """This tensor, or a contiguous copy if it is a view with other strides."""
    return self if self.base is None or is_contiguous(self) else clone(self)


@both
def flip(input: Tensor, *axes: Any, dims: Any = None) -> Tensor:
    """Reverse the order of elements along these axes."""
    named = given(axes) if dims is None else given((dims,))
    axes = axes_of(named, input.ndim) if named else tuple(range(input.ndim)) if dims is None and not axes else ()
    return apply(TABLE["flip"], (input,), (axes,)) if input.ndim else input.clone()


@both
def fliplr(input: Tensor) -> Tensor:
    return flip(input, 1)


@both
def flipud(input: Tensor) -> Tensor:
    if not input.ndim:
        raise ArgumentError("flipud: expected at least one axis, got a 0-d tensor")
    return flip(input, 0)


@both
def rot90(input: Tensor, k: int = 1, dims: Any = (0, 1)) -> Tensor:
    if len(dims) != 2 or len({axis_of(d, input.ndim) for d in dims}) != 2:
        raise ArgumentError(f"rot90: expected two different axes, got {tuple(dims)}")
    for _ in range(k % 4):
        input = flip(input.transpose(*dims), dims[0])
    return input if k % 4 else input.clone()


@both
def roll(input: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    """Roll elements along axes; without axes, of the flattened tensor."""
    if dims is None:
        return reshape(roll(reshape(input, -1), shifts, 0), input.shape)
    shifts = shifts if isinstance(shifts, (tuple, list)) else (shifts,)
    dims = dims if isinstance(dims, (tuple, list)) else (dims,)
    ndim = len(input.handle.spec.shape)
    if not ndim:
        raise ArgumentIndexError(f"roll: expected no axes for a 0-d tensor, got {dims}")
    if len(shifts) != len(dims):
        raise ArgumentError(f"roll: expected a shift for each axis, got {shifts} for {dims}")
    return apply(TABLE["roll"], (input, *map(int, shifts)), (tuple([axis_of(d, ndim) for d in dims]),))


@both
def broadcast_to(input: Tensor, *shape: Any, size: Any = None) -> Tensor:
    return input.expand(*shape, size=size)


@function
def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    shape = broadcast(*[t.shape for t in tensors])
    return tuple(t.expand(shape) for t in tensors)


@both
def tile(input: Tensor, *numbers: Any, dims: Any = None) -> Tensor:
    """Repeat the tensor along each axis."""
    times = shape_of(numbers) if dims is None else tuple(dims)
    times = (1,) * (input.ndim - len(times)) + times
    shape = (1,) * (len(times) - input.ndim) + input.shape
    wide = reshape(input, tuple(d for pair in zip((1,) * len(shape), shape) for d in pair))
    wide = wide.expand(tuple(d for pair in zip(times, shape) for d in pair))
    return own(reshape(wide, tuple(n * d for n, d in zip(times, shape))), input)


@method
def repeat(self: Tensor, *sizes: Any, repeats: Any = None) -> Tensor:
    """Repeat the tensor along each axis, with PyTorch's arguments."""
    sizes = sizes if repeats is None else tuple(repeats)
    if len(given(sizes)) < self.ndim:
        raise ArgumentError(f"repeat of {self.shape}: expected a number for each axis, got {given(sizes)}")
    return tile(self, *sizes)


@both
def repeat_interleave(input: Tensor, repeats: Any, dim: Any = None, *, output_size: Any = None) -> Tensor:
    """Repeat each element, or each slice along an axis. `repeats` that is a tensor is read: it determines the shape."""
    if dim is None:
        input, dim = reshape(input, -1), 0
    at = axis_of(dim, input.ndim)
    if isinstance(repeats, Tensor) and repeats.numel() == 1:
        repeats = int(repeats.item())
    if isinstance(repeats, int):
        wide = unsqueeze(input, at + 1).expand((*input.shape[: at + 1], repeats, *input.shape[at + 1 :]))
        return own(reshape(wide, (*input.shape[:at], input.shape[at] * repeats, *input.shape[at + 1 :])), input)
    counts = np.asarray(repeats.numpy() if isinstance(repeats, Tensor) else repeats)
    if counts.shape != (input.shape[at],):
        raise ArgumentError(f"repeat_interleave: expected {input.shape[at]} repeats, one a slice, got {counts.shape}")
    return input.index_select(at, as_tensor(np.repeat(np.arange(input.shape[at]), counts)))


_FOLDS = {
    "reflect": lambda i, n: (n - 1) - (i.abs() - (n - 1)).abs(),
    "replicate": lambda i, n: i.clamp(0, n - 1),
    "circular": lambda i, n: i.remainder(n),
}


def _folded(x: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    """One axis padded by its own elements, after negative widths have cropped it."""
    if mode == "circular" and min(before, after) < 0:
        start, end = max(-before, 0), x.shape[axis] - max(-after, 0)
        x, before, after = x.narrow(axis, start, end - start), max(before, 0), max(after, 0)
    n = x.shape[axis]
    most = {"reflect": n - 1, "circular": n}.get(mode)
    if most is not None and max(before, after) > most:
        raise ArgumentError(f"{mode} padding of an axis of {n}: expected at most {most}, got {(before, after)}")
    return x.index_select(axis, _FOLDS[mode](arange(-before, n + after), n))


@function
def pad(input: Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> Tensor:
    """Pad the ends of the last axes: (before, after) of the last axis, then of the one before it, ... Negative widths crop."""
    pad = tuple(int(p) for p in pad)
    if len(pad) % 2 or len(pad) > 2 * input.ndim:
        raise ArgumentError(f"pad: expected (before, after) for the last axes of {input.shape}, got {pad}")
    pairs = [(0, 0)] * (input.ndim - len(pad) // 2) + [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
    if mode != "constant":
        if mode not in _FOLDS:
            raise ArgumentError(f"no padding {mode!r}: known are constant, {', '.join(_FOLDS)}")
        found = input
        for axis, (low, high) in enumerate(pairs):
            found = _folded(found, axis, low, high, mode) if low or high else found
        return found if mode == "circular" else note_saved(found, input)
    index = tuple(slice(max(-low, 0), d - max(-high, 0)) for d, (low, high) in zip(input.shape, pairs))
    widths = tuple((max(low, 0), max(high, 0)) for low, high in pairs)
    if input.is_complex() and isinstance(value, complex):
        parts = [FUNCTIONS["pad"](p, pad, mode, v) for p, v in ((input.real, value.real), (input.imag, value.imag))]
        return FUNCTIONS["complex"](*parts)
    number = (float if input.dtype.rank >= 2 else int)(0 if value is None else value)
    return apply(TABLE["pad"], (input[index], number), (widths,))


@both
def constant_pad_nd(input: Tensor, pad: Any, value: float = 0) -> Tensor:
    return FUNCTIONS["pad"](input, pad, "constant", value)


@function
def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    return broadcast(*[(s,) if isinstance(s, int) else tuple(s) for s in shapes]) if shapes else ()
