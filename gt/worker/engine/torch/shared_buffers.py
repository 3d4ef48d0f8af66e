"""Buffers that several CUDA graphs of a client use in turns. A step that is sometimes called early is three programs: the whole
step, its part before the updates, and the updates. Parameters and the optimizer's state lie in the same buffers for all three,
so that nothing is copied between them. A graph that writes over a buffer first copies the values away that someone holds there,
whichever graph made them: graphs with buffers in common know one another (`kin`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gt.worker.engine.torch.graph_images import is_packed
from gt.worker.engine.torch.recordings import GraphRecording, lent


def users(buffer: torch.Tensor) -> set[Any]:
    """The graphs that update a value in this buffer."""
    return getattr(buffer, "users", None) or set()


def lies_elsewhere(graph: Any, input: int, array: torch.Tensor) -> bool:
    """Whether an input lies where another graph updates it: it is read there."""
    return graph.shares and input not in graph.loose and bool(users(array))


def buffer_of(graph: Any, array: torch.Tensor, order: torch.memory_format, dies: bool) -> torch.Tensor:
    """The buffer of a graph's input: a new one, or, for a value that ends with the call, the buffer in which another graph
    updates it."""
    others = users(array)
    fits = array.is_contiguous(memory_format=order) or order is torch.contiguous_format and is_packed(array)
    if not (graph.shares and dies and others and fits):
        return lent(array, order)
    for other in others:
        other.kin.add(graph)
        graph.kin.add(other)
    return array


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
    """A graph was captured, which updates some values where they lie."""
    for i in graph.links:
        if not graph.fixed[i]:
            graph.statics[i].users = {*users(graph.statics[i]), graph}


def let_go(graph: Any) -> None:
    """The buffers of a graph are tensors like any others, unless another one uses them, too."""
    for buffer, fixed in zip(graph.statics, graph.fixed):
        if not fixed:
            users(buffer).discard(graph)
            buffer.lent = bool(users(buffer))


def spare_others(graph: Any, recording: GraphRecording, table: dict[int, Any], dying: set[int]) -> None:
    """Copy results of other recordings away that someone holds and this one writes over: the buffers of inputs are the same in
    both recordings of a graph, and may be in other graphs."""
    others = [r for g in (graph, *graph.kin) for r in g.recordings if r is not recording and not r.let_go]
    if not others:
        return
    written = {id(buffer) for buffer in (*recording.results, *graph.statics)}
    for other in others:
        held = other.held(table, dying)
        if shared := [j for j in held if id(other.results[j]) in written]:
            other.copy_away(table, shared)
        other.let_go = not held
