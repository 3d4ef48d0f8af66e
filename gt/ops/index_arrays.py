"""Indexing by arrays, where `axes` are the indexed axes in order; embedding; gather, scatter and selection along one axis.
Slices in the same index are applied first, as in PyTorch, and the client converts boolean masks to indices."""

from __future__ import annotations

from gt.ops.index import first
from gt.ops.rules import axis_of, broadcast, gradient_of
from gt.ops.table import Kind, Operand, Rule, Values, op
from gt.spec import REPLICATE, Partial, Placement, Shape, Shard, Spec, float32, int64


def _together(axes) -> bool:
    """Whether the indexed axes are adjacent: the result has the new axes in their position, else in front."""
    return axes[-1] - axes[0] == len(axes) - 1


def _shape(shape: Shape, places: tuple[Spec, ...], axes) -> Shape:
    if len(places) != len(axes) or list(axes) != sorted({axis_of(axis, len(shape)) for axis in axes}):
        raise IndexError(f"an index of {shape}: expected an array for each of its axes {axes}, got {len(places)}")
    for p in places:
        if p.dtype.rank != 1:
            raise TypeError(f"an index: expected integers or booleans, got {p.dtype.name}")
    picked = broadcast(*[p.shape for p in places])
    kept = tuple(d for i, d in enumerate(shape) if i not in axes)
    at = axes[0] if _together(axes) else 0
    return (*kept[:at], *picked, *kept[at:])


def _pick(a: Spec, *places: Spec, axes) -> Spec:
    return Spec(_shape(a.shape, places, axes), a.dtype)


def _full(places, axes, ndim: int) -> tuple:
    """The index for NumPy. Separated arrays put their axes in front there too."""
    where = dict(zip(axes, places))
    return tuple(where.get(i, slice(None)) for i in range(ndim))


def _put(a: Spec, value: Operand, *places: Spec, axes, accumulate) -> Spec:
    want = _shape(a.shape, places, axes)
    if isinstance(value, Spec):
        if broadcast(value.shape, want) != want:
            raise ValueError(f"cannot write {value.shape} at indices of {a.shape}: expected {want}, or what broadcasts to it")
        if value.dtype is not a.dtype:
            raise TypeError(f"cannot write {value.dtype.name} into {a.dtype.name}: cast first")
    return a


def _put_kernel(xp, a, value, *places, axes, accumulate):
    index = _full(places, axes, a.ndim)
    return xp.add_at(xp.copy(a), index, value) if accumulate else xp.setitem(xp.copy(a), index, value)


def _put_pull(gs, ys, ins, axes, accumulate):
    g, value, places = gs[0], ins[1], ins[2:]
    first = g if accumulate else g.op("index_put", 0.0, *places, axes=axes, accumulate=False)
    return [first, None if isinstance(value, (int, float)) else g.op("index", *places, axes=axes)]


def _kept(kind: Kind, ndim: int) -> list[tuple[int, int]]:
    """Axes that are not indexed, in the tensor and in the result."""
    axes = kind.settings["axes"]
    places = [s for s in kind.ins[-len(axes) :] if isinstance(s, Spec)]
    width = len(broadcast(*[p.shape for p in places]))
    at = axes[0] if _together(axes) else 0
    others = [i for i in range(ndim) if i not in axes]
    return [(i, n if n < at else n + width) for n, i in enumerate(others)]


def _pick_rules(kind: Kind) -> list[Rule]:
    rest = [REPLICATE] * (len(kind.ins) - 1)
    rules: list[Rule] = [((Shard(i), *rest), (Shard(o),)) for i, o in _kept(kind, kind.ins[0].ndim)]
    axes = kind.settings["axes"]
    places = [s.shape for s in kind.ins[1:]]
    at = axes[0] if _together(axes) else 0
    if all(p == places[0] for p in places):
        rules += [((REPLICATE, *[Shard(i)] * len(places)), (Shard(at + i),)) for i in range(len(places[0]))]
    return [*rules, ((Partial(), *rest), (Partial(),))]


