"""Ops that move elements without changing them, or add constants."""

from __future__ import annotations

from gt.ops.rules import axis_of, gradient_of, linear, promote, same
from gt.ops.table import Alias, Kind, Rule, op
from gt.spec import REPLICATE, Partial, Placement, Shape, Shard, Spec, float32


def _reshape(a: Spec, *, shape) -> Spec:
    out = Spec(shape, a.dtype)
    if out.numel != a.numel:
        raise ValueError(f"cannot reshape {a.shape} to {shape}: {a.numel} elements into {out.numel}")
    return out


def _reshape_rules(kind: Kind) -> list[Rule]:
    """Axes before the first changed one keep their position, and the leading axis of a split or merged group may be sharded."""
    old, new = kind.ins[0].shape, kind.outs[0].shape
    rules: list[Rule] = [((Partial(),), (Partial(),))]
    for i, (d, e) in enumerate(zip(old, new)):
        if d != e:
            break
        rules.append(((Shard(i),), (Shard(i),)))
    return rules


def _permute(a: Spec, *, axes) -> Spec:
    if sorted(axes) != list(range(len(a.shape))):
        raise ValueError(f"cannot permute {a.shape} by {axes}: expected each of {tuple(range(len(a.shape)))} once")
    return Spec(tuple(a.shape[i] for i in axes), a.dtype)


def _inverse(axes):
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


def _permute_rules(kind: Kind) -> list[Rule]:
    axes = kind.settings["axes"]
    return [((Shard(a),), (Shard(i),)) for i, a in enumerate(axes)] + [((Partial(),), (Partial(),))]


def _expand(a: Spec, *, shape) -> Spec:
    kept = shape[len(shape) - len(a.shape) :]
    if len(shape) < len(a.shape) or any(d not in (1, e) for d, e in zip(a.shape, kept)):
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


def contiguous_strides(shape: Shape) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    found, step = [], 1
    for d in reversed(shape):
        found.append(step)
        step *= max(d, 1)
    return tuple(reversed(found))


def _reshape_strides(old: Shape, strides, *, shape) -> tuple[int, ...] | None:
    """As PyTorch computes them: runs of contiguous axes are split anew; None if an axis would span two runs."""
    if not old or 0 in old:
        return contiguous_strides(shape)
    found, at = [0] * len(shape), len(shape) - 1
    size, room, step = 1, 1, strides[-1]  # of the run of old axes that lie as one; of the new axes that take it; its distance
    for i in range(len(old) - 1, -1, -1):
        size *= old[i]
        if i == 0 or (old[i - 1] != 1 and strides[i - 1] != size * step):
            while at >= 0 and (room < size or shape[at] == 1):
                found[at] = room * step
                room *= shape[at]
                at -= 1
            if room != size:
                return None
            if i > 0:
                size, room, step = 1, 1, strides[i - 1]
    return tuple(found) if at < 0 else None


def _expand_strides(old: Shape, strides, *, shape) -> tuple[int, ...]:
    lead = len(shape) - len(old)
    return (0,) * lead + tuple(s if d == e else 0 for d, e, s in zip(old, shape[lead:], strides))


def _diagonal_strides(old: Shape, strides, *, offset, axes) -> tuple[int, ...]:
    return (*[s for k, s in enumerate(strides) if k not in axes], strides[axes[0]] + strides[axes[1]])


op("reshape", complex="analytic", shape=_reshape, shard=_reshape_rules, view=True,
   alias=Alias(_reshape_strides, lambda base, piece, *, shape: piece.reshape(base.shape)),
   tries=(((X,), {"shape": (3, 2)}), ((X,), {"shape": (2, 1, 3)})),
   kernel=lambda xp, a, *, shape: xp.reshape(a, shape),
   grad=(lambda g, sa: g.reshape(sa.shape),))  # fmt: skip
op("clone", complex="analytic", shape=same, shard=linear, view=True, tries=(((X,), {}),),
   kernel=lambda xp, a: a,
   grad=(lambda g: g,))  # fmt: skip
op("permute", complex="analytic", shape=_permute, shard=_permute_rules, view=True,
   alias=Alias(lambda old, strides, *, axes: tuple(strides[a] for a in axes),
               lambda base, piece, *, axes: piece.permute(_inverse(axes))),
   tries=(((Spec((2, 3, 4), float32),), {"axes": (2, 0, 1)}),), plain_name="transpose",
   kernel=lambda xp, a, *, axes: xp.permute_dims(a, axes),
   grad=(lambda g, axes: g.permute(_inverse(axes)),))  # fmt: skip
