"""`GT_WORKER_BATCH_SIZE=N`: every N instructions in a row that are no call of a trace run as one unit. A unit is known by its
topology (kinds, which result feeds which operand, what is freed inside), never by the names of its ops alone, and is compiled
like a trace once it is hot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from gt.transport.messages import FREE, TraceDef
from gt.worker.programs.compile import TRACE, Program

FIRST = -(1 << 60)  # numbers of units, downwards: no client's and no dispatcher's kind has such a one
KNOWN = 256  # units kept for a client


class Unit(Program):
    """Some instructions as one. `chunk` are those of the call at hand, to be run one by one where it fails."""

    chunk: list[tuple] = []
    values: list[Any] = []  # numbers of the call it was made of, in order
    holes: set[int] = set()  # which of them are given with each call

    def run(self, table: dict[int, Any], ins: tuple) -> None:
        held = {id: table[id] for id in ins[1 + self.outs : 1 + self.outs + self.inputs]}
        try:
            super().run(table, ins)
        except Exception:
            table.update(held)
            raise

    def stats(self) -> dict[str, float]:
        of_trace = super().stats()
        renamed = {"traces": "units", "calls": "unit_calls"}
        return {renamed.get(name, name): value for name, value in of_trace.items()}


class Units:
    def __init__(self, size: int) -> None:
        self.size = size
        self.numbers = count(FIRST, -1)

    def fold(self, space: Any, code: Iterable[tuple], worker: Any) -> Iterator[tuple]:
        """The same instructions, those that make a unit as one call of it."""
        chunk: list[tuple] = []
        ops = 0
        for ins in code:
            if ins[0] == FREE and ops:
                chunk.append(ins)
                continue
            if ops == self.size:
                yield from self._call(space, chunk, worker)
                chunk, ops = [], 0
            if ins[0] != FREE and _fits(space, ins):
                chunk.append(ins)
                ops += 1
            else:
                yield from chunk
                yield ins
                chunk, ops = [], 0
        yield from self._call(space, chunk, worker) if ops == self.size else chunk

    def _call(self, space: Any, chunk: list[tuple], worker: Any) -> Iterator[tuple]:
        read = Reading(space, chunk)
        unit = space.units.get(read.key)
        known = unit is not None and unit.trace.number in space.kinds
        if not known or any(v != w for i, (v, w) in enumerate(zip(read.numbers, unit.values)) if i not in unit.holes):
            unit = self._learn(space, read, unit if known else None, worker)
        space.units.move_to_end(read.key)
        unit.chunk = chunk
        yield (unit.trace.number, *read.outs, *read.inputs, *(read.numbers[i] for i in sorted(unit.holes)))
        yield from read.rest

    def _learn(self, space: Any, read: Reading, before: Unit | None, worker: Any) -> Unit:
        """A unit for this chunk. Numbers that differ from those of one alike are given with the call from now on."""
        holes: set[int] = set()
        if before is not None:
            holes = before.holes | {i for i, (v, w) in enumerate(zip(read.numbers, before.values)) if v != w}
            self._drop(space, before, worker)
        trace = read.definition(next(self.numbers), sorted(holes), False)
        kinds = {int(ins[0]): space.kinds[ins[0]][2] for ins in trace.body if ins[0] != FREE}
        unit = Unit(trace, kinds, worker.engine, True, worker.say)
        unit.values, unit.holes = read.numbers, holes
        space.kinds[trace.number] = (TRACE, unit.run, unit)
        space.units[read.key] = unit
        if len(space.units) > KNOWN:
            self._drop(space, space.units.popitem(last=False)[1], worker)
        return unit

    def _drop(self, space: Any, unit: Unit, worker: Any) -> None:
        if unit.trace.number in space.kinds:
            worker.count(space, unit.trace.number)
            del space.kinds[unit.trace.number]


def _fits(space: Any, ins: tuple) -> bool:
    """Whether an instruction can be part of a unit: a kernel of this worker's engine."""
    form, _, ready = space.kinds.get(ins[0], (TRACE, None, None))
    return form < TRACE and ready.kind.row.kernel is not None


class Reading:
    """A chunk read through once: its topology as `key`, what it takes in and leaves, and frees that are none of its.

    An id may stand for one value after another, as the dispatcher's temporaries do; here each value has a number of its own,
    in the order in which the chunk names them."""

    def __init__(self, space: Any, chunk: list[tuple]) -> None:
        self.space = space
        self.inputs: list[int] = []
        self.numbers: list[Any] = []
        self.places: list[tuple[int, int]] = []  # of the numbers: index in the body, index in the instruction
        self.rest: list[tuple] = []
        self.taken: list[int] = []  # the values of the inputs
        self.made: list[int] = []  # the values that instructions give
        self.freed: set[int] = set()
        self.body: list[tuple] = []  # the instructions over values
        self.named: dict[int, int] = {}  # by id, the value that it stands for
        self.values = 0
        key: list[int] = []
        for ins in chunk:
            if ins[0] != FREE:
                self._op(ins, key)
            elif ins[1] in self.named:
                self._free(self.named.pop(ins[1]), key)
                self.body.append((FREE, key[-1]))
            else:
                self.rest.append(ins)
        self.key = tuple(key)
        made = set(self.made)
        self.left = {id: value for id, value in self.named.items() if value in made}
        self.outs = list(self.left)

    def _name(self, id: int) -> int:
        self.named[id] = self.values
        self.values += 1
        return self.named[id]

    def _free(self, value: int, key: list[int]) -> None:
        self.freed.add(value)
        key += (FREE, value)

    def _op(self, ins: tuple, key: list[int]) -> None:
        ready = self.space.kinds[ins[0]][2]
        row = list(ins)
        key.append(ins[0])
        for i in range(1 + ready.outs, len(ins)):
            if i not in ready.tensors:
                self.numbers.append(ins[i])
                self.places.append((len(self.body), i))
                continue
            if ins[i] not in self.named:
                self.inputs.append(ins[i])
                self.taken.append(self._name(ins[i]))
            row[i] = self.named[ins[i]]
            key.append(row[i])
        over = [self.named[id] for id in ins[1 : 1 + ready.outs] if id in self.named]
        for i in range(1, 1 + ready.outs):
            row[i] = self._name(ins[i])
            self.made.append(row[i])
        self.body.append(tuple(row))
        for value in over:  # what its results take the place of
            self._free(value, key)
            self.body.append((FREE, value))

    def definition(self, number: int, holes: list[int], compile: bool) -> TraceDef:
        register = {value: i + 1 for i, value in enumerate((*self.taken, *self.made))}
        body: list[tuple] = []
        for ins in self.body:
            if ins[0] == FREE:
                body.append((FREE, register[ins[1]]))
                continue
            ready = self.space.kinds[ins[0]][2]
            ids = {*range(1, 1 + ready.outs), *ready.tensors}
            body.append(tuple(register[x] if i in ids else x for i, x in enumerate(ins)))
        dies = tuple(i for i, value in enumerate(self.taken) if value in self.freed)
        outs = tuple(register[value] for value in self.left.values())
        return TraceDef(number, len(self.inputs), body, outs, tuple((self.places[i],) for i in holes), dies, compile)