def _grad_rules(kind: Kind) -> list[Rule]:
    """If the indices are sharded, each worker adds its part into zeros."""
    rest = [REPLICATE] * (len(kind.ins) - 1)
    rules: list[Rule] = [((Shard(o), *rest), (Shard(i),)) for i, o in _kept(kind, kind.outs[0].ndim)]
    axes = kind.settings["axes"]
    places = [s.shape for s in kind.ins[1:]]
    at = axes[0] if _together(axes) else 0
    if all(p == places[0] for p in places):
        rules += [((Shard(at + i), *[Shard(i)] * len(places)), (Partial(),)) for i in range(len(places[0]))]
    return [*rules, ((Partial(), *rest), (Partial(),))]


def _put_rules(kind: Kind) -> list[Rule]:
    a, value = kind.ins[0], kind.ins[1]
    assert isinstance(a, Spec)
    rest = [REPLICATE] * (len(kind.ins) - 2)
    places = tuple(s for s in kind.ins[2:] if isinstance(s, Spec))
    want = len(_shape(a.shape, places, kind.settings["axes"]))
    rules: list[Rule] = []
    for i, o in _kept(kind, a.ndim):
        at = o - want + value.ndim if isinstance(value, Spec) else -1
        cut: Placement = Shard(at) if at >= 0 and value.shape[at] == a.shape[i] else REPLICATE
        rules.append(((Shard(i), cut, *rest), (Shard(i),)))
    return rules


X = Spec((4, 3, 5), float32)
P, Q = Values(Spec((2, 3), int64), -4, 4), Values(Spec((3,), int64), 0, 5)
APART = {"axes": (0, 2)}

op("index", complex="analytic", shape=_pick, shard=_pick_rules,
   tries=(((X, P), {"axes": (0,)}), ((X, P, Q), APART), ((X, Q), {"axes": (2,)}),
          ((X, Values(Spec((3,), int64), 0, 3), Q), {"axes": (1, 2)})),
   kernel=lambda xp, a, *places, axes: xp.getitem(a, _full(places, axes, a.ndim)),
   keep="rest",
   grad=lambda gs, ys, ins, axes: [gs[0].op("index_grad", *ins[1:], shape=ins[0].shape, axes=axes)])  # fmt: skip
op("index_grad", complex="analytic", shape=gradient_of("index_grad", _pick), shard=_grad_rules, keep="rest",
   tries=(((Spec((2, 3, 3), float32), P, Q), {"shape": (4, 3, 5), **APART}),
          ((Spec((4, 3, 3), float32), Q), {"shape": (4, 3, 5), "axes": (2,)})),
   kernel=lambda xp, g, *places, shape, axes: xp.add_at(
       xp.zeros(shape, dtype=g.dtype), _full(places, axes, len(shape)), g),
   grad=lambda gs, ys, ins, shape, axes: [gs[0].op("index", *ins[1:], axes=axes)])  # fmt: skip
op("index_put", unchecked="b", complex="analytic", shape=_put, shard=_put_rules, keep="rest", grad=_put_pull,
   tries=(((X, Spec((3,), float32), Values(Spec((1,), int64), 0, 4), Values(Spec((1,), int64), 0, 5)),
           {**APART, "accumulate": False}),
          ((X, float, P), {"axes": (0,), "accumulate": False}),
          ((X, Spec((2, 3, 3), float32), P, Q), {**APART, "accumulate": True})),
   kernel=_put_kernel)  # fmt: skip


def _embed(w: Spec, index: Spec, *, padding: int) -> Spec:
    if w.ndim != 2:
        raise ValueError(f"embedding: expected a table (rows, features), got {w.shape}")
    if index.dtype.rank != 1 or index.dtype.size < 4:
        raise TypeError(f"embedding: expected indices of int32 or int64, got {index.dtype.name}")
    return Spec((*index.shape, w.shape[1]), w.dtype)


