"""The same elements in another shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gt.client.apply import apply
from gt.client.autograd import Port, Tensor
from gt.client.functions import as_tensor, axis_spelling, both, function, method
from gt.client.strides import is_contiguous, settle, strides
from gt.client.views import detached, one_of_several
from gt.errors import ArgumentError, ArgumentTypeError
from gt.ops.rules import axis_of
from gt.ops.table import TABLE
from gt.spec import DType, Spec, dtype_of


@method
def size(self: Tensor, axis: int | None = None, *, dim: int | None = None) -> Any:
    axis = axis_spelling(axis, dim)
    return self.handle.spec.size if axis is None else self.handle.spec.shape[axis_of(axis, self.handle.spec.ndim)]


def _property(name: str, read: Any) -> None:
    setattr(Tensor, name, property(read))


_property("shape", lambda t: t.handle.spec.size)
_property("dtype", lambda t: t.handle.spec.dtype)
_property("ndim", lambda t: len(t.handle.spec.shape))
_property("is_leaf", lambda t: t.node is None)
_property("grad_fn", lambda t: t.node.node if isinstance(t.node, Port) else t.node)
_property("T", lambda t: permute(t, tuple(range(t.ndim))[::-1]))
_property("mT", lambda t: transpose(t, -2, -1))
_property("nbytes", lambda t: t.handle.spec.nbytes)
_property("itemsize", lambda t: t.handle.spec.dtype.size)


@method
def dim(self: Tensor) -> int:
    return self.handle.spec.ndim


@both
def numel(self: Tensor) -> int:
    return self.handle.spec.numel


@method
def is_floating_point(self: Tensor) -> bool:
    return self.handle.spec.dtype.rank == 2


def _given(args: tuple) -> tuple:
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else args


def _without_unknown(want: tuple, spec: Spec) -> tuple:
    """A shape with the size that was left open, -1, filled in."""
    rest = 1
    for d in want:
        rest *= d if d != -1 else 1
    if want.count(-1) > 1 or rest == 0 or spec.numel % rest:
        raise ArgumentError(f"cannot reshape {spec.shape} to {want}: {spec.numel} elements do not divide so")
    return tuple(spec.numel // rest if d == -1 else d for d in want)


@both
def reshape(self: Tensor, *shape: Any) -> Tensor:
    """These elements, row by row, in another shape; one size may be -1."""
    want = tuple(d.__index__() for d in _given(shape))
    spec = self.handle.spec
    if -1 in want:
        want = _without_unknown(want, spec)
    if want == spec.shape:
        return self
    found = apply(TABLE["reshape"], (self,), (want,))
    return found if self.base is None else settle(found)


def _is_dtype(value: Any) -> bool:
    return isinstance(value, (DType, str)) or type(value).__name__ == "dtype"


def _bits_as(x: Tensor, want: DType) -> Tensor:
    have = x.handle.spec.dtype
    if have is want:
        return x
    if have.size != want.size and x.ndim and strides(x)[-1] != 1:
        raise RuntimeError(f"view({want}) wants elements side by side along the last axis, not {strides(x)[-1]} apart")
    return apply(TABLE["bitcast"], (x,), (have.code, want.code))


@method
def view(self: Tensor, *shape: Any, dtype: Any = None) -> Tensor:
    """These elements in another shape, or their bits as another dtype; what is written into one tensor is in the other."""
    if dtype is not None or len(shape) == 1 and not isinstance(shape[0], (tuple, list, int)) and _is_dtype(shape[0]):
        return _bits_as(self, dtype_of(shape[0] if dtype is None else dtype))
    want = _given(shape)
    if -1 in want:
        want = _without_unknown(want, self.handle.spec)
    return self if want == self.handle.spec.shape else apply(TABLE["reshape"], (self,), (want,))


@both
def permute(self: Tensor, *axes: Any) -> Tensor:
    """The axes in another order."""
    order = tuple(axis_of(a, self.handle.spec.ndim) for a in _given(axes))
    return self if order == tuple(range(self.handle.spec.ndim)) else apply(TABLE["permute"], (self,), (order,))


@both
def transpose(self: Tensor, *axes: Any) -> Tensor:
    """Two axes exchanged; without axes, all of them reversed; with all of them, their order, as NumPy has it."""
    n = self.handle.spec.ndim
    axes = _given(axes)
    if not axes:
        return permute(self, tuple(range(n))[::-1])
    if len(axes) != 2:
        return permute(self, axes)
    order = list(range(n))
    i, j = (axis_of(a, n) for a in axes)
    order[i], order[j] = order[j], order[i]
    return permute(self, order)


@both
def t(self: Tensor) -> Tensor:
    """A matrix transposed."""
    if self.handle.spec.ndim > 2:
        raise ArgumentError(f"t() is for at most 2 dimensions, not {self.handle.spec.shape}: use transpose or mT")
    return permute(self, tuple(range(self.handle.spec.ndim))[::-1])


@both
def squeeze(self: Tensor, axis: Any = None, *, dim: Any = None) -> Tensor:
    """Without its axes of size 1, or without those named."""
    axis = axis_spelling(axis, dim)
    shape = self.handle.spec.shape
    named = range(len(shape)) if axis is None else _given((axis,))
    drop = {axis_of(a, len(shape)) for a in named}
    return reshape(self, tuple(d for i, d in enumerate(shape) if not (i in drop and d == 1)))


@both
def unsqueeze(self: Tensor, axis: Any = None, *, dim: Any = None) -> Tensor:
    """With an axis of size 1 more."""
    at = axis_of(axis_spelling(axis, dim), self.handle.spec.ndim + 1)
    shape = self.handle.spec.shape
    return reshape(self, (*shape[:at], 1, *shape[at:]))


@method
def expand(self: Tensor, *shape: Any) -> Tensor:
    """Axes of size 1 repeated, without a copy; -1 leaves a size as it is."""
    want, have = _given(shape), self.handle.spec.shape
    lead = len(want) - len(have)
    want = tuple(have[i - lead] if d == -1 and i >= lead else d for i, d in enumerate(want))
    return self if want == have else apply(TABLE["expand"], (self,), (want,))


@method
def expand_as(self: Tensor, other: Tensor) -> Tensor:
    return expand(self, other.handle.spec.shape)


@function
def cat(tensors: Any, axis: Any = None, *, dim: Any = None) -> Tensor:
    """Tensors one behind another along an axis (0)."""
    parts = tuple(as_tensor(x) for x in tensors)
    if not parts:
        raise ArgumentError("cat wants at least one tensor")
    axis = axis_spelling(axis, dim)
    return apply(TABLE["cat"], parts, (axis_of(0 if axis is None else axis, parts[0].handle.spec.ndim),))


@function
def stack(tensors: Any, axis: Any = None, *, dim: Any = None) -> Tensor:
    """Tensors of one shape side by side along an axis of their own (0)."""
    parts = [as_tensor(x) for x in tensors]
    axis = axis_spelling(axis, dim)
    axis = 0 if axis is None else axis
    if len({p.handle.spec.shape for p in parts}) > 1:
        raise ArgumentError(f"cannot stack {', '.join(str(p.handle.spec.shape) for p in parts)}: want one shape")
    return cat([unsqueeze(p, axis) for p in parts], axis_of(axis, parts[0].handle.spec.ndim + 1))


@method
def detach(self: Tensor) -> Tensor:
    """The same value, off the tape. What is written into one tensor is in the other."""
    return detached(self)


@both
def clone(self: Tensor) -> Tensor:
    """A variable of its own with the same value. Values never change, so a worker copies nothing for it."""
    return apply(TABLE["clone"], (self,))


@method
def contiguous(self: Tensor, memory_format: Any = None) -> Tensor:
    """This tensor, or a copy of it where it is a view whose elements do not lie row by row."""
    return self if self.base is None or is_contiguous(self) else clone(self)


@method
def requires_grad_(self: Tensor, wanted: bool = True) -> Tensor:
    if wanted and self.handle.spec.dtype.rank < 2:
        raise ArgumentTypeError(f"only floating-point and complex tensors have gradients, not {self.handle.spec.dtype.name}")
    self.requires_grad = wanted
    return self


@method
def __len__(self: Tensor) -> int:
    if not self.handle.spec.shape:
        raise ArgumentTypeError("a 0-d tensor has no length")
    return self.handle.spec.shape[0]


@method
def __iter__(self: Tensor) -> Iterator[Tensor]:
    if not self.handle.spec.shape:
        raise ArgumentTypeError("cannot iterate over a 0-d tensor")
    return (one_of_several([self[i]], "unbind")[0] for i in range(self.handle.spec.shape[0]))
