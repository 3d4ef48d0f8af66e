"""Buffers that several CUDA graphs of a client use in turns. A step that is sometimes called early is three programs: the whole
step, its part before the updates, and the updates. Parameters and the optimizer's state lie in the same buffers for all three,
and the updates read gradients where the part before them leaves these, so that nothing is copied between them. A graph that
writes over a buffer first copies the values away that someone holds there, whichever graph made them: graphs with buffers in
common know one another (`sharers`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from operator import is_
from typing import Any
from weakref import ref

import torch

from gt.worker.engine.torch.graph_images import is_packed
from gt.worker.engine.torch.recordings import GraphRecording, lent


def users(buffer: torch.Tensor) -> set[Any]:
    """The graphs that update a value in this buffer."""
    return getattr(buffer, "users", None) or set()


def is_updated_elsewhere(graph: Any, input: int, array: torch.Tensor) -> bool:
    """Whether an input lies where another graph updates it: it is read there."""
    return graph.shares and input not in graph.varying and bool(users(array))


def buffer_of(graph: Any, array: torch.Tensor, order: torch.memory_format, dies: bool) -> torch.Tensor:
    """The buffer of a graph's input: a new one, or, for a value that ends with the call, the buffer in which another graph
    updates it."""
    others = users(array)
    fits = array.is_contiguous(memory_format=order) or order is torch.contiguous_format and is_packed(array)
    if not (graph.shares and dies and others and fits):
        return lent(array, order)
    for other in others:
        _share(graph, other)
    return array


def _share(graph: Any, other: Any) -> None:
    other.sharers.add(graph)
    graph.sharers.add(other)


def bind_inputs(graph: Any, moved: Iterable[int], arrays: list[torch.Tensor]) -> bool:
    """Let a graph read those of its `moved` inputs that are results of another graph in the buffers of these, instead of in
    buffers of its own. Returns whether there are any: it has to be recorded again."""
    made = {i: maker for i in moved if i not in graph.links and (maker := _maker(arrays[i])) is not None}
    made = {i: maker for i, maker in made.items() if maker is not graph and _laid_out_as(arrays[i], graph.statics[i])}
    if not made:
        return False
    known = [*arrays, *graph.statics, *(r for maker in set(made.values()) for r in maker.recordings[0].results)]
    given, tensors = Counter(map(id, arrays)), Counter(map(_storage, {id(a): a for a in known}.values()))
    found = [i for i in made if given[id(arrays[i])] == tensors[_storage(arrays[i])] == 1]  # no two values lie in one buffer
    for i in found:
        graph.statics[i] = arrays[i]
        _share(graph, made[i])
        made[i].twice = False  # a second recording would leave them elsewhere
    return bool(found)


def _maker(array: torch.Tensor) -> Any:
    """The graph in the buffer of whose result a value lies, if there is one."""
    maker = getattr(array, "maker", None)
    return maker() if maker is not None else None


def _laid_out_as(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype is b.dtype and a.shape == b.shape and a.stride() == b.stride()


def _storage(array: torch.Tensor) -> int:
    return array.untyped_storage().data_ptr()


@contextmanager
def unchanged(graph: Any, arrays: list[torch.Tensor]) -> Iterator[None]:
    """Restores the inputs that lie in buffers of other graphs, for a first run of the function before its capture."""
    kept = [(a, a.clone()) for a, buffer, fixed in zip(arrays, graph.statics, graph.fixed) if a is buffer and not fixed]
    try:
        yield
    finally:
        for buffer, value in kept:
            buffer.copy_(value)


def note_updates(graph: Any) -> None:
    """A graph was captured, which updates some values where they lie, and leaves its other results in buffers of its own."""
    for i in graph.links:
        if not graph.fixed[i]:
            graph.statics[i].users = {*users(graph.statics[i]), graph}
    inputs = set(map(id, graph.statics))
    for buffer in graph.recordings[0].results if graph.shares else ():
        if id(buffer) not in inputs:
            buffer.maker = ref(graph)


def release_buffers(graph: Any) -> None:
    """The buffers of a graph are tensors like any others, unless another one uses them, too."""
    for buffer, fixed in zip(graph.statics, graph.fixed):
        if not fixed:
            users(buffer).discard(graph)
            buffer.lent = bool(users(buffer)) or _maker(buffer) is not None


def copy_held_away(
    graph: Any, recording: GraphRecording, table: dict[int, Any], dying: set[int], arrays: list[torch.Tensor]
) -> None:  # fmt: skip
    """Copy results of other recordings away that someone holds and this one writes over: the buffers of inputs are the same in
    both recordings of a graph, and may be in other graphs. Inputs are copied into their buffers if they lie elsewhere, and the
    program may write over inputs that end with it."""
    others = [r for g in (graph, *graph.sharers) for r in g.recordings if r is not recording and not r.unreferenced]
    if not others:
        return
    there = all(map(is_, arrays, graph.statics))
    if there:  # parameters, which the call gets from the one before, end with it
        ending = [graph.statics[i] for i in graph.ending]
        others = [r for r in others if not dying.issuperset(recording.overwritten(r, ending).of(r.lent))]
        if not others:
            return
    written = {id(buffer) for buffer in recording.results}
    inputs = enumerate(zip(arrays, graph.statics))
    written |= {id(buffer) for i, (a, buffer) in inputs if a is not buffer or i in graph.ending}
    for other in others:
        held = other.held(table, dying)
        if shared := [j for j in held if id(other.results[j]) in written]:
            other.copy_away(table, shared)
        other.unreferenced = not held
