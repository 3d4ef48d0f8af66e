"""`GT_WORKER_BATCH_SIZE=N`: every N consecutive instructions that are not calls of traces run as one unit. A unit is identified
by its topology (kinds, data flow, values freed inside), never by the names of its ops alone, and is compiled like a trace
once it is hot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import count
from typing import Any

from gt.ops import Kind
from gt.program.code import bits, encoded, free, is_free
from gt.program.stretch import Stretch, flat
from gt.worker.programs.compile import TRACE, Executable, Ready

FIRST = -(1 << 60)  # numbers of units, downwards: below those of clients' and the dispatcher's kinds
KNOWN = 256  # most units kept for a client


class Unit(Executable):
    """Consecutive instructions as a program. `chunk` are the instructions of the current call, to run one by one if it
    fails."""

    source = "unit"
    chunk: list[tuple] = []
    values: tuple = ()  # numbers in the instructions it was made from, in order
    holes: frozenset[int] = frozenset()  # indices of the numbers that are arguments of each call

    def run(self, table: dict[int, Any], ins: tuple) -> None:
        held = {id: table[id] for id in ins[self.encoding.inputs]}
        try:
            super().run(table, ins)
        except Exception:  # a kernel may raise anything: the instructions run again one by one, on the same inputs
            table.update(held)
            raise


class Units:
    def __init__(self, size: int) -> None:
        self.size = size
        self.numbers = count(FIRST, -1)

    def fold(self, space: Any, code: Iterable[tuple], worker: Any) -> Iterator[tuple]:
        """The same instructions, with those of a unit replaced by its call."""
        chunk: list[tuple] = []
        ops = 0
        for ins in code:
            if ops and is_free(ins):
                chunk.append(ins)
                continue
            if ops == self.size:
                yield from self._call(space, chunk, worker)
                chunk, ops = [], 0
            if _fits(space, ins):
                chunk.append(ins)
                ops += 1
            else:
                yield from chunk
                yield ins
                chunk, ops = [], 0
        yield from self._call(space, chunk, worker) if ops == self.size else chunk

    def _call(self, space: Any, chunk: list[tuple], worker: Any) -> Iterator[tuple]:
        def kind_of(number: int) -> Kind | None:
            ready = space.kinds[number][2]
            return ready.kind if type(ready) is Ready else None

        stretch = Stretch(chunk, kind_of)
        known = flat(chunk)
        numbers = tuple([known[p] for p in stretch.number_at])
        key = stretch.key
        unit = space.units.get(key)
        if unit is not None and unit.number not in space.kinds:
            unit = None
        if unit is None or not unit.holes.issuperset(_changed(numbers, unit.values)):
            unit = self._learn(space, key, stretch, numbers, unit, worker)
        space.units.move_to_end(key)
        unit.chunk = chunk
        given = [numbers[i] for i in sorted(unit.holes)]
        yield encoded(unit.number, stretch.left, (*(known[p] for p in stretch.first_at), *given))
        yield from map(free, stretch.rest)

    def _learn(self, space: Any, key: tuple, stretch: Stretch, numbers: tuple, before: Unit | None, worker: Any) -> Unit:
        """A unit for this chunk. Numbers that differ from those of `before`, a unit of the same topology, become arguments."""
        holes: frozenset[int] = frozenset()
        if before is not None:
            holes = before.holes.union(_changed(numbers, before.values))
            self._drop(space, before, worker)
        places = {stretch.number_at[i]: hole for hole, i in enumerate(sorted(holes))}
        program = stretch.program(next(self.numbers), list(stretch.left.values()), stretch.ended, places)
        kinds = {n: space.kinds[n][2] for n in program.kinds}
        show = worker.definitions.show
        unit = Unit(
            program, kinds, worker.engine, True, partial(worker.report_program, space.client), show=show, ticks=space.ticks
        )
        unit.values, unit.holes = numbers, holes
        space.kinds[unit.number] = (TRACE, unit.run, unit)
        space.units[key] = unit
        if len(space.units) > KNOWN:
            self._drop(space, space.units.popitem(last=False)[1], worker)
        return unit

    def _drop(self, space: Any, unit: Unit, worker: Any) -> None:
        if unit.number in space.kinds:
            worker.counts.retire(space, unit.number)
            del space.kinds[unit.number]


def _changed(numbers: tuple, values: tuple) -> list[int]:
    """The indices of the numbers that are not the same."""
    return [i for i, (v, w) in enumerate(zip(numbers, values)) if (v != w or not v) and bits(v) != bits(w)]


def _fits(space: Any, ins: tuple) -> bool:
    """Whether an instruction can be part of a unit: a kernel of this worker's engine."""
    form, _, ready = space.kinds.get(ins[0], (TRACE, None, None))
    return form < TRACE and ready.kind.row.kernel is not None
