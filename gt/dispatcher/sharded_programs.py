"""Calls of traces whose tensors lie on several workers. The first call for a layout of the inputs is expanded and planned op
by op; the instructions of each worker, collectives included, are kept as a trace of that worker. Later calls are one
instruction per worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gt.dispatcher import policy
from gt.dispatcher.flow import Flow
from gt.dispatcher.tables import Client, Entry, KindPlans, Tables, TracePlans
from gt.ops import Kind
from gt.program import Hole, Instruction, Program
from gt.program.code import FIRST_RESULT, KindOf, by_result, first_result, tag_of, walk
from gt.program.stretch import Stretch, flat, pick
from gt.program.wire import TraceDef, write


def marked(use: TracePlans, call: tuple) -> tuple:
    """The call with a marker in place of each number, by which the numbers are found in the planned instructions."""
    first = use.form.given.start
    return (*call[:first], *map(Hole, range(first, use.length)))


def filled(code: list[tuple], call: tuple) -> list[tuple]:
    """Instructions with the call's numbers in place of the markers."""
    return [tuple([call[x.index] if type(x) is Hole else x for x in ins]) for ins in code]


class ShardedProgram:
    """A trace planned for one layout of its inputs: each worker's definition, and the positions in the client's call of the
    elements of the worker's call."""

    __slots__ = ("solo", "number", "definitions", "picks", "entries", "relaid", "told")

    def __init__(self, number: int, definitions: dict[int, TraceDef], picks: dict[int, tuple[int, ...]]) -> None:
        self.solo, self.number, self.definitions, self.told = None, number, definitions, False
        self.picks = [(worker, pick(places)) for worker, places in sorted(picks.items())]
        self.entries: tuple[Entry, ...] = ()
        self.relaid: tuple[tuple[int, Entry], ...] = ()

    def write(self, tables: Tables, client: Client, use: TracePlans, call: tuple, flow: Flow) -> None:
        """Write a call of this trace for each worker, and set the entries of its tensors."""
        if not self.told:
            self.told = True
            for worker, definition in self.definitions.items():
                client.told.setdefault(worker, set()).add(self.number)
                flow.traces.setdefault(worker, []).append(definition)
        slots = (*call, self.number)
        for worker, own in self.picks:
            flow.queue(worker).append(own(slots))
        entries = client.entries
        for id, entry in by_result(call, self.entries):
            entries[id] = entry
            policy.count(tables, client, id, entry)
        for at, entry in self.relaid:
            entries[call[at]] = entry
        for at in use.dies:
            gone = entries.pop(call[at], None)
            if type(gone) is Entry:
                policy.uncount(tables, client, call[at], gone)


def learn(
    client: Client, use: TracePlans, call: tuple, before: tuple, codes: dict[int, list],
    planned: list[tuple[Instruction | None, tuple]],
) -> Iterator[ShardedProgram | int]:  # fmt: skip
    """The sharded program of an expanded call, for later calls, after the number of instructions of each part of the work.
    `before` are the entries of its inputs, `planned` its instructions. None where one of its tensors was lost."""
    entries = client.entries
    made = [entries.get(id) for id in call[use.form.results]]
    after = {at: entries.get(call[at]) for at in use.tensor_positions if at not in use.dies}
    if not all(isinstance(x, Entry) for x in (*made, *after.values())):
        return
    number = client.last_local - 1
    position_of = {call[at]: at for at in sorted(use.form.ids)}
    tags = _tags(client, planned, position_of)
    lines = {first_result(code): ins.line for ins, code in planned if ins is not None}
    definitions, picks = {}, {}
    for worker, code in codes.items():
        stretch = Stretch(code, _kind_of(client))
        yield len(code) // 3
        share = _share(stretch, number, position_of, tags, lines, use.program.compile)
        if share is None:
            return
        yield len(code) // 2
        definitions[worker] = write(share[0])
        picks[worker] = (len(call), *share[1])
        yield len(code) // 6
    client.last_local = client.locals["trace", number] = number
    sharded = ShardedProgram(number, definitions, picks)
    sharded.entries = tuple(x for x in made if isinstance(x, Entry))
    was = dict(zip(use.tensor_positions, before))
    sharded.relaid = tuple((at, x) for at, x in after.items() if isinstance(x, Entry) and x is not was[at])
    yield sharded


def _kind_of(client: Client) -> KindOf:
    def kind_of(number: int) -> Kind | None:
        use = client.uses.get(number)
        return use.kind if isinstance(use, KindPlans) else client.kinds.get(number)

    return kind_of


def _tags(client: Client, planned: list[tuple[Instruction | None, tuple]], position_of: dict[int, int]) -> dict[Any, int]:
    """For the result of each instruction, the position in the call of the id that serves as its collectives' tag: its own, else
    that of the next result that outlives the call; after the last of those, the call's first result."""
    tags: dict[Any, int] = {}
    at = FIRST_RESULT if position_of else 0
    for ins, code in reversed(planned):
        if ins is not None:
            results = code[client.uses[code[0]].form.results]
            at = next((position_of[r] for r in results if r in position_of), at)
            tags[results[0]] = at
    return tags


def _share(
    stretch: Stretch, number: int, position_of: dict[int, int], tags: dict[Any, int], lines: dict[Any, str], compile: bool
) -> tuple[Program, tuple[int, ...]] | None:  # fmt: skip
    """One worker's share of a call as a program, and the positions of its results, inputs and numbers in the client's call.
    None if it uses tensors that are not in the call."""
    left = stretch.left
    known = flat(stretch.code)
    inputs = [*(known[p] for p in stretch.first_at), *stretch.rest]
    if not all(id in position_of for id in (*inputs, *left)):
        return None
    slots: dict[int, int] = {}  # number of the hole, by position in the call
    holes: dict[int, int] = {}
    for at, ins, kind, form in walk(stretch.code, stretch.kind_of):
        for i in form.numbers:
            if type(ins[i]) is Hole:
                holes[at + i] = slots.setdefault(ins[i].index, len(slots))
        if kind.row.collective:  # its last number is the tag
            holes[at + form.numbers[-1]] = slots.setdefault(tags[tag_of(ins)], len(slots))
    dying = [*stretch.ended, *range(len(stretch.first_at), len(inputs))]
    program = stretch.program(
        number, list(left.values()), dying, holes, compile=compile, unused=len(stretch.rest),
        line=lambda _, ins: lines.get(first_result(ins), ""),
    )  # fmt: skip
    return program, (*(position_of[id] for id in left), *(position_of[id] for id in inputs), *slots)
