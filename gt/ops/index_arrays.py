"""Indexing by arrays, where `axes` are the indexed axes in order; and embedding. Slices in the same index are applied first, as
in PyTorch, and the client converts boolean masks to indices."""

from __future__ import annotations

from gt.ops.rules import broadcast
from gt.ops.table import Kind, Operand, Rule, Values, op
from gt.spec import REPLICATE, Partial, Placement, Shape, Shard, Spec, float32, int64


def _together(axes) -> bool:
    """Whether the indexed axes are adjacent: the result has the new axes in their position, else in front."""
    return axes[-1] - axes[0] == len(axes) - 1


def _shape(shape: Shape, places: tuple[Spec, ...], axes) -> Shape:
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
            raise ValueError(f"cannot write {value.shape} at indices of {want} of {a.shape}")
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
op("index_grad", complex="analytic", shape=lambda g, *places, shape, axes: Spec(shape, g.dtype), shard=_grad_rules, keep="rest",
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
op("embedding_grad", shape=lambda g, index, *, shape, padding: Spec(shape, g.dtype), shard=_embed_grad_rules,
   tries=(((Spec((2, 4, 3), float32), WORDS), {"shape": (5, 3), "padding": -1}),
          ((Spec((2, 4, 3), float32), WORDS), {"shape": (5, 3), "padding": 2})),
   kernel=_embed_grad,
   # a row left out of the gradient is left out of the gradient's gradient
   grad=(lambda g, b, padding: (b != padding).unsqueeze(-1).pick(g.op("embedding", b, padding=-1), 0.0), None))  # fmt: skip
