"""Slices, read and written. The shape of a slice (`take`) is static; the start of each axis is a number, so that loops share
one kind. Where the number of elements depends on values (boolean masks), the client reads the mask and passes indices."""

from __future__ import annotations

from gt.ops.rules import broadcast
from gt.ops.table import Alias, Kind, Operand, PieceWrite, Rule, op
from gt.spec import REPLICATE, Partial, Placement, Shape, Shard, Spec, float32


def _picked(take) -> tuple[int, ...]:
    """`take` has (size, step) for each axis; the size is -1 where a single index removes the axis."""
    return tuple(size for size, _ in take if size >= 0)


def _cut(take, starts):
    """The Python index of `take` and the starts."""
    index = []
    for (size, step), start in zip(take, starts):
        if size < 0:
            index.append(start)
        else:
            stop = start + size * step
            index.append(slice(start, stop if stop >= 0 else None, step) if size else slice(0, 0))
    return tuple(index)


def _checked(shape: Shape, starts: tuple, take) -> Shape:
    """The shape of a slice; raises if no such slice is within a tensor of this shape."""
    if not len(take) == len(starts) == len(shape):
        raise ValueError(f"cannot slice {take} of {shape} at {len(starts)} starts: expected one for each axis")
    for d, (size, step) in zip(shape, take):
        if step == 0 or (max(size, 1) - 1) * abs(step) + (size != 0) > d:
            raise ValueError(f"cannot slice {size} elements at a step of {step} from an axis of {d}")
    return _picked(take)


def _limits(kind: Kind) -> tuple[tuple[int, int, int], ...]:
    """The range of the starts, by operand, in which the whole slice is within the tensor."""
    take, shape = kind.settings["take"], kind.settings.get("shape", getattr(kind.ins[0], "shape", ()))
    found = []
    for at, (d, (size, step)) in enumerate(zip(shape, take), len(kind.ins) - len(take)):
        last = (max(size, 1) - 1) * step
        if size:  # an empty slice may start anywhere
            found.append((at, max(0, -last), d - 1 - max(0, last)))
    return tuple(found)


def _reached(kind: Kind, starts: tuple) -> tuple[range, ...]:
    """The indices of the elements that a slice has, along each axis."""
    take = kind.settings["take"]
    return tuple(range(at, at + abs(size) * step, step) for at, (size, step) in zip(starts, take))


def _whole_axes(kind: Kind, shape: Shape) -> list[tuple[int, int]]:
    """Pairs of axes, in the tensor and in the slice, that are taken whole."""
    found, out = [], 0
    for i, (size, step) in enumerate(kind.settings["take"]):
        if step == 1 and size == shape[i]:
            found.append((i, out))
        out += size >= 0
    return found


def _slice_rules(kind: Kind) -> list[Rule]:
    rules: list[Rule] = [(first(kind, Partial()), (Partial(),))]
    for i, out in _whole_axes(kind, kind.ins[0].shape):
        rules.append((first(kind, Shard(i)), (Shard(out),)))
    return rules


def _slice_grad_rules(kind: Kind) -> list[Rule]:
    rules: list[Rule] = [(first(kind, Partial()), (Partial(),))]
    for i, out in _whole_axes(kind, kind.outs[0].shape):
        rules.append((first(kind, Shard(out)), (Shard(i),)))
    return rules


def _slice_put_rules(kind: Kind) -> list[Rule]:
    rest = [REPLICATE] * (len(kind.ins) - 2)
    value = kind.ins[1]
    if isinstance(value, type):
        return [((Shard(i), REPLICATE, *rest), (Shard(i),)) for i, _ in _whole_axes(kind, kind.outs[0].shape)]
    rules: list[Rule] = [((Partial(), Partial(), *rest), (Partial(),))]
    picked = len(_picked(kind.settings["take"]))
    for i, out in _whole_axes(kind, kind.outs[0].shape):
        at = out - (picked - value.ndim)
        cut: Placement = Shard(at) if at >= 0 and value.shape[at] == kind.outs[0].shape[i] else REPLICATE
        rules.append(((Shard(i), cut, *rest), (Shard(i),)))
    return rules


def _piece(kind: Kind, rule: Rule, first: int, size: int) -> dict:
    """A whole axis of a piece has the piece's length. The sliced tensor is the input, or the output of a gradient."""
    to = rule[1][0] if "shape" in kind.settings else rule[0][0]
    take = kind.settings["take"]
    return {"take": (*take[: to.axis], (size, 1), *take[to.axis + 1 :])} if isinstance(to, Shard) else {}


def first(kind: Kind, placement: Placement) -> tuple[Placement, ...]:
    return (placement, *[REPLICATE] * (len(kind.ins) - 1))


def _put(a: Spec, value: Operand, *starts, take) -> Spec:
    want = _checked(a.shape, starts, take)
    if isinstance(value, Spec) and broadcast(value.shape, want) != want:
        raise ValueError(f"cannot write {value.shape} into a slice of {want} of {a.shape}")
    return a


def _unpicked(g: Spec, *starts, shape, take) -> Spec:
    if g.shape != _checked(shape, starts, take):
        raise ValueError(f"a gradient of {g.shape} does not fit the slice {take} of {shape}")
    return Spec(shape, g.dtype)


X = Spec((4, 5), float32)
TAKE = ((-1, 1), (2, 2))
BACK = ((4, 1), (3, -2))

op("slice", complex="analytic", shape=lambda a, *starts, take: Spec(_checked(a.shape, starts, take), a.dtype),
   shard=_slice_rules, cut=_piece, view=True, limits=_limits,
   alias=Alias(lambda old, strides, *, take: tuple(s * step for s, (n, step) in zip(strides, take) if n >= 0),
               lambda base, piece, *starts, take: base.op("slice_put", piece, *starts, take=take),
               lambda first, strides, *starts, take: first + sum(s * d for s, d in zip(starts, strides))),
   tries=(((X, 2, 1), {"take": TAKE}), ((X, 0, 4), {"take": BACK})),
   kernel=lambda xp, a, *starts, take: xp.getitem(a, _cut(take, starts)),
   grad=lambda gs, ys, ins, take: [gs[0].op("slice_grad", *ins[1:], shape=ins[0].shape, take=take)])  # fmt: skip
op("slice_grad", complex="analytic", shape=_unpicked, shard=_slice_grad_rules, cut=_piece, limits=_limits,
   piece=PieceWrite(_reached, put="slice_put", join="cat", form="reshape"),
   tries=(((Spec((2,), float32), 2, 1), {"shape": (4, 5), "take": TAKE}),
          ((Spec((4, 3), float32), 0, 4), {"shape": (4, 5), "take": BACK})),
   kernel=lambda xp, g, *starts, shape, take: xp.setitem(xp.zeros(shape, dtype=g.dtype), _cut(take, starts), g),
   grad=lambda gs, ys, ins, shape, take: [gs[0].op("slice", *ins[1:], take=take)])  # fmt: skip
op("slice_put", complex="analytic", shape=_put, shard=_slice_put_rules, cut=_piece, limits=_limits,
   tries=(((X, Spec((2,), float32), 2, 1), {"take": TAKE}), ((X, Spec((4, 1), float32), 0, 4), {"take": BACK}),
          ((X, float, 0, 4), {"take": BACK})),
   kernel=lambda xp, a, value, *starts, take: xp.setitem(xp.copy(a), _cut(take, starts), value),
   grad=lambda gs, ys, ins, take: [gs[0].op("slice_put", 0.0, *ins[2:], take=take),
                                   gs[0].op("slice", *ins[2:], take=take)])  # fmt: skip
