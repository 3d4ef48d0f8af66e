"""Views with another shape."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.in_place import in_place
from gt.client.functions.registry import alias, axis_spelling, both, given, method
from gt.client.strides import settle, strides
from gt.client.views import whole
from gt.errors import ArgumentError
from gt.ops.rules import axis_of
from gt.ops.table import TABLE
from gt.spec import DType, Spec, dtype_of

_T: Any = Tensor
_T.T = property(lambda t: permute(t, tuple(range(t.ndim))[::-1]))
_T.mT = property(lambda t: transpose(t, -2, -1) if t.ndim else t)


@lru_cache(1 << 12)
def _sizes(spec: Spec, want: tuple[int, ...]) -> tuple[int, ...]:
    """The requested shape, for a tensor of this spec."""
    return _without_unknown(want, spec) if -1 in want else want


@lru_cache(1 << 12)
def _order(ndim: int, *axes: Any) -> tuple[int, ...] | None:
    """The axes counted from the first; None if their order does not change."""
    order = tuple([axis_of(a, ndim) for a in axes])
    return None if order == tuple(range(ndim)) else order


def _without_unknown(want: tuple, spec: Spec) -> tuple:
    """A shape with its open size, -1, filled in."""
    rest = 1
    for d in want:
        rest *= d if d != -1 else 1
    if want.count(-1) > 1 or rest == 0 or spec.numel % rest:
        raise ArgumentError(f"cannot reshape {spec.shape} to {want}: {spec.numel} elements do not divide so")
    return tuple(spec.numel // rest if d == -1 else d for d in want)


@both
def reshape(input: Tensor, *sizes: Any, shape: Any = None) -> Tensor:
    """The elements, row by row, in another shape; one size may be -1."""
    sizes, spec = given(sizes) if shape is None else tuple(shape), input.handle.spec
    for d in sizes:
        if type(d) is not int:  # a number in a tensor may change
            want = _sizes.__wrapped__(spec, tuple([d.__index__() for d in sizes]))
            break
    else:
        want = _sizes(spec, sizes)
    if want == spec.shape:
        return whole(input)
    found = apply(TABLE["reshape"], (input,), (want,))
    return found if input.base is None else settle(found)


def _is_dtype(value: Any) -> bool:
    return isinstance(value, (DType, str)) or type(value).__name__ == "dtype"


def _bits_as(x: Tensor, want: DType) -> Tensor:
    have = x.handle.spec.dtype
    if have is want:
        return whole(x)
    if have.size != want.size and x.ndim and strides(x)[-1] != 1:
        raise RuntimeError(f"view({want}): expected contiguous elements along the last axis, got a stride of {strides(x)[-1]}")
    return apply(TABLE["bitcast"], (x,), (have.code, want.code))


@method
def view(self: Tensor, *shape: Any, dtype: Any = None, size: Any = None) -> Tensor:
    """A view in another shape, or of the bits as another dtype; both tensors share memory."""
    if dtype is not None or len(shape) == 1 and not isinstance(shape[0], (tuple, list, int)) and _is_dtype(shape[0]):
        return _bits_as(self, dtype_of(shape[0] if dtype is None else dtype))
    want = given(shape) if size is None else tuple(size)
    if -1 in want:
        want = _without_unknown(want, self.handle.spec)
    return whole(self) if want == self.handle.spec.shape else apply(TABLE["reshape"], (self,), (want,))


@both
def permute(input: Tensor, *axes: Any, dims: Any = None) -> Tensor:
    """The axes in another order."""
    named = given(axes) if dims is None else tuple(dims)
    find = _order if set(map(type, named)) == {int} else _order.__wrapped__
    order = find(input.handle.spec.ndim, *named)
    return whole(input) if order is None else apply(TABLE["permute"], (input,), (order,))


@both
def transpose(input: Tensor, *axes: Any, dim0: int | None = None, dim1: int | None = None) -> Tensor:
    """Two axes exchanged; without axes, all reversed; with all axes, their order, as in NumPy."""
    n = input.handle.spec.ndim
    axes = given(axes) if dim1 is None else (*given(axes), dim1) if dim0 is None else (dim0, dim1)
    if not axes:
        return permute(input, tuple(range(n))[::-1])
    if len(axes) != 2:
        return permute(input, axes)
    order = list(range(n))
    i, j = (axis_of(a, n) for a in axes)
    if not n:
        return whole(input)
    order[i], order[j] = order[j], order[i]
    return permute(input, order)


@both
def t(input: Tensor) -> Tensor:
    """A matrix transposed."""
    if input.handle.spec.ndim > 2:
        raise ArgumentError(f"t(): expected at most 2 dimensions, got {input.handle.spec.shape}: use transpose or mT")
    return permute(input, tuple(range(input.handle.spec.ndim))[::-1])


@both
def squeeze(input: Tensor, axis: Any = None, *, dim: Any = None) -> Tensor:
    """Without axes of size 1, all or the named ones."""
    axis = axis_spelling(axis, dim)
    shape = input.handle.spec.shape
    named = range(len(shape)) if axis is None else given((axis,))
    drop = {axis_of(a, len(shape)) for a in named}
    return reshape(input, tuple(d for i, d in enumerate(shape) if not (i in drop and d == 1)))


@both
def unsqueeze(input: Tensor, axis: Any = None, *, dim: Any = None) -> Tensor:
    """With a new axis of size 1."""
    at = axis_of(axis_spelling(axis, dim), input.handle.spec.ndim + 1)
    shape = input.handle.spec.shape
    return reshape(input, (*shape[:at], 1, *shape[at:]))


@both
def movedim(input: Tensor, source: Any, destination: Any) -> Tensor:
    """Move some axes; the others keep their order."""
    several = [s if isinstance(s, (tuple, list)) else (s,) for s in (source, destination)]
    old, new = ([axis_of(a, input.ndim) for a in s] for s in several)
    if len(old) != len(new) or len(set(old)) != len(old) or len(set(new)) != len(new):
        raise ArgumentError(f"movedim: expected as many different axes as destinations, got {source} and {destination}")
    rest = iter([i for i in range(input.ndim) if i not in old])
    where = dict(zip(new, old))
    return permute(input, tuple(where[i] if i in where else next(rest) for i in range(input.ndim)))


alias("moveaxis", movedim)


@both
def swapaxes(input: Tensor, axis0: int, axis1: int) -> Tensor:
    return input.transpose(axis0, axis1)


@both
def swapdims(input: Tensor, dim0: int, dim1: int) -> Tensor:
    return input.transpose(dim0, dim1)


@method
def expand(self: Tensor, *shape: Any, size: Any = None) -> Tensor:
    """Broadcast axes of size 1 without a copy; -1 keeps a size."""
    want, have = given(shape) if size is None else tuple(size), self.handle.spec.shape
    lead = len(want) - len(have)
    want = tuple(have[i - lead] if d == -1 and i >= lead else d for i, d in enumerate(want))
    return whole(self) if want == have else apply(TABLE["expand"], (self,), (want,))


@method
def expand_as(self: Tensor, other: Tensor) -> Tensor:
    return expand(self, other.handle.spec.shape)


@both
def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Some axes, or all, merged into one."""
    if not input.ndim:
        return reshape(input, 1)
    i, j = axis_of(start_dim, input.ndim), axis_of(end_dim, input.ndim)
    if i == j:
        return input
    if i > j:
        raise ArgumentError(f"cannot flatten {input.shape} from axis {i} to axis {j}")
    n = 1
    for d in input.shape[i : j + 1]:
        n *= d
    return reshape(input, (*input.shape[:i], n, *input.shape[j + 1 :]))


@both
def ravel(input: Tensor) -> Tensor:
    return reshape(input, -1)


@both
def unflatten(input: Tensor, dim: int, sizes: Any) -> Tensor:
    """One axis split into several; one size may be -1."""
    at = axis_of(dim, input.ndim)
    sizes = list(sizes)
    known = 1
    for d in sizes:
        known *= d if d != -1 else 1
    sizes = [input.shape[at] // known if d == -1 else d for d in sizes]
    return reshape(input, (*input.shape[:at], *sizes, *input.shape[at + 1 :]))


for _f in (squeeze, unsqueeze, t, transpose, swapaxes):
    method(in_place(_f.__name__, _f, view=True))
method(in_place("swapdims", swapdims, view=True))