op("expand", complex="analytic", shape=_expand, shard=_expand_rules, view=True, alias=Alias(_expand_strides),
   tries=(((Spec((3, 1), float32),), {"shape": (2, 3, 4)}),),
   kernel=lambda xp, a, *, shape: xp.broadcast_to(a, shape),
   grad=(lambda g, sa: g.sum_to(sa.shape),))  # fmt: skip
op("cat", complex="analytic", shape=_cat, shard=_cat_rules, grad=_cat_grad,
   tries=(((X, Spec((2, 1), float32)), {"axis": 1}),),
   kernel=lambda xp, *parts, axis: xp.concat(parts, axis=axis))  # fmt: skip


def _moved_rules(kind: Kind) -> list[Rule]:
    """Unchanged axes may be sharded."""
    rest = [REPLICATE] * (len(kind.ins) - 1)
    axes = kind.settings["axes"]
    rules: list[Rule] = [((Shard(i), *rest), (Shard(i),)) for i in range(kind.outs[0].ndim) if i not in axes]
    return [*rules, ((Partial(), *rest), (Partial(),))]


def _moved(a: Spec, *shifts: type, axes) -> Spec:
    for axis in axes:
        axis_of(axis, a.ndim)
    return a


def _pad(a: Spec, value: type, *, widths) -> Spec:
    shape = tuple(d + low + high for d, (low, high) in zip(a.shape, widths))
    if len(widths) != a.ndim or any(w < 0 for pair in widths for w in pair):
        raise ValueError(f"cannot pad {a.shape} by {widths}: expected (before, after) for each axis, none negative")
    return Spec(shape, a.dtype)


def _inner(shape: Shape, widths) -> tuple:
    return tuple(slice(low, low + d) for d, (low, _) in zip(shape, widths))


def _pad_rules(kind: Kind) -> list[Rule]:
    return [((Shard(i), REPLICATE), (Shard(i),)) for i, w in enumerate(kind.settings["widths"]) if w == (0, 0)]


def _unpad(g, sa, widths):
    return g.op("slice", *(low for low, _ in widths), take=tuple((d, 1) for d in sa.shape))


def _triangle(a: Spec, diagonal: type) -> Spec:
    if a.ndim < 2:
        raise ValueError(f"a triangle: expected a matrix, got {a.shape}")
    return a


def _keep(xp, a, diagonal, lower):
    below = xp.arange(0, a.shape[-1]) - xp.reshape(xp.arange(0, a.shape[-2]), (-1, 1))  # how far right of the diagonal
    return xp.where(below <= diagonal if lower else below >= diagonal, a, 0 * xp.where(xp.isfinite(a), a, 0 * below))


def outer_rules(kind: Kind) -> list[Rule]:
    """Matrices are independent, and partial sums stay partial."""
    rest = [REPLICATE] * (len(kind.ins) - 1)
    rules: list[Rule] = [((Shard(i), *rest), (Shard(i),)) for i in range(kind.outs[0].ndim - 2)]
    return [*rules, ((Partial(), *rest), (Partial(),))]


def _diagonal(a: Spec, *, offset, axes) -> Spec:
    i, j = axes
    if a.ndim < 2 or i == j:
        raise ValueError(f"a diagonal: expected two different axes, got {axes} of {a.shape}")
    rows, columns = a.shape[i], a.shape[j]
    n = max(min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns), 0)
    return Spec((*[d for k, d in enumerate(a.shape) if k not in axes], n), a.dtype)


def _diagonal_rules(kind: Kind) -> list[Rule]:
    kept = [i for i in range(kind.ins[0].ndim) if i not in kind.settings["axes"]]
    return [((Shard(i),), (Shard(o),)) for o, i in enumerate(kept)] + [((Partial(),), (Partial(),))]


def _diagonal_grad_rules(kind: Kind) -> list[Rule]:
    kept = [i for i in range(kind.outs[0].ndim) if i not in kind.settings["axes"]]
    return [((Shard(o),), (Shard(i),)) for o, i in enumerate(kept)] + [((Partial(),), (Partial(),))]


