"""Ops that select elements or write them. The shape of a slice (`take`) is static; the start of each axis is a number, so that
loops share one kind. Index arrays are inputs. Where the number of elements depends on values (boolean masks), the client reads
the mask and passes indices."""

from __future__ import annotations

from gt.ops.rules import axis_of, broadcast
from gt.ops.table import Alias, Kind, Operand, Rule, Values, op
from gt.spec import REPLICATE, Partial, Placement, Shape, Shard, Spec, float32, int64


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


def _along(name: str):
    """Check indices along one axis: as many axes as the tensor, and no longer in the others."""

    def rule(a: Spec, index: Spec, *source: Operand, axis: int) -> Spec:
        axis_of(axis, a.ndim)
        _places(name, index)
        fits = index.ndim == a.ndim and all(d <= e for i, (d, e) in enumerate(zip(index.shape, a.shape)) if i != axis)
        if not fits and index.numel and max(index.ndim, 1) == max(a.ndim, 1) == 1:
            fits = True  # a 0-d tensor counts as one element
        if not fits and index.numel:
            raise ValueError(f"{name} along axis {axis} of {a.shape} cannot use indices of {index.shape}")
        for s in source:
            if isinstance(s, Spec):
                if s.dtype is not a.dtype:
                    raise TypeError(f"{name} into {a.dtype.name}: expected that dtype, got {s.dtype.name}")
                if s.ndim != index.ndim or any(d < e for d, e in zip(s.shape, index.shape)):
                    raise ValueError(f"{name} at indices of {index.shape}: expected as many values, got {s.shape}")
        return Spec(index.shape, a.dtype) if name == "gather" else a

    return rule


def _places(name: str, index: Spec) -> None:
    if index.dtype is not int64:
        raise TypeError(f"{name}: expected indices of int64, got {index.dtype.name}")


def _along_rules(kind: Kind) -> list[Rule]:
    """All axes except the indexed one, where tensor and indices have equal sizes."""
    specs = [s for s in (*kind.ins, *kind.outs) if isinstance(s, Spec)]
    axis = kind.settings["axis"]
    return [(tuple(Shard(i) if isinstance(s, Spec) else REPLICATE for s in kind.ins), (Shard(i),))
            for i in range(kind.outs[0].ndim) if i != axis and len({s.shape[i] for s in specs}) == 1]  # fmt: skip


def _gather_rules(kind: Kind) -> list[Rule]:
    """Also any axis of the indices, if the tensor is replicated and only the indexed axis differs."""
    rules = [*_along_rules(kind), (first(kind, Partial()), (Partial(),))]
    return (
        [*rules, ((REPLICATE, Shard(kind.settings["axis"])), (Shard(kind.settings["axis"]),))] if kind.outs[0].ndim else rules
    )


def _gather_grad_rules(kind: Kind) -> list[Rule]:
    axis = kind.settings["axis"]
    rules: list[Rule] = [*_along_rules(kind), ((Partial(), REPLICATE), (Partial(),))]
    return [*rules, ((Shard(axis), Shard(axis)), (Partial(),))] if kind.outs[0].ndim else rules


def _corner(source, index):
    """The part of the values that the indices use."""
    return source[tuple(slice(0, d) for d in index.shape)] if source.shape != index.shape else source


def _grid(xp, index, axis):
    """The full index of each element: along the other axes its own position."""
    n = index.ndim
    return tuple(index if i == axis else xp.reshape(xp.arange(0, d), (1,) * i + (-1,) + (1,) * (n - i - 1))
                 for i, d in enumerate(index.shape))  # fmt: skip


def _gather(xp, a, index, *, axis):
    return a[_grid(xp, index, axis)] if index.ndim and a.ndim else xp.broadcast_to(xp.reshape(a, (-1,))[0], index.shape)


def _scatter(xp, a, index, source, *, axis):
    if not a.ndim:
        return xp.reshape(_scatter(xp, xp.reshape(a, (1,)), xp.reshape(index, (-1,)), source, axis=0), ())
    value = _corner(source, index) if hasattr(source, "shape") else source
    return xp.setitem(xp.copy(a), _grid(xp, index, axis), value)


def _scatter_add(xp, a, index, source, *, axis):
    if not a.ndim:
        return a + xp.sum(source, axis=tuple(range(source.ndim)))
    return xp.add_at(xp.copy(a), _grid(xp, index, axis), _corner(source, index))


def _scatter_pull(gs, ys, ins, axis):
    g, index = gs[0], ins[1]
    return [g.op("scatter", index, 0.0, axis=axis), None, _source_grad(g, index, ins[2], axis)]


def _source_grad(g, index, source, axis):
    if isinstance(source, (int, float)):
        return None
    found = g.op("gather", index, axis=axis)
    if found.shape == source.shape:
        return found
    take = tuple((d, 1) for d in found.shape)
    return found.op("slice_grad", *[0] * found.ndim, shape=source.shape, take=take)


def _select(a: Spec, index: Spec, *, axis) -> Spec:
    axis_of(axis, a.ndim)
    if index.ndim > 1 or index.dtype.rank != 1 or index.dtype.size < 4:
        raise ValueError(f"index_select: expected one axis of int32 or int64 indices, got {index}")
    return Spec((*a.shape[:axis], index.numel, *a.shape[axis + 1 :]), a.dtype) if a.ndim else a


