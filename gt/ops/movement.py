"""Ops that move elements without changing them."""

from __future__ import annotations

from gt.ops.rules import axis_of, broadcast, promote
from gt.ops.table import Kind, Rule, op
from gt.spec import Partial, Placement, Shard, Spec, float32


def _reshape(a: Spec, *, shape) -> Spec:
    out = Spec(shape, a.dtype)
    if out.numel != a.numel:
        raise ValueError(f"cannot reshape {a.shape} to {shape}: {a.numel} elements into {out.numel}")
    return out


def _reshape_rules(kind: Kind) -> list[Rule]:
    """Axes before the first that differs keep their place, and the leading axis of a split or merged group may be cut."""
    old, new = kind.ins[0].shape, kind.outs[0].shape
    rules: list[Rule] = [((Partial(),), (Partial(),))]
    for i, (d, e) in enumerate(zip(old, new)):
        if d != e:
            break
        rules.append(((Shard(i),), (Shard(i),)))
    return rules


def _permute(a: Spec, *, axes) -> Spec:
    if sorted(axes) != list(range(len(a.shape))):
        raise ValueError(f"cannot permute {a.shape} by {axes}: want each of {tuple(range(len(a.shape)))} once")
    return Spec(tuple(a.shape[i] for i in axes), a.dtype)


def _inverse(axes):
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


def _permute_rules(kind: Kind) -> list[Rule]:
    axes = kind.settings["axes"]
    return [((Shard(a),), (Shard(i),)) for i, a in enumerate(axes)] + [((Partial(),), (Partial(),))]


def _expand(a: Spec, *, shape) -> Spec:
    if len(shape) < len(a.shape) or broadcast(a.shape, shape) != shape:
        raise ValueError(f"cannot expand {a.shape} to {shape}: only axes of size 1 grow")
    return Spec(shape, a.dtype)


def _expand_rules(kind: Kind) -> list[Rule]:
    old, new = kind.ins[0].shape, kind.outs[0].shape
    lead = len(new) - len(old)
    rules: list[Rule] = [((Partial(),), (Partial(),))]
    for i, d in enumerate(old):
        if d == new[lead + i]:
            rules.append(((Shard(i),), (Shard(lead + i),)))
    return rules


def _cat(*parts: Spec, axis: int) -> Spec:
    first = parts[0].shape
    axis_of(axis, len(first))
    for p in parts[1:]:
        if len(p.shape) != len(first) or any(d != e for i, (d, e) in enumerate(zip(first, p.shape)) if i != axis):
            raise ValueError(f"cannot cat {', '.join(str(p.shape) for p in parts)} along axis {axis}: other axes differ")
    total = sum(p.shape[axis] for p in parts)
    return Spec((*first[:axis], total, *first[axis + 1 :]), promote(*parts))


def _cat_grad(gs, ys, parts, axis):
    grads, at = [], 0
    for p in parts:
        n = p.shape[axis]
        grads.append(gs[0].narrow(axis, at, n))
        at += n
    return grads


def _cat_rules(kind: Kind) -> list[Rule]:
    n = len(kind.ins)
    rules: list[Rule] = [((Partial(),) * n, (Partial(),))]
    for i in range(len(kind.outs[0].shape)):
        if i != kind.settings["axis"]:
            cut: Placement = Shard(i)
            rules.append(((cut,) * n, (cut,)))
    return rules


X = Spec((2, 3), float32)

op("reshape", shape=_reshape, shard=_reshape_rules, view=True,
   tries=(((X,), {"shape": (3, 2)}), ((X,), {"shape": (2, 1, 3)})),
   kernel=lambda xp, a, *, shape: xp.reshape(a, shape),
   grad=(lambda g, sa: g.reshape(sa.shape),))  # fmt: skip
op("permute", shape=_permute, shard=_permute_rules, view=True,
   tries=(((Spec((2, 3, 4), float32),), {"axes": (2, 0, 1)}),),
   kernel=lambda xp, a, *, axes: xp.permute_dims(a, axes),
   grad=(lambda g, axes: g.permute(_inverse(axes)),))  # fmt: skip
op("expand", shape=_expand, shard=_expand_rules, view=True,
   tries=(((Spec((3, 1), float32),), {"shape": (2, 3, 4)}),),
   kernel=lambda xp, a, *, shape: xp.broadcast_to(a, shape),
   grad=(lambda g, sa: g.sum_to(sa.shape),))  # fmt: skip
op("cat", shape=_cat, shard=_cat_rules, grad=_cat_grad,
   tries=(((X, Spec((2, 1), float32)), {"axis": 1}),),
   kernel=lambda xp, *parts, axis: xp.concat(parts, axis=axis))  # fmt: skip