def _embed_rules(kind: Kind) -> list[Rule]:
    n = kind.outs[0].ndim
    rules: list[Rule] = [((REPLICATE, Shard(i)), (Shard(i),)) for i in range(n - 1)]
    return [*rules, ((Shard(1), REPLICATE), (Shard(n - 1),)), ((Partial(), REPLICATE), (Partial(),))]


def _embed_grad(xp, g, index, *, shape, padding):
    kept = xp.expand_dims(index != padding, -1)
    g = xp.reshape(xp.where(kept, g, 0.0 * g), (Spec(tuple(index.shape)).numel, shape[1]))
    return xp.add_at(xp.zeros(shape, dtype=g.dtype), (xp.reshape(index, (-1,)),), g)


def _embed_grad_rules(kind: Kind) -> list[Rule]:
    """Each worker sums its own samples; features are independent."""
    n = kind.ins[0].ndim
    rules: list[Rule] = [((Shard(i), Shard(i)), (Partial(),)) for i in range(n - 1)]
    return [*rules, ((Shard(n - 1), REPLICATE), (Shard(1),)), ((Partial(), REPLICATE), (Partial(),))]


TABLE, WORDS = Spec((5, 3), float32), Values(Spec((2, 4), int64), 0, 5)

op("embedding", shape=_embed, shard=_embed_rules,
   tries=(((TABLE, WORDS), {"padding": -1}), ((TABLE, WORDS), {"padding": 2})),
   kernel=lambda xp, w, index, *, padding: w[index],
   grad=(lambda g, b, sa, padding: g.op("embedding_grad", b, shape=sa.shape, padding=padding), None))  # fmt: skip
op("embedding_grad", shape=gradient_of("embedding_grad", _embed), shard=_embed_grad_rules,
   tries=(((Spec((2, 4, 3), float32), WORDS), {"shape": (5, 3), "padding": -1}),
          ((Spec((2, 4, 3), float32), WORDS), {"shape": (5, 3), "padding": 2})),
   kernel=_embed_grad,
   # a row left out of the gradient is left out of the gradient's gradient
   grad=(lambda g, b, padding: (b != padding).unsqueeze(-1).pick(g.op("embedding", b, padding=-1), 0.0), None))  # fmt: skip


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
    if len({s.ndim for s in specs}) > 1:  # no indices, or a 0-d tensor as one element
        return []
    axis = kind.settings["axis"]
    return [(tuple(Shard(i) if isinstance(s, Spec) else REPLICATE for s in kind.ins), (Shard(i),))
            for i in range(kind.outs[0].ndim) if i != axis and len({s.shape[i] for s in specs}) == 1]  # fmt: skip


def _gather_rules(kind: Kind) -> list[Rule]:
    """Also any axis of the indices, if the tensor is replicated and only the indexed axis differs."""
    axis = kind.settings["axis"]
    rules = [*_along_rules(kind), (first(kind, Partial()), (Partial(),))]
    return [*rules, ((REPLICATE, Shard(axis)), (Shard(axis),))] if axis < kind.outs[0].ndim else rules


def _gather_grad_rules(kind: Kind) -> list[Rule]:
    axis = kind.settings["axis"]
    rules: list[Rule] = [*_along_rules(kind), ((Partial(), REPLICATE), (Partial(),))]
    return [*rules, ((Shard(axis), Shard(axis)), (Partial(),))] if kind.outs[0].ndim and axis < kind.ins[0].ndim else rules


def _corner(source, index):
    """The part of the values that the indices use."""
    return source[tuple(slice(0, d) for d in index.shape)] if source.shape != index.shape else source


def _grid(xp, index, axis):
    """The full index of each element: along the other axes its own position."""
    n = index.ndim
    return tuple(index if i == axis else xp.reshape(xp.arange(0, d), (1,) * i + (-1,) + (1,) * (n - i - 1))
                 for i, d in enumerate(index.shape))  # fmt: skip