def _select_rules(kind: Kind) -> list[Rule]:
    axis = kind.settings["axis"]
    rules: list[Rule] = [((Shard(i), REPLICATE), (Shard(i),)) for i in range(kind.outs[0].ndim) if i != axis]
    rules.append(((Partial(), REPLICATE), (Partial(),)))
    return [*rules, ((REPLICATE, Shard(0)), (Shard(axis),))] if kind.ins[1].ndim == 1 and kind.outs[0].ndim else rules


def _select_grad_rules(kind: Kind) -> list[Rule]:
    axis = kind.settings["axis"]
    rules: list[Rule] = [((Shard(i), REPLICATE), (Shard(i),)) for i in range(kind.outs[0].ndim) if i != axis]
    rules.append(((Partial(), REPLICATE), (Partial(),)))
    return [*rules, ((Shard(axis), Shard(0)), (Partial(),))] if kind.ins[0].ndim else rules


def _add_at(a: Spec, index: Spec, source: Spec, alpha: type, *, axis) -> Spec:
    axis_of(axis, a.ndim)
    want = (*a.shape[:axis], index.numel, *a.shape[axis + 1 :])
    if index.ndim > 1 or source.shape != want:
        raise ValueError(f"index_add at {index.shape} along axis {axis} of {a.shape}: expected {want}, got {source.shape}")
    if source.dtype is not a.dtype:
        raise TypeError(f"index_add into {a.dtype.name}: expected that dtype, got {source.dtype.name}")
    return a


def _index_add(xp, a, index, source, alpha, *, axis):
    return xp.add_at(xp.copy(a), (slice(None),) * axis + (xp.reshape(index, (-1,)),), source * alpha)


def _select_grad(xp, g, index, *, shape, axis):
    if not shape:
        return g
    return xp.add_at(xp.zeros(shape, dtype=g.dtype), (slice(None),) * axis + (xp.reshape(index, (-1,)),), g)


def _index_add_rules(kind: Kind) -> list[Rule]:
    axis = kind.settings["axis"]
    return [((Shard(i), REPLICATE, Shard(i), REPLICATE), (Shard(i),)) for i in range(kind.outs[0].ndim) if i != axis] + [
        ((Partial(), REPLICATE, Partial(), REPLICATE), (Partial(),))]  # fmt: skip


I45, SMALL = Values(Spec((4, 3), int64), 0, 5), Values(Spec((2, 5), int64), 0, 4)
SRC = Spec((4, 3), float32)
PICKS = Values(Spec((3,), int64), 0, 5)

op("gather", complex="analytic", shape=_along("gather"), shard=_gather_rules,
   tries=(((X, I45), {"axis": 1}), ((X, SMALL), {"axis": 0})),
   kernel=_gather,
   grad=(lambda g, b, sa, axis: g.op("gather_grad", b, shape=sa.shape, axis=axis), None))  # fmt: skip
op("gather_grad", complex="analytic", shape=lambda g, index, *, shape, axis: Spec(shape, g.dtype), shard=_gather_grad_rules,
   tries=(((SRC, I45), {"shape": (4, 5), "axis": 1}), ((Spec((2, 5), float32), SMALL), {"shape": (4, 5), "axis": 0})),
   kernel=lambda xp, g, index, *, shape, axis: _scatter_add(xp, xp.zeros(shape, dtype=g.dtype), index, g, axis=axis),
   grad=(lambda g, b, axis: g.op("gather", b, axis=axis), None))  # fmt: skip
op("scatter", unchecked="c", complex="analytic", shape=_along("scatter"), shard=_along_rules, keep="rest", grad=_scatter_pull,
   tries=(((X, Values(Spec((4, 1), int64), 0, 5), SRC), {"axis": 1}), ((X, I45, float), {"axis": 1})),
   kernel=_scatter)  # fmt: skip
op("scatter_add", complex="analytic", shape=_along("scatter_add"), shard=_along_rules,
   tries=(((X, I45, SRC), {"axis": 1}), ((X, SMALL, X), {"axis": 0})),
   kernel=_scatter_add,
   grad=(lambda g: g, None, lambda g, b, sc, axis: _source_grad(g, b, sc, axis)))  # fmt: skip
op("index_select", complex="analytic", shape=_select, shard=_select_rules,
   tries=(((X, PICKS), {"axis": 1}), ((X, PICKS), {"axis": 1})),
   kernel=lambda xp, a, index, *, axis: a[(slice(None),) * axis + (xp.reshape(index, (-1,)),)] if a.ndim else a,
   grad=(lambda g, b, sa, axis: g.op("index_select_grad", b, shape=sa.shape, axis=axis), None))  # fmt: skip
op("index_select_grad", complex="analytic", shape=lambda g, index, *, shape, axis: Spec(shape, g.dtype),
   shard=_select_grad_rules,
   tries=(((SRC, PICKS), {"shape": (4, 5), "axis": 1}),),
   kernel=_select_grad,
   grad=(lambda g, b, axis: g.op("index_select", b, axis=axis), None))  # fmt: skip
op("index_add", complex="analytic", shape=_add_at, shard=_index_add_rules, tries=(((X, PICKS, SRC, 0.5), {"axis": 1}),),
   kernel=_index_add,
   grad=(lambda g: g, None, lambda g, b, d, axis: g.op("index_select", b, axis=axis) * d, None))  # fmt: skip
