"""Tensors laid out in any way, put straight onto the workers of an in-process cluster, so that programs can be tried on
layouts that no short program would reach."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from gt.client.autograd import Tensor
from gt.client.handle import Handle
from gt.dispatcher.tables import Entry
from gt.spec import REPLICATE, Layout, Mesh, Partial, Placement, Shard, Spec, bool_
from gt.testing import Cluster
from gt.worker.client_values import ClientValues

GRAIN = 64.0  # values are multiples of 1/64, so that terms add up exactly and no comparison turns on rounding


def grained(a: Any) -> Any:
    if isinstance(a, np.ndarray) and a.dtype.kind == "f":
        return (np.round(a * GRAIN) / GRAIN).astype(a.dtype)
    return a


@st.composite
def meshes(draw: Any, workers: int) -> Mesh:
    order = draw(st.permutations(range(workers)))
    n = draw(st.integers(1, workers))
    shapes: list[tuple[int, ...]] = [(n,)]
    if n == 4:
        shapes.append((2, 2))
    if n > 1:
        shapes += [(1, n), (n, 1)]
    return Mesh(draw(st.sampled_from(shapes)), tuple(order[:n]))


@st.composite
def layouts(draw: Any, spec: Spec, mesh: Mesh, terms: bool = True) -> Layout:
    kinds: list[Placement] = [REPLICATE, *[Shard(i) for i in range(spec.ndim)]]
    if terms:  # of one kind: it would matter which of two was reduced first
        ordered, added = ["max", "min"], ["sum", "sum"]
        reductions = ordered if spec.dtype is bool_ else added if spec.dtype.rank == 3 else added + ordered
        kinds.append(Partial(draw(st.sampled_from(reductions))))
    return Layout(mesh, tuple(draw(st.sampled_from(kinds)) for _ in mesh.shape))


def term(value: np.ndarray, place: tuple[int, ...], layout: Layout) -> np.ndarray:
    """The term at this place of the mesh: the terms along each partial dimension reduce to the value."""
    for d, p in enumerate(layout.placements):
        if not isinstance(p, Partial):
            continue
        n, c = layout.mesh.shape[d], place[d]
        others = [np.random.default_rng((d, i, *place[:d])).integers(-3, 4, value.shape) for i in range(n - 1)]
        if p.reduce == "sum":
            parts = [o.astype(value.dtype) for o in others]
            value = value - sum(parts[1:], parts[0]) if c == n - 1 else parts[c]
        elif value.dtype == bool:
            value = value if c == 0 else (value & (others[0] > 0) if p.reduce == "max" else value | (others[0] > 0))
        elif c:
            away = np.abs(others[c - 1]).astype(value.dtype)
            value = np.asarray(value - away if p.reduce == "max" else value + away, value.dtype)
    return value


def put(made: Cluster, array: np.ndarray, spec: Spec, layout: Layout, requires_grad: bool = False) -> Tensor:
    """A tensor of these values that lies so."""
    session = made.sessions[0]
    made.settle()
    handle = Handle(session.next_id(), spec, session)
    client = made.dispatcher.tables.clients[session.name]
    for at, index in enumerate(layout.workers):
        start, shape = layout.box(spec.shape, at)
        whole = term(array, layout.mesh.coordinates(at), layout)
        part = np.ascontiguousarray(whole[tuple(slice(s, s + d) for s, d in zip(start, shape))])
        worker = made.workers[index]
        space = worker.spaces.setdefault(session.name, ClientValues(session.name))
        loaded = Spec(shape, spec.dtype)
        data = memoryview(part.reshape(-1).view(np.uint8)) if part.size else memoryview(b"")
        if spec.dtype.name == "bfloat16":
            from gt.client.arrays import to_bfloat16_bits

            data = memoryview(to_bfloat16_bits(part).reshape(-1).view(np.uint8)) if part.size else memoryview(b"")
        space.put(handle.id, loaded, worker.engine.load(data, loaded, True))
    client.entries[handle.id] = Entry(layout, spec)
    return Tensor(handle, requires_grad)