def _diagonal_grad(xp, g, *, shape, offset, axes):
    i, j = axes
    order = [k for k in range(len(shape)) if k not in axes] + [i, j]
    out = xp.zeros(tuple(shape[k] for k in order), dtype=g.dtype)
    along = xp.arange(0, g.shape[-1])
    out = xp.setitem(out, (..., along + max(-offset, 0), along + max(offset, 0)), g)
    return xp.permute_dims(out, _inverse(order))


CUBE = Spec((3, 4, 5), float32)

op("flip", complex="analytic", shape=_moved, shard=_moved_rules, tries=(((CUBE,), {"axes": (0, 2)}), ((X,), {"axes": (1,)})),
   kernel=lambda xp, a, *, axes: xp.flip(a, axes),
   grad=(lambda g, axes: g.op("flip", axes=axes),))  # fmt: skip
op("roll", complex="analytic", shape=_moved, shard=_moved_rules, tries=(((CUBE, 2, -1), {"axes": (0, 2)}),),
   kernel=lambda xp, a, *shifts, axes: xp.roll(a, shifts, axes),
   grad=lambda gs, ys, ins, axes: [gs[0].op("roll", *(-s for s in ins[1:]), axes=axes)])  # fmt: skip
op("pad", complex="analytic", shape=_pad, shard=_pad_rules, tries=(((CUBE, 1.5), {"widths": ((0, 0), (1, 0), (2, 1))}),),
   kernel=lambda xp, a, value, *, widths: xp.setitem(
       xp.full(tuple(d + low + high for d, (low, high) in zip(a.shape, widths)), value, dtype=a.dtype),
       _inner(tuple(a.shape), widths), a),
   grad=(_unpad, None))  # fmt: skip
op("tril", complex="analytic", shape=_triangle, shard=outer_rules, tries=(((CUBE, 0), {}), ((CUBE, -1), {}), ((X, 1), {})),
   kernel=lambda xp, a, diagonal: _keep(xp, a, diagonal, True),
   grad=(lambda g, b: g.tril(b), None))  # fmt: skip
op("triu", complex="analytic", shape=_triangle, shard=outer_rules, tries=(((CUBE, 0), {}), ((CUBE, -1), {}), ((X, 1), {})),
   kernel=lambda xp, a, diagonal: _keep(xp, a, diagonal, False),
   grad=(lambda g, b: g.triu(b), None))  # fmt: skip
op("diagonal", complex="analytic", shape=_diagonal, shard=_diagonal_rules, view=True,
   alias=Alias(_diagonal_strides, lambda base, piece, *, offset, axes: base.diagonal_scatter(piece, offset, *axes),
               lambda first, strides, *, offset, axes: first + abs(offset) * strides[axes[offset > 0]]),
   tries=(((CUBE,), {"offset": 1, "axes": (0, 2)}), ((CUBE,), {"offset": -2, "axes": (2, 1)})),
   kernel=lambda xp, a, *, offset, axes: xp.diagonal(a, offset, *axes),
   grad=(lambda g, sa, offset, axes: g.op("diagonal_grad", shape=sa.shape, offset=offset, axes=axes),))  # fmt: skip
op("diagonal_grad", complex="analytic", shape=gradient_of("diagonal_grad", _diagonal),
   shard=_diagonal_grad_rules,
   tries=(((Spec((4, 3), float32),), {"shape": (3, 4, 5), "offset": 1, "axes": (0, 2)}),),
   kernel=_diagonal_grad,
   grad=(lambda g, offset, axes: g.op("diagonal", offset=offset, axes=axes),))  # fmt: skip


def _kept(kind: Kind) -> list[Rule]:
    """Every axis may be sharded; partial sums stay partial."""
    return [((Shard(i),), (Shard(i),)) for i in range(kind.outs[0].ndim)] + [((Partial(),), (Partial(),))]


op("redistribute", complex="analytic", shape=lambda a: a, shard=_kept, obeys_signal=True, view=True,
   tries=(((X,), {}), ((CUBE,), {})),
   kernel=lambda xp, a: a,
   grad=(lambda g: g,))  # fmt: skip
op("copy", complex="analytic", shape=lambda a: a, shard=_kept, tries=(((X,), {}), ((CUBE,), {})),
   kernel=lambda xp, a: xp.copy(a),
   grad=(lambda g: g,))  # fmt: skip
