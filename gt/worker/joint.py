"""A trace with collectives inside: its share of one worker. The kernels between two collectives are one program; collectives
stay instructions, in the order of the trace, since workers meet in that order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any

from gt.transport.messages import FREE, TraceDef
from gt.worker.batch import Reading
from gt.worker.compile import TALK, TRACE, Program, Ready
from gt.worker.engine import Engine

PRIVATE = -(1 << 50)  # ids of what lives only inside a call, downwards; calls come one after another, so all use the same
SEGMENTS = -(1 << 61)  # numbers of programs between collectives, downwards
SHORT = 3  # ops from which a program is worth its call


class Over:
    """An update whose parameter and state end with it. They leave the table first, so that they can be written over."""

    def __init__(self, ready: Ready, kernel: Callable[[list[Any]], Any]) -> None:
        self.ready, self.kernel, self.kind = ready, kernel, ready.kind
        self.outs, self.tensors, self.ops, self.ways = ready.outs, ready.tensors, ready.ops, ready.ways
        self.dies = tuple(i for i in ready.tensors if i != ready.tensors[1])
        self.calls = 0

    def run(self, table: dict[int, Any], ins: tuple) -> None:
        lead = 1 + self.outs
        operands = list(ins[lead:])
        for i in self.tensors:
            operands[i - lead] = table[ins[i]]
        for i in self.dies:
            del table[ins[i]]
        try:
            made = self.kernel(operands)
        except Exception:
            table.update((ins[i], operands[i - lead]) for i in self.dies)  # one of them may be the cause
            raise
        for id, array in zip(ins[1:], made if self.outs > 1 else (made,)):
            table[id] = array

    def stats(self) -> dict[str, float]:
        return {}


class Joint:
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
        self.overs: dict[int, int] = {}  # of updates in place, by those of the updates
        self.freed = {ins[1] for ins in trace.body if ins[0] == FREE}
        self.last: dict[Any, int] = {}  # register -> the last instruction that names it
        for index, ins in enumerate(trace.body):
            if ins[0] != FREE:
                self.last.update((ins[i], index) for i in self.kinds[int(ins[0])].tensors)
        self._split()

    def code(self, call: tuple) -> Iterator[tuple]:
        self.calls += 1
        slots = (*call, *self.tail)
        for step in self.steps:
            yield step(slots)

    def stats(self) -> dict[str, float]:
        talks = sum(self.kinds[int(ins[0])].form == TALK for ins in self.trace.body if ins[0] != FREE)
        return {"joint_traces": 1, "joint_calls": self.calls, "joint_collectives": self.calls * talks}

    # Splitting

    def _split(self) -> None:
        chunk: list[int] = []  # indices in the body, of what is to be one program
        named: set[int] = set()
        for index, ins in enumerate(self.trace.body):
            if ins[0] == FREE and ins[1] not in named:
                self._step((self._slot(FREE), self._register(int(ins[1]))))
            elif ins[0] != FREE and (self.kinds[int(ins[0])].form == TALK or self._ends(index)):
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
        if sum(body[i][0] != FREE for i in chunk) < SHORT:
            for index in chunk:
                self._plain(index)
            return
        read = Reading(self.space, [body[i] for i in chunk])
        assert not read.rest
        given = [k for k, (at, i) in enumerate(read.places) if (chunk[at], i) in self.holes]
        number = self.space.segment()
        definition = read.definition(number, given, self.trace.compile)
        kinds = {int(ins[0]): self.kinds[int(ins[0])] for ins in definition.body if ins[0] != FREE}
        faster = self.engine.device == "cpu"  # a device must not record a graph while others wait for it in a collective
        program = Program(definition, kinds, self.engine, False, self.say, faster)
        self.space.kinds[number] = (TRACE, program.run, program)
        self.segments.append(number)
        numbers = (self.holes[chunk[read.places[k][0]], read.places[k][1]] for k in given)
        self._step((self._slot(number), *map(self._register, read.outs), *map(self._register, read.inputs), *numbers))

    def _ends(self, index: int) -> bool:
        """Whether an instruction is an update and the last that names what it updates."""
        ins = self.trace.body[index]
        ready = self.kinds[int(ins[0])]
        if not ready.kind.row.updates or len({ins[i] for i in ready.tensors}) < len(ready.tensors):
            return False
        written = {ins[i] for i in ready.tensors if i != ready.tensors[1]}
        return written <= self.freed and all(self.last[r] == index for r in written)

    def _over(self, number: int) -> int:
        """The number under which an update may write over what ends with it."""
        if number not in self.overs:
            ready = self.kinds[number]
            kernel = self.engine.renew(ready.kind)
            if kernel is None:
                self.overs[number] = number
            else:
                over = Over(ready, kernel)
                self.overs[number] = self.space.segment()
                self.space.kinds[self.overs[number]] = (TRACE, over.run, over)
                self.segments.append(self.overs[number])
        return self.overs[number]

    def _plain(self, index: int) -> None:
        """An instruction by itself."""
        ins = self.trace.body[index]
        if ins[0] == FREE:
            self._step((self._slot(FREE), self._register(int(ins[1]))))
            return
        ready = self.kinds[int(ins[0])]
        ids = {*range(1, 1 + ready.outs), *ready.tensors}
        if self._ends(index):
            ins = (self._over(int(ins[0])), *ins[1:])
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
        if type(ready) is Joint:
            space.within = ins[1] if ready.outs else 0
            yield from ready.code(ins)
            space.within = 0
        else:
            yield ins
