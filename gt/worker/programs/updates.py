"""Updates in a trace: which may run together, which may write over what they update, and the trace without them. `kinds` are
the worker's: by number, what each kind of instruction is."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gt.ops import Kind
from gt.transport.messages import FREE, TraceDef

if TYPE_CHECKING:
    from gt.worker.programs.compile import Ready

Holes = tuple[tuple[tuple[int, int], ...], ...]


def ends(trace: TraceDef, kinds: dict[int, Ready], number: int) -> bool:
    """Whether updates of this kind, run together where the last of them or a later update stands, may write over all their
    tensors but the second, the gradient: each ends in the trace, and neither another update nor anything from there on reads
    it."""
    places = [i for i, ins in enumerate(trace.body) if ins[0] == number]
    tensors = kinds[number].tensors
    written = [trace.body[i][j] for i in places for j in tensors if j != tensors[1]]
    read = {trace.body[i][tensors[1]] for i in places}
    for i, ins in enumerate(trace.body):
        if ins[0] not in (FREE, number) and (i > places[-1] or kinds[int(ins[0])].kind.row.updates):
            read |= {ins[j] for j in kinds[int(ins[0])].tensors}
    freed = {ins[1] for ins in trace.body if ins[0] == FREE}
    return len(set(written)) == len(written) and freed.issuperset(written) and not read.intersection(written)


def gathered(
    trace: TraceDef, kinds: dict[int, Ready], kernel: Callable[[Kind], Callable[..., Any] | None]
) -> dict[int, Callable[..., Any]]:
    """Kernels for updates that may run together and write over what they update, by kind: one for all shapes."""
    found: dict[int, Callable[..., Any]] = {}
    alike: dict[tuple, Callable[..., Any]] = {}
    for n, ready in kinds.items():
        run = kernel(ready.kind)
        if run is not None and ends(trace, kinds, n):
            found[n] = alike.setdefault((ready.kind.row.name, ready.kind.statics), run)
    return found


def together(body: list, kinds: dict[int, Ready], gather: Mapping[int, Callable]) -> tuple[dict[int, list[int]], set[int]]:
    """Instructions that can run as one call, as they have a kernel of `gather` in common: by the index of the last of each
    group, the indices of all; and the indices of frees that have to wait for it. Their results must not be used before."""
    groups: dict[Callable, list[int]] = {}
    for index, ins in enumerate(body):
        if ins[0] in gather:
            groups.setdefault(gather[ins[0]], []).append(index)
    found: dict[int, list[int]] = {}
    late: set[int] = set()
    for places in groups.values():
        made = {r for i in places for r in body[i][1 : 1 + kinds[int(body[i][0])].outs]}
        used = {r for i in places for r in body[i][1 + kinds[int(body[i][0])].outs :]}
        between = range(places[0], places[-1] + 1)
        reads = [body[k][1] if body[k][0] == FREE else [body[k][j] for j in kinds[int(body[k][0])].tensors] for k in between]
        if any(r in made for read in reads for r in (read if isinstance(read, list) else [read])):
            continue
        found[places[-1]] = places
        late |= {k for k in between if body[k][0] == FREE and body[k][1] in used}
    return found, late


class Halves(NamedTuple):
    """A trace in two: all but some updates, and those. The first has the trace's inputs and numbers, and gives those of the
    trace's results that it makes, then what the updates want of it; the second has the updates' tensors as its inputs."""

    first: TraceDef
    updates: TraceDef
    given: tuple[int, ...]  # for each input of the second: an input of the trace, or, from `inputs` on, a result of the first
    results: tuple[int, ...]  # for each result of the trace: a result of the first, or, from its number on, of the second


def halves(trace: TraceDef, kinds: dict[int, Ready], numbers: Container[int]) -> Halves | None:
    """The trace with updates of these kinds apart. None where there are none, or something in the trace uses their results."""
    places = [i for i, ins in enumerate(trace.body) if ins[0] in numbers]
    late = [trace.body[i] for i in places]
    made = [int(r) for ins in late for r in ins[1 : 1 + kinds[int(ins[0])].outs]]
    used = {int(ins[i]) for ins in trace.body if ins[0] != FREE for i in kinds[int(ins[0])].tensors}
    if not places or used.intersection(made):
        return None
    taken = list(dict.fromkeys(int(ins[i]) for ins in late for i in kinds[int(ins[0])].tensors))
    left = [i for i, ins in enumerate(trace.body) if ins[0] not in numbers and not (ins[0] == FREE and ins[1] in taken)]
    outs = [r for r in trace.outs if r not in made] + [r for r in taken if r > trace.inputs]
    register = {r: i + 1 for i, r in enumerate((*taken, *made))}
    body = []
    for ins in late:
        ready = kinds[int(ins[0])]
        names = {*range(1, 1 + ready.outs), *ready.tensors}
        body.append(tuple(register[int(x)] if i in names else x for i, x in enumerate(ins)))
    last = tuple(register[r] for r in trace.outs if r in register and r in made)
    return Halves(
        TraceDef(trace.number, trace.inputs, [trace.body[i] for i in left], tuple(outs), _moved(trace.holes, left)),
        TraceDef(trace.number, len(taken), body, last, _moved(trace.holes, places)),
        tuple(r - 1 if r <= trace.inputs else trace.inputs + outs.index(r) for r in taken),
        tuple(len(outs) + last.index(register[r]) if r in made else outs.index(r) for r in trace.outs),
    )


def _moved(holes: Holes, kept: list[int]) -> Holes:
    """Holes where only these instructions are left of a body."""
    place = {index: i for i, index in enumerate(kept)}
    return tuple(tuple((place[index], i) for index, i in places if index in place) for places in holes)
