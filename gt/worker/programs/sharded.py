"""A trace with collectives inside: its share of one worker. The kernels between two collectives are one program; collectives
stay instructions, in the order of the trace, since workers meet in that order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any

from gt.transport.messages import FREE, TraceDef
from gt.worker.engine import Engine
from gt.worker.programs.compile import COLLECTIVE, TRACE, Program
from gt.worker.programs.units import Reading

PRIVATE = -(1 << 50)  # ids of what lives only inside a call, downwards; calls come one after another, so all use the same
SEGMENTS = -(1 << 61)  # numbers of programs between collectives, downwards
SHORT = 3  # ops from which a program is worth its call; updates are in any case, as a program writes them in place


# A device must not record a graph while others wait for it in a collective.
ON_DEVICES = "on a GPU, programs between collectives are not compiled"
FEW = f"fewer than {SHORT} ops between two collectives run one by one"


class ShardedTrace:
    """`code(call)` gives the instructions that a call stands for."""

    def __init__(self, trace: TraceDef, space: Any, engine: Engine, say: Any) -> None:
        self.trace, self.space, self.engine, self.say = trace, space, engine, say
        self.outs, self.calls = len(trace.outs), 0
        readies = [space.kinds[int(ins[0])][2] for ins in trace.body if ins[0] != FREE]
        self.kinds = {int(ins[0]): space.kinds[ins[0]][2] for ins in trace.body if ins[0] != FREE}
        self.ops = Counter(r.kind.row.name for r in readies)
        self.ways: Counter[str] = Counter()
        for r in readies:
            self.ways.update(r.ways)
        self.length = len(readies)
        self.kind = f"a trace of {self.length} ops"
        first = 1 + self.outs
        self.place = {r: 1 + i for i, r in enumerate(trace.outs)}  # registers -> where in the slots their ids stand
        self.place |= {i + 1: first + i for i in range(trace.inputs)}
        self.width = first + trace.inputs + len(trace.holes)
        self.holes = {p: first + trace.inputs + i for i, places in enumerate(trace.holes) for p in places}
        self.tail: list[Any] = []
        self.steps: list[Any] = []
        self.segments: list[int] = []  # numbers of the programs
        self.uncompiled = 0  # stretches too short for a program, where the user wants the trace compiled
        self._split()

    def code(self, call: tuple) -> Iterator[tuple]:
        self.calls += 1
        slots = (*call, *self.tail)
        for step in self.steps:
            yield step(slots)

    def stats(self) -> dict[str, float]:
        collectives = sum(self.kinds[int(ins[0])].form == COLLECTIVE for ins in self.trace.body if ins[0] != FREE)
        own = {"sharded_programs": 1, "sharded_calls": self.calls, "sharded_collectives": self.calls * collectives}
        short = {"fallbacks": self.uncompiled, f"fallback: {FEW}": self.uncompiled} if self.uncompiled else {}
        return own | short

    # Splitting

    def _split(self) -> None:
        chunk: list[int] = []  # indices in the body, of what is to be one program
        named: set[int] = set()
        for index, ins in enumerate(self.trace.body):
            if ins[0] == FREE and ins[1] not in named:
                self._step((self._slot(FREE), self._register(int(ins[1]))))
            elif ins[0] != FREE and self.kinds[int(ins[0])].form == COLLECTIVE:
                self._close(chunk)
                chunk, named = [], set()
                self._plain(index)
            else:
                chunk.append(index)
                if ins[0] != FREE:
                    ready = self.kinds[int(ins[0])]
                    named.update(int(ins[i]) for i in (*range(1, 1 + ready.outs), *ready.tensors))
        self._close(chunk)

    def _close(self, chunk: list[int]) -> None:
        body = self.trace.body
        kinds = [self.kinds[int(body[i][0])] for i in chunk if body[i][0] != FREE]
        if len(kinds) < SHORT and not any(r.kind.row.updates for r in kinds):
            for index in chunk:
                self._plain(index)
            self.uncompiled += bool(kinds) and self.trace.compile
            return
        read = Reading(self.space, [body[i] for i in chunk])
        assert not read.rest
        given = [k for k, (at, i) in enumerate(read.places) if (chunk[at], i) in self.holes]
        number = self.space.segment()
        definition = read.definition(number, given, self.trace.compile)
        used = {int(ins[0]): self.kinds[int(ins[0])] for ins in definition.body if ins[0] != FREE}
        plain = "" if self.engine.device == "cpu" else ON_DEVICES
        program = Program(definition, used, self.engine, False, self.say, self.space.warn, plain)
        self.space.kinds[number] = (TRACE, program.run, program)
        self.segments.append(number)
        numbers = (self.holes[chunk[read.places[k][0]], read.places[k][1]] for k in given)
        self._step((self._slot(number), *map(self._register, read.outs), *map(self._register, read.inputs), *numbers))

    def _plain(self, index: int) -> None:
        """An instruction by itself."""
        ins = self.trace.body[index]
        if ins[0] == FREE:
            self._step((self._slot(FREE), self._register(int(ins[1]))))
            return
        ready = self.kinds[int(ins[0])]
        ids = {*range(1, 1 + ready.outs), *ready.tensors}
        places = [
            self._register(int(x)) if i in ids else self.holes.get((index, i)) or self._slot(x)
            for i, x in enumerate(ins)
        ]  # fmt: skip
        self._step(tuple(places))

    def _step(self, places: Iterable[int]) -> None:
        self.steps.append(itemgetter(*places))

    def _slot(self, value: Any) -> int:
        self.tail.append(value)
        return self.width + len(self.tail) - 1

    def _register(self, register: int) -> int:
        if register not in self.place:
            self.place[register] = self._slot(PRIVATE - register)
        return self.place[register]


def unfold(space: Any, code: Iterable[tuple]) -> Iterator[tuple]:
    """Instructions, with what calls of such traces stand for in their place."""
    kinds = space.kinds
    for ins in code:
        ready = kinds[ins[0]][2] if ins[0] in kinds else None
        if type(ready) is ShardedTrace:
            space.within = ins[1] if ready.outs else 0
            yield from ready.code(ins)
            space.within = 0
        else:
            yield ins
