"""Elements moved, repeated, cut apart or put side by side; and the parts of a matrix."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions import FUNCTIONS, alias, as_tensor, axis_spelling, both, function, method
from gt.client.functions.create import arange, shape_of
from gt.client.functions.reshape import cat, permute, reshape, unsqueeze
from gt.client.views import one_of_several, own
from gt.errors import ArgumentError, ArgumentIndexError
from gt.ops.rules import axes_of, axis_of
from gt.ops.table import TABLE


def _given(args: tuple) -> tuple:
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else args


@both
def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Some axes, or all, as one."""
    if not x.ndim:
        return reshape(x, 1)
    i, j = axis_of(start_dim, x.ndim), axis_of(end_dim, x.ndim)
    if i > j:
        raise ArgumentError(f"cannot flatten {x.shape} from axis {i} to axis {j}")
    n = 1
    for d in x.shape[i : j + 1]:
        n *= d
    return reshape(x, (*x.shape[:i], n, *x.shape[j + 1 :]))


@both
def ravel(x: Tensor) -> Tensor:
    return reshape(x, -1)


@both
def unflatten(x: Tensor, dim: int, sizes: Any) -> Tensor:
    """One axis as several; one size may be -1."""
    at = axis_of(dim, x.ndim)
    sizes = list(sizes)
    known = 1
    for d in sizes:
        known *= d if d != -1 else 1
    sizes = [x.shape[at] // known if d == -1 else d for d in sizes]
    return reshape(x, (*x.shape[:at], *sizes, *x.shape[at + 1 :]))


@both
def split(x: Tensor, split_size: Any, axis: Any = None, *, dim: Any = None) -> tuple[Tensor, ...]:
    """Pieces of one size along an axis (0), the last perhaps smaller, or of the sizes listed."""
    axis = axis_spelling(axis, dim)
    at = axis_of(0 if axis is None else axis, x.ndim)
    n = x.shape[at]
    if isinstance(split_size, int):
        if split_size < 0 or split_size == 0 and n:
            raise ArgumentError(f"split wants pieces of a size above 0, not {split_size}")
        sizes = [split_size] * (n // split_size) + ([n % split_size] if n % split_size else []) if n else [0]
    else:
        sizes = [int(s) for s in split_size]
        if sum(sizes) != n:
            raise ArgumentError(f"split wants sizes that sum to {n}, axis {at} of {x.shape}, not {sizes}")
    found, start = [], 0
    for size in sizes:
        found.append(x.narrow(at, start, size))
        start += size
    return one_of_several(found, "split")


@both
def chunk(x: Tensor, chunks: int, axis: Any = None, *, dim: Any = None) -> tuple[Tensor, ...]:
    """At most so many pieces of one size along an axis (0), the last perhaps smaller."""
    axis = axis_spelling(axis, dim)
    at = axis_of(0 if axis is None else axis, x.ndim)
    if chunks < 1:
        raise ArgumentError(f"chunk wants at least one piece, not {chunks}")
    return split(x, max(-(-x.shape[at] // chunks), 1), at)


@both
def tensor_split(x: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    """So many pieces, the first ones larger by one where it does not come out, or cut at these places."""
    at = axis_of(dim, x.ndim)
    n = x.shape[at]
    if isinstance(indices_or_sections, Tensor):
        indices_or_sections = indices_or_sections.tolist()
    if isinstance(indices_or_sections, int):
        k = indices_or_sections
        bounds = [i * (n // k) + min(i, n % k) for i in range(k + 1)]
        return tuple(x.narrow(at, a, b - a) for a, b in zip(bounds, bounds[1:]))
    bounds = [0, *[min(max(i + n if i < 0 else i, 0), n) for i in indices_or_sections], n]
    return tuple(x.narrow(at, a, max(b - a, 0)) for a, b in zip(bounds, bounds[1:]))


@both
def unbind(x: Tensor, axis: Any = None, *, dim: Any = None) -> tuple[Tensor, ...]:
    """The slices along an axis (0), without it."""
    axis = axis_spelling(axis, dim)
    at = axis_of(0 if axis is None else axis, x.ndim)
    return one_of_several([select(x, at, i) for i in range(x.shape[at])], "unbind")


@both
def select(x: Tensor, dim: int, index: int) -> Tensor:
    """One slice along an axis, without it."""
    return x[(slice(None),) * axis_of(dim, x.ndim) + (index,)]


@both
def movedim(x: Tensor, source: Any, destination: Any) -> Tensor:
    """Some axes elsewhere, the others in the order they had."""
    several = [s if isinstance(s, (tuple, list)) else (s,) for s in (source, destination)]
    old, new = ([axis_of(a, x.ndim) for a in s] for s in several)
    if len(old) != len(new) or len(set(old)) != len(old) or len(set(new)) != len(new):
        raise ArgumentError(f"movedim wants as many different axes as places for them, not {source} and {destination}")
    rest = iter([i for i in range(x.ndim) if i not in old])
    where = dict(zip(new, old))
    return permute(x, tuple(where[i] if i in where else next(rest) for i in range(x.ndim)))


alias("moveaxis", movedim)


@both
def swapaxes(x: Tensor, axis0: int, axis1: int) -> Tensor:
    return x.transpose(axis0, axis1)


alias("swapdims", swapaxes)


@both
def flip(x: Tensor, *axes: Any, dims: Any = None) -> Tensor:
    """These axes back to front."""
    given = _given(axes) if dims is None else _given((dims,))
    axes = axes_of(given, x.ndim) if given else tuple(range(x.ndim)) if dims is None and not axes else ()
    return apply(TABLE["flip"], (x,), (axes,)) if x.ndim else x.clone()


@both
def fliplr(x: Tensor) -> Tensor:
    return flip(x, 1)


@both
def flipud(x: Tensor) -> Tensor:
    if not x.ndim:
        raise ArgumentError("flipud wants at least one axis, not a tensor of none")
    return flip(x, 0)


@both
def rot90(x: Tensor, k: int = 1, dims: Any = (0, 1)) -> Tensor:
    if len(dims) != 2 or len({axis_of(d, x.ndim) for d in dims}) != 2:
        raise ArgumentError(f"rot90 wants two different axes, not {tuple(dims)}")
    for _ in range(k % 4):
        x = flip(x.transpose(*dims), dims[0])
    return x if k % 4 else x.clone()


@both
def roll(x: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    """Elements moved along axes, what leaves at one end coming in at the other; without axes, all as one row."""
    if dims is None:
        return reshape(roll(reshape(x, -1), shifts, 0), x.shape)
    shifts, dims = (v if isinstance(v, (tuple, list)) else (v,) for v in (shifts, dims))
    if not x.ndim:
        raise ArgumentIndexError(f"roll along {dims} of a tensor without axes")
    if len(shifts) != len(dims):
        raise ArgumentError(f"roll wants a shift for each axis, not {shifts} for {dims}")
    return apply(TABLE["roll"], (x, *map(int, shifts)), (tuple(axis_of(d, x.ndim) for d in dims),))


@both
def broadcast_to(x: Tensor, *shape: Any) -> Tensor:
    return x.expand(*shape)


@function
def broadcast_tensors(*tensors: Tensor) -> tuple[Tensor, ...]:
    from gt.ops.rules import broadcast

    shape = broadcast(*[t.shape for t in tensors])
    return tuple(t.expand(shape) for t in tensors)


@both
def tile(x: Tensor, *dims: Any) -> Tensor:
    """The whole so many times along each axis."""
    times = shape_of(dims)
    times = (1,) * (x.ndim - len(times)) + times
    shape = (1,) * (len(times) - x.ndim) + x.shape
    wide = reshape(x, tuple(d for pair in zip((1,) * len(shape), shape) for d in pair))
    wide = wide.expand(tuple(d for pair in zip(times, shape) for d in pair))
    return own(reshape(wide, tuple(n * d for n, d in zip(times, shape))), x)


@method
def repeat(self: Tensor, *sizes: Any) -> Tensor:
    """The whole so many times along each axis, as PyTorch has it."""
    if len(_given(sizes)) < self.ndim:
        raise ArgumentError(f"repeat of {self.shape} wants a number for each axis, not {_given(sizes)}")
    return tile(self, *sizes)


@both
def repeat_interleave(x: Tensor, repeats: Any, dim: Any = None, *, output_size: Any = None) -> Tensor:
    """Each element, or slice along an axis, so many times. Repeats that are a tensor are read: they decide the shape."""
    if dim is None:
        x, dim = reshape(x, -1), 0
    at = axis_of(dim, x.ndim)
    if isinstance(repeats, Tensor) and repeats.numel() == 1:
        repeats = int(repeats.item())
    if isinstance(repeats, int):
        wide = unsqueeze(x, at + 1).expand((*x.shape[: at + 1], repeats, *x.shape[at + 1 :]))
        return own(reshape(wide, (*x.shape[:at], x.shape[at] * repeats, *x.shape[at + 1 :])), x)
    counts = np.asarray(repeats.numpy() if isinstance(repeats, Tensor) else repeats)
    return x.index_select(at, as_tensor(np.repeat(np.arange(x.shape[at]), counts)))


_FOLDS = {
    "reflect": lambda i, n: (n - 1) - (i.abs() - (n - 1)).abs(),
    "replicate": lambda i, n: i.clamp(0, n - 1),
    "circular": lambda i, n: i.remainder(n),
}


def _folded(x: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    """One axis widened by elements of its own, after negative widths have cropped it."""
    if mode == "circular" and min(before, after) < 0:
        start, end = max(-before, 0), x.shape[axis] - max(-after, 0)
        x, before, after = x.narrow(axis, start, end - start), max(before, 0), max(after, 0)
    n = x.shape[axis]
    most = {"reflect": n - 1, "circular": n}.get(mode)
    if most is not None and max(before, after) > most:
        raise ArgumentError(f"{mode} padding of an axis of {n} is at most {most}, not {(before, after)}")
    return x.index_select(axis, _FOLDS[mode](arange(-before, n + after), n))


@function
def pad(input: Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> Tensor:
    """More at the ends of the last axes: (before, after) of the last, then of the one before it, ... Negative sizes crop."""
    pad = tuple(int(p) for p in pad)
    if len(pad) % 2 or len(pad) > 2 * input.ndim:
        raise ArgumentError(f"pad wants (before, after) for the last axes of {input.shape}, not {pad}")
    pairs = [(0, 0)] * (input.ndim - len(pad) // 2) + [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
    if mode != "constant":
        if mode not in _FOLDS:
            raise ArgumentError(f"no padding {mode!r}: known are constant, {', '.join(_FOLDS)}")
        for axis, (low, high) in enumerate(pairs):
            input = _folded(input, axis, low, high, mode) if low or high else input
        return input
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
def meshgrid(*tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Coordinates of a grid whose axes are these."""
    axes = [t if t.ndim else t.reshape(1) for t in _given(tensors)]
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


@both
def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle, zeros above; `diagonal` moves its edge up."""
    return apply(TABLE["tril"], (x, int(diagonal)))


@both
def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle, zeros below; `diagonal` moves its edge up."""
    return apply(TABLE["triu"], (x, int(diagonal)))


@both
def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1, *, axis1: Any = None, axis2: Any = None) -> Tensor:
    """The diagonal of two axes, as the last axis."""
    dim1, dim2 = dim1 if axis1 is None else axis1, dim2 if axis2 is None else axis2
    return apply(TABLE["diagonal"], (x,), (int(offset), (axis_of(dim1, x.ndim), axis_of(dim2, x.ndim))))


@both
def diag_embed(x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Matrices with the last axis as their diagonal."""
    n = x.shape[-1] + abs(offset)
    axes = (axis_of(dim1, x.ndim + 1), axis_of(dim2, x.ndim + 1))
    rest = iter(x.shape[:-1])
    shape = tuple(n if i in axes else next(rest) for i in range(x.ndim + 1))
    return apply(TABLE["diagonal_grad"], (x,), (shape, int(offset), axes))


@both
def diag(x: Tensor, diagonal: int = 0) -> Tensor:
    """The diagonal of a matrix, or the matrix of a diagonal."""
    if x.ndim == 1:
        return diag_embed(x, diagonal)
    if x.ndim != 2:
        raise ArgumentError(f"diag wants a vector or a matrix, not {x.shape}")
    return apply(TABLE["diagonal"], (x,), (int(diagonal), (0, 1))).clone()


@both
def trace(x: Tensor) -> Tensor:
    if x.ndim != 2:
        raise ArgumentError(f"trace wants a matrix, not {x.shape}")
    return diag(x).sum()


def _at_least(x: Any, n: int) -> Tensor:
    """With at least `n` axes, placed as NumPy does."""
    x = as_tensor(x)
    if x.ndim == 0:
        return reshape(x, (1,) * n)
    if x.ndim == 1 and n > 1:
        x = unsqueeze(x, 0)
    return unsqueeze(x, 2) if x.ndim == 2 and n == 3 else x


def _each_at_least(n: int, *tensors: Any) -> Any:
    """One tensor, or all of several."""
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
        raise ArgumentError("hstack wants at least one tensor")
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