def _gather(xp, a, index, *, axis):
    if not Spec(tuple(index.shape)).numel:  # which need not have the tensor's axes
        return xp.zeros(index.shape, dtype=a.dtype)
    return a[_grid(xp, index, axis)] if index.ndim and a.ndim else xp.broadcast_to(xp.reshape(a, (-1,))[0], index.shape)


def _scatter(xp, a, index, source, *, axis):
    if not a.ndim:
        return xp.reshape(_scatter(xp, xp.reshape(a, (1,)), xp.reshape(index, (-1,)), source, axis=0), ())
    value = _corner(source, index) if hasattr(source, "shape") else source
    return xp.setitem(xp.copy(a), _grid(xp, index, axis), value)


def _scatter_add(xp, a, index, source, *, axis):
    if not Spec(tuple(index.shape)).numel:
        return a
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
        raise IndexError(f"index_select: expected one axis of int32 or int64 indices, got {index}")
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
FLAT, SRC = Spec((4, 5), float32), Spec((4, 3), float32)
PICKS = Values(Spec((3,), int64), 0, 5)

op("gather", complex="analytic", shape=_along("gather"), shard=_gather_rules,
   tries=(((FLAT, I45), {"axis": 1}), ((FLAT, SMALL), {"axis": 0})),
   kernel=_gather,
   grad=(lambda g, b, sa, axis: g.op("gather_grad", b, shape=sa.shape, axis=axis), None))  # fmt: skip
op("gather_grad", complex="analytic", shape=gradient_of("gather_grad", _along("gather")), shard=_gather_grad_rules,
   tries=(((SRC, I45), {"shape": (4, 5), "axis": 1}), ((Spec((2, 5), float32), SMALL), {"shape": (4, 5), "axis": 0})),
   kernel=lambda xp, g, index, *, shape, axis: _scatter_add(xp, xp.zeros(shape, dtype=g.dtype), index, g, axis=axis),
   grad=(lambda g, b, axis: g.op("gather", b, axis=axis), None))  # fmt: skip
op("scatter", unchecked="c", complex="analytic", shape=_along("scatter"), shard=_along_rules, keep="rest", grad=_scatter_pull,
   tries=(((FLAT, Values(Spec((4, 1), int64), 0, 5), SRC), {"axis": 1}), ((FLAT, I45, float), {"axis": 1})),
   kernel=_scatter)  # fmt: skip
op("scatter_add", complex="analytic", shape=_along("scatter_add"), shard=_along_rules,
   tries=(((FLAT, I45, SRC), {"axis": 1}), ((FLAT, SMALL, FLAT), {"axis": 0})),
   kernel=_scatter_add,
   grad=(lambda g: g, None, lambda g, b, sc, axis: _source_grad(g, b, sc, axis)))  # fmt: skip
op("index_select", complex="analytic", shape=_select, shard=_select_rules,
   tries=(((FLAT, PICKS), {"axis": 1}), ((FLAT, PICKS), {"axis": 1})),
   kernel=lambda xp, a, index, *, axis: a[(slice(None),) * axis + (xp.reshape(index, (-1,)),)] if a.ndim else a,
   grad=(lambda g, b, sa, axis: g.op("index_select_grad", b, shape=sa.shape, axis=axis), None))  # fmt: skip
op("index_select_grad", complex="analytic", shape=gradient_of("index_select_grad", _select), shard=_select_grad_rules,
   tries=(((SRC, PICKS), {"shape": (4, 5), "axis": 1}),),
   kernel=_select_grad,
   grad=(lambda g, b, axis: g.op("index_select", b, axis=axis), None))  # fmt: skip
op("index_add", complex="analytic", shape=_add_at, shard=_index_add_rules, tries=(((FLAT, PICKS, SRC, 0.5), {"axis": 1}),),
   kernel=_index_add,
   grad=(lambda g: g, None, lambda g, b, d, axis: g.op("index_select", b, axis=axis) * d, None))  # fmt: skip
