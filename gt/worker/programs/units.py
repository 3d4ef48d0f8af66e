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
    """A chunk read through once: its topology as `key`, what it takes in and leaves, and frees that are none of its."""

    def __init__(self, space: Any, chunk: list[tuple]) -> None:
        self.space, self.chunk = space, chunk
        self.inputs: list[int] = []
        self.numbers: list[Any] = []
        self.places: list[tuple[int, int]] = []  # of the numbers: index in the body, index in the instruction
        self.rest: list[tuple] = []
        self.made: list[int] = []
        self.freed: set[int] = set()
        names: dict[int, int] = {}
        key: list[int] = []
        index = 0
        for ins in chunk:
            if ins[0] == FREE and ins[1] not in names:
                self.rest.append(ins)
                continue
            key.append(ins[0])
            if ins[0] == FREE:
                self.freed.add(ins[1])
                key.append(names[ins[1]])
            else:
                self._op(ins, names, key, index)
            index += 1
        self.key = tuple(key)
        self.outs = [id for id in self.made if id not in self.freed]

    def _op(self, ins: tuple, names: dict[int, int], key: list[int], index: int) -> None:
        ready = self.space.kinds[ins[0]][2]
        for i in range(1 + ready.outs, len(ins)):
            if i not in ready.tensors:
                self.numbers.append(ins[i])
                self.places.append((index, i))
                continue
            if ins[i] not in names:
                names[ins[i]] = len(names)
                self.inputs.append(ins[i])
            key.append(names[ins[i]])
        for id in ins[1 : 1 + ready.outs]:
            names[id] = len(names)
            self.made.append(id)

    def definition(self, number: int, holes: list[int], compile: bool) -> TraceDef:
        register = {id: i + 1 for i, id in enumerate((*self.inputs, *self.made))}
        body: list[tuple] = []
        for ins in self.chunk:
            if ins[0] == FREE:
                if ins[1] in register:
                    body.append((FREE, register[ins[1]]))
                continue
            ready = self.space.kinds[ins[0]][2]
            ids = {*range(1, 1 + ready.outs), *ready.tensors}
            body.append(tuple(register[x] if i in ids else x for i, x in enumerate(ins)))
        return TraceDef(
            number, len(self.inputs), body, tuple(register[id] for id in self.outs),
            tuple((self.places[i],) for i in holes), tuple(i for i, id in enumerate(self.inputs) if id in self.freed), compile,
        )  # fmt: skip
