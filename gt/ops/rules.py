"""Shape, dtype and sharding rules that rows share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.errors import ArgumentError, ArgumentIndexError, ArgumentTypeError
from gt.ops.table import Kind, Operand, Rule
from gt.spec import REPLICATE, DType, Partial, Placement, Shape, Shard, Spec, bool_, float32, int64, promote_types


def broadcast(*shapes: Shape) -> Shape:
    """The broadcast shape; raises ValueError with the shapes if they do not fit."""
    first = shapes[0]
    if all(s == first for s in shapes):
        return first
    n = max(map(len, shapes))
    out = []
    for i in range(-n, 0):
        d = 1
        for s in shapes:
            e = s[i] if -i <= len(s) else 1
            if e != 1:
                if d not in (1, e):
                    raise ArgumentError(
                        f"cannot broadcast {' with '.join(map(str, shapes))}: sizes {d} and {e} at axis {n + i}"
                    )
                d = e
        out.append(d)
    return tuple(out)


def promote(*operands: Operand) -> DType:
    """PyTorch's promotion: tensors with axes first, then 0-d tensors, then numbers, each only by a higher category."""
    result: DType | None = None
    for group in (
        [s.dtype for s in operands if isinstance(s, Spec) and s.shape],
        [s.dtype for s in operands if isinstance(s, Spec) and not s.shape],
        [_number(s) for s in operands if not isinstance(s, Spec)],
    ):
        if not group:
            continue
        best = group[0]
        for d in group[1:]:
            best = promote_types(best, d)
        if result is None or best.rank > result.rank:
            result = result.to_complex() if result is not None and (result.rank, best.rank) == (2, 3) else best
    assert result is not None
    return result


def _number(s: type) -> DType:
    return bool_ if s is bool else int64 if s is int else float32


def shapes_of(operands: tuple[Operand, ...]) -> list[Shape]:
    return [s.shape for s in operands if isinstance(s, Spec)]


def same(a: Spec, **_: object) -> Spec:
    return a


def pointwise(*operands: Operand, **_: object) -> Spec:
    """Broadcast and promote."""
    return Spec(broadcast(*shapes_of(operands)), promote(*operands))


def pointwise_float(*operands: Operand, **_: object) -> Spec:
    """Broadcast and promote; integers become float32."""
    dtype = promote(*operands)
    return Spec(broadcast(*shapes_of(operands)), dtype if dtype.rank >= 2 else float32)


def compare(*operands: Operand, **_: object) -> Spec:
    return Spec(broadcast(*shapes_of(operands)), bool_)


def real_part(a: Spec, **_: object) -> Spec:
    """The real dtype of a complex one."""
    return Spec(a.shape, a.dtype.to_real())


def floats_only(name: str) -> Callable[..., Spec]:
    def rule(a: Spec, **_: object) -> Spec:
        if a.dtype.rank != 2:
            raise TypeError(f"{name}: expected a floating-point tensor, got {a.dtype.name}")
        return a

    return rule


def axis_of(axis: int, ndim: int) -> int:
    """A valid axis as a non-negative number."""
    if type(axis) is int and 0 <= axis < ndim:
        return axis
    if not isinstance(axis, int) or isinstance(axis, bool):
        if hasattr(axis, "__index__"):
            axis = axis.__index__()
        else:
            raise ArgumentTypeError(f"an axis: expected an integer, got {axis!r}")
    n = max(ndim, 1)
    if not -n <= axis < n:
        raise ArgumentIndexError(f"no axis {axis} in a tensor of {ndim} dimensions: expected {-n} to {n - 1}")
    return axis % n


def axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    """None, an axis or several, as sorted non-negative numbers."""
    if axis is None:
        return tuple(range(ndim))
    if isinstance(axis, (tuple, list)):
        axes = tuple(sorted(axis_of(a, ndim) for a in axis))
        if len(set(axes)) != len(axes):
            raise ArgumentError(f"expected different axes, got {tuple(axis)}")
        return axes if axes or ndim == 0 else tuple(range(ndim))
    return (axis_of(axis, ndim),)


def without(shape: Shape, axes: tuple[int, ...], keepdims: bool) -> Shape:
    """The shape after reducing these axes."""
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def gradient_of(name: str, forward: Callable[..., Spec]) -> Callable[..., Spec]:
    """The shape rule of a gradient for a tensor of `shape`, where the gradient has to have the spec of the result of `forward`,
    the shape rule of the op."""

    def rule(g: Spec, *rest: Operand, shape: Shape, **settings: Any) -> Spec:
        made = Spec(shape, g.dtype)
        if (want := forward(made, *rest, **settings)) != g:
            raise ArgumentError(f"{name} of {made.shape}: expected a gradient of {want.shape}, got {g.shape}")
        return made

    return rule


def reduced(a: Spec, *, axis: tuple[int, ...], keepdims: bool, **_: object) -> Spec:
    return Spec(without(a.shape, axis, keepdims), a.dtype)


Placements = tuple[Placement, ...]


def _all(kind: Kind, ins: list[Placement], out: Placement) -> Rule:
    return tuple(ins[i] for i in range(len(kind.ins))), (out,) * len(kind.outs)


def by_axis(kind: Kind) -> list[Rule]:
    """Pointwise: any axis of the output may be sharded; inputs that are broadcast along it are replicated."""
    out = kind.outs[0].shape
    rules = []
    for axis in range(len(out)):
        ins: list[Placement] = []
        for s in kind.ins:
            at = axis - (len(out) - len(s.shape)) if isinstance(s, Spec) else -1
            ins.append(Shard(at) if at >= 0 and isinstance(s, Spec) and s.shape[at] == out[axis] else REPLICATE)
        if any(isinstance(p, Shard) for p in ins):
            rules.append(_all(kind, ins, Shard(axis)))
    return rules


def linear(kind: Kind) -> list[Rule]:
    """Pointwise, and partial sums pass through: all inputs are partial, or the only one is."""
    rules = by_axis(kind)
    if all(isinstance(s, Spec) for s in kind.ins):
        rules.append(_all(kind, [Partial()] * len(kind.ins), Partial()))
    return rules


def bilinear(kind: Kind) -> list[Rule]:
    """Pointwise, and one factor may be a partial sum if the others are replicated."""
    rules = by_axis(kind)
    for i, s in enumerate(kind.ins):
        if isinstance(s, Spec):
            rules.append(_all(kind, [Partial() if j == i else REPLICATE for j in range(len(kind.ins))], Partial()))
    return rules
