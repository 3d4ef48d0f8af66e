"""Ops that pick elements. The picture (`take`) is static; where each axis starts is a number, so loops share one kind."""

from __future__ import annotations

from gt.ops.table import Kind, Rule, op
from gt.spec import REPLICATE, Partial, Placement, Shard, Spec, float32


def _picked(take) -> tuple[int, ...]:
    """`take` has for each axis (size, step), the size being -1 where a single index drops the axis."""
    return tuple(size for size, _ in take if size >= 0)


def _cut(take, starts):
    """The index that the picture and the starts describe."""
    index = []
    for (size, step), start in zip(take, starts):
        if size < 0:
            index.append(start)
        else:
            stop = start + size * step
            index.append(slice(start, stop if stop >= 0 else None, step) if size else slice(0, 0))
    return tuple(index)


def _slice_rules(kind: Kind) -> list[Rule]:
    """Axes taken whole may be cut."""
    rules: list[Rule] = [(kind_ins(kind, Partial()), (Partial(),))]
    out = 0
    for i, (size, step) in enumerate(kind.settings["take"]):
        if step == 1 and size == kind.ins[0].shape[i]:
            rules.append((kind_ins(kind, Shard(i)), (Shard(out),)))
        out += size >= 0
    return rules


def kind_ins(kind: Kind, first: Placement) -> tuple[Placement, ...]:
    return (first, *[REPLICATE] * (len(kind.ins) - 1))


X = Spec((4, 5), float32)
TAKE = ((-1, 1), (2, 2))

op("slice", shape=lambda a, *starts, take: Spec(_picked(take), a.dtype), shard=_slice_rules, view=True,
   tries=(((X, 2, 1), {"take": TAKE}),),
   kernel=lambda xp, a, *starts, take: xp.getitem(a, _cut(take, starts)),
   grad=lambda gs, ys, ins, take: [gs[0].slice_grad(ins[1:], ins[0].shape, take)])  # fmt: skip
op("slice_grad", shape=lambda g, *starts, shape, take: Spec(shape, g.dtype),
   tries=(((Spec((2,), float32), 2, 1), {"shape": (4, 5), "take": TAKE}),),
   kernel=lambda xp, g, *starts, shape, take: xp.setitem(xp.zeros(shape, dtype=g.dtype), _cut(take, starts), g),
   grad=lambda gs, ys, ins, shape, take: [gs[0].slice(ins[1:], take)])  # fmt: skip
