"""Calls of traces whose tensors lie on several workers. The first call for a layout of the inputs is taken apart and planned
op by op; what came of it for each worker is kept as a trace of its own, collectives inside. Later calls are one instruction
a worker."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from gt.dispatcher import policy
from gt.dispatcher.flow import Flow
from gt.dispatcher.tables import Client, Entry, Tables, TracePlans
from gt.ops import Kind
from gt.transport.messages import FREE, Instruction, TraceDef


class Hole:
    """Stands for a number of the call while it is planned, so that it can be found again in what is planned."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


def marked(use: TracePlans, call: Instruction) -> tuple:
    """The call with its numbers marked."""
    first = use.length - len(use.definition.holes)
    return (*call[:first], *map(Hole, range(first, use.length)))


def filled(code: list[tuple], call: Instruction) -> list[tuple]:
    """Instructions with the call's numbers where they are marked."""
    return [tuple(call[x.index] if type(x) is Hole else x for x in ins) for ins in code]


class ShardedProgram:
    """A trace planned for one layout of its inputs: what each worker is told once, and which of the call's elements its own
    call is made of."""

    __slots__ = ("solo", "number", "definitions", "picks", "outs", "relaid", "told")

    def __init__(self, number: int, definitions: dict[int, TraceDef], picks: dict[int, tuple[int, ...]]) -> None:
        self.solo, self.number, self.definitions, self.told = None, number, definitions, False
        self.picks = [(worker, _picking(places)) for worker, places in sorted(picks.items())]
        self.outs: tuple[Entry, ...] = ()
        self.relaid: tuple[tuple[int, Entry], ...] = ()

    def write(self, tables: Tables, client: Client, use: TracePlans, call: tuple, flow: Flow) -> None:
        """A call of this trace for each worker, and how its tensors lie afterwards."""
        if not self.told:
            self.told = True
            for worker, definition in self.definitions.items():
                client.told.setdefault(worker, set()).add(self.number)
                flow.traces.setdefault(worker, []).append(definition)
        slots = (*call, self.number)
        for worker, pick in self.picks:
            flow.queue(worker).append(pick(slots))
        entries = client.entries
        for id, out in zip(call[1:], self.outs):
            entries[id] = out
            policy.count(tables, client, id, out)
        for at, entry in self.relaid:
            entries[call[at]] = entry
        for at in use.dies:
            gone = entries.pop(call[at], None)
            if type(gone) is Entry:
                policy.uncount(tables, client, call[at], gone)


def _picking(places: tuple[int, ...]) -> Callable[[tuple], tuple]:
    if len(places) == 1:
        at = places[0]
        return lambda slots: (slots[at],)
    pick: Any = itemgetter(*places)
    return pick


def learn(
    client: Client, use: TracePlans, call: tuple, before: tuple, codes: dict[int, list], lines: list
) -> ShardedProgram | None:
    """What a call became, for the next of its kind. `before` is how its inputs lay, `lines` the instructions it stands for.
    None where that cannot be kept: something was lost on the way."""
    entries = client.entries
    outs = [entries.get(id) for id in call[1 : 1 + use.outs]]
    after = {at: entries.get(call[at]) for at in use.at if at not in use.dies}
    if not all(isinstance(x, Entry) for x in (*outs, *after.values())):
        return None
    number = client.last_local - 1
    place = {id: at for at, id in enumerate(call[: 1 + use.outs + use.definition.inputs]) if at}
    tags = _tags(client, lines, place)
    definitions, picks = {}, {}
    for worker, code in codes.items():
        made = _Writing(client, place, tags, code)
        if made.stray:
            return None
        definitions[worker] = made.definition(number, use.definition.compile)
        picks[worker] = (len(call), *made.picks())
    client.last_local = client.locals["trace", number] = number
    joint = ShardedProgram(number, definitions, picks)
    joint.outs = tuple(x for x in outs if isinstance(x, Entry))
    was = dict(zip(use.at, before))
    joint.relaid = tuple((at, x) for at, x in after.items() if isinstance(x, Entry) and x is not was[at])
    return joint


def _tags(client: Client, lines: list, place: dict[int, int]) -> dict[Any, int]:
    """By the result of each instruction, where in the call the id stands that tells of it: its own, or the next one's that is
    left when the call is done; behind the last of those, the call's first."""
    tags: dict[Any, int] = {}
    at = 1 if place else 0
    for ins in reversed(lines):
        if ins[0] != FREE:
            at = next((place[r] for r in ins[1 : 1 + client.uses[ins[0]].outs] if r in place), at)
            tags[ins[1]] = at
    return tags


class _Writing:
    """One worker's instructions, written over registers: each result has one of its own, inputs come first."""

    def __init__(self, client: Client, place: dict[int, int], tags: dict[Any, int], code: list[tuple]) -> None:
        self.client, self.place, self.tags = client, place, tags
        self.inputs: dict[int, int] = {}  # ids -> registers
        self.names: dict[Any, Any] = {}  # ids -> what they go by so far; results as (n,) until the inputs are counted
        self.made = 0
        self.dies: list[int] = []
        self.holes: dict[int, list[tuple[int, int]]] = {}  # by place in the call
        self.body: list[tuple] = []
        for ins in code:
            if ins[0] == FREE:
                self.body.append(self._free(ins))
            else:
                self._op(ins)
        self.left = {id: name for id, name in self.names.items() if type(name) is tuple}
        self.stray = any(id not in place for id in (*self.inputs, *self.left))

    def _use(self, id: int) -> Any:
        if id not in self.names:
            self.names[id] = self.inputs[id] = len(self.inputs) + 1
        return self.names[id]

    def _free(self, ins: tuple) -> tuple:
        name = self._use(ins[1])
        del self.names[ins[1]]
        if type(name) is int:
            self.dies.append(name - 1)
        return (FREE, name)

    def _op(self, ins: tuple) -> None:
        kind: Kind = self.client.uses[ins[0]].kind if ins[0] > 0 else self.client.kinds[ins[0]]
        outs = len(kind.outs)
        row: list[Any] = [ins[0], *([0] * outs), *ins[1 + outs :]]
        index = len(self.body)
        for i in kind.tensors:
            row[1 + outs + i] = self._use(ins[1 + outs + i])
        for i in range(1 + outs, len(ins)):
            if type(ins[i]) is Hole:
                row[i] = self._hole(ins[i].index, index, i)
        if kind.row.collective:
            row[-1] = self._hole(self.tags[ins[-1]], index, len(ins) - 1)
        over = [self.names[id] for id in ins[1 : 1 + outs] if type(self.names.get(id)) is tuple]
        for i in range(1, 1 + outs):
            self.made += 1
            row[i] = self.names[ins[i]] = (self.made,)
        self.body.append(tuple(row))
        self.body += [(FREE, name) for name in over]  # a sum takes the place of its terms

    def _hole(self, at: int, index: int, i: int) -> int:
        self.holes.setdefault(at, []).append((index, i))
        return 0

    def definition(self, number: int, compile: bool) -> TraceDef:
        first = len(self.inputs)
        body = [tuple(first + x[0] if type(x) is tuple else x for x in ins) for ins in self.body]
        outs = tuple(first + name[0] for name in self.left.values())
        holes = tuple(map(tuple, self.holes.values()))
        return TraceDef(number, first, body, outs, holes, tuple(self.dies), compile)

    def picks(self) -> tuple[int, ...]:
        """The places of this worker's results, inputs and numbers in the client's call."""
        return (*(self.place[id] for id in self.left), *(self.place[id] for id in self.inputs), *self.holes)
