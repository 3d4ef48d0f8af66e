"""One worker's share of a trace with collectives. The kernels between two collectives are one program; collectives stay
instructions, in the order of the trace, as all workers execute them in that order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from gt.program import Hole, Instruction, Program
from gt.program.code import Form, arguments, encoded, first_result, free, frees_of, number_of, tag_of
from gt.program.stretch import pick
from gt.program.wire import TraceDef
from gt.spec import Spec
from gt.worker.engine import Engine
from gt.worker.programs.compile import COLLECTIVE, TRACE, Executable, Ready
from gt.worker.programs.group_recordings import GroupPeers, RecordedTrace, agreement
from gt.worker.programs.passes.segments import SHORT, FreedValues, ProgramSegment, segments
from gt.worker.refusals import RefusedKind

PRIVATE = -(1 << 50)  # ids of values local to a call, downwards; calls run one after another, so all use the same ids
SEGMENTS = -(1 << 61)  # numbers of the programs between collectives, downwards
FEW = f"fewer than {SHORT} ops between two collectives run one by one"


class ShardedTrace:
    """`code(call)` yields the instructions of a call. Each is a tuple of slots: the first ones are the elements of the call,
    the rest constants."""

    source = "sharded trace"

    def __init__(
        self, program: Program, space: Any, engine: Engine, say: Any, show: Any, collectives: GroupPeers | None = None
    ) -> None:
        self.program, self.space, self.engine, self.say, self.show = program, space, engine, say, show
        self.number, self.result_count, self.calls = program.number, len(program.results), 0
        self.kinds = {n: space.kinds[n][2] for n in program.kinds}
        self.ops = Counter(ins.op.name for ins in program.instructions)
        self.ways: Counter[str] = Counter()
        for ins in program.instructions:
            self.ways.update(self.kinds[ins.number].ways)
        self.length = len(program.instructions)
        self.title = f"a trace of {self.length} ops"
        form = self.form = Form.of_call(self.result_count, program.inputs, program.holes)
        self.slot_of = dict(zip(program.results, form.made))  # slot of each value's id
        self.slot_of |= dict(enumerate(form.tensor_positions, 1))
        self.tail: list[Any] = []
        self.steps: list[Any] = []
        self.segments: list[int] = []  # numbers of its programs
        self.stages = {"as received": program}
        show("as received", program)
        self.faster: Any = None  # the whole trace as one recording
        self.uncompiled = 0  # instructions in segments too short for a program, if the user wants the trace compiled
        alone = False
        for step in segments(program):
            if not isinstance(step, FreedValues):
                before, alone = alone, isinstance(step, Instruction) and not step.op.collective
                self.uncompiled += alone and not before and program.compile
            if isinstance(step, ProgramSegment):
                self._segment(step)
            elif isinstance(step, FreedValues):
                for value in step.values:
                    number, slot = free(self._value(value))
                    self._step((self._slot(number), slot))
            else:
                self._plain(step)
        self.recorded = self._recorded(collectives) if collectives is not None else None

    def _recorded(self, collectives: GroupPeers) -> RecordedTrace | None:
        """The whole trace as one recording, if the engine records and all its collectives are of one group."""
        groups = {ins.kind.settings["group"] for ins in self.program.instructions if ins.op.collective}
        if len(groups) > 1:
            return None
        form, (group,) = self.form, groups
        self.encoding, self.inputs, self.failed = form, self.program.inputs, ""
        self.dies = tuple(form.at(i) for i in self.program.dying)
        self.faster = self.engine.group_recording(self, collectives, group)
        if self.faster is None:
            return None
        recorded = RecordedTrace(self, self.faster, collectives, group)
        self.recorded_number = self.space.segment()
        self.space.kinds[self.recorded_number] = (COLLECTIVE, recorded.ready.run, recorded.ready)
        self.segments.append(self.recorded_number)
        return recorded

    def code(self, call: tuple) -> Iterator[tuple]:
        self.calls += 1
        recorded = self.recorded
        if recorded is not None and self.calls > 1 and recorded.wanted():
            yield recorded.instruction(self.recorded_number, call)
            if recorded.replayed:
                return
        slots = (*call, *self.tail)
        for step in self.steps:
            yield step(slots)

    def stats(self) -> dict[str, float]:
        collectives = sum(self.kinds[ins.number].form == COLLECTIVE for ins in self.program.instructions)
        own = {"sharded_programs": 1, "sharded_calls": self.calls, "sharded_collectives": self.calls * collectives}
        short = {"fallbacks": self.uncompiled, f"fallback: {FEW}": self.uncompiled} if self.uncompiled else {}
        return own | short | (self.faster.stats() if self.faster is not None else {})

    def stage(self, name: str, program: Program) -> Program:
        """Note the result of a pass."""
        self.stages[name] = program
        self.show(name, program)
        return program

    def tell(self, what: str, seconds: float) -> None:
        self.say(f"{self.title} (number {self.number}): {what}", seconds, self.program.line)

    def give_up(self, why: str) -> None:
        """Give up the recording; the statistics show the reason."""
        self.failed = why
        self.tell(f"left to the programs between its collectives: {why}", 0.0)

    def _segment(self, part: ProgramSegment) -> None:
        """Add a program between two collectives."""
        number = self.space.segment()
        program = part.program.with_instructions(part.program.instructions, number=number)
        used = {n: self.kinds[n] for n in program.kinds}
        executable = Executable(
            program,
            used,
            self.engine,
            False,
            self.say,
            self.space.warn,
            show=self.show,
            turns=self.space.turns,
            ticks=self.space.ticks,
            constants=self.space.room_for_constants(),
        )
        executable.source = "segment"
        self.space.kinds[number] = (TRACE, executable.run, executable)
        self.segments.append(number)
        given = (*map(self._value, part.inputs), *(self.form.numbers[h] for h in part.holes))
        self._step(encoded(self._slot(number), map(self._value, part.results), given))

    def _plain(self, ins: Instruction) -> None:
        """Add a single instruction."""
        operands = [
            self._value(o) if type(spec) is Spec else self.form.numbers[o.index] if type(o) is Hole else self._slot(o)
            for o, spec in zip(ins.operands, ins.kind.ins)
        ]
        self._step(encoded(self._slot(ins.number), map(self._value, ins.results), operands))

    def _step(self, slots: tuple) -> None:
        self.steps.append(pick(slots))

    def _slot(self, value: Any) -> int:
        self.tail.append(value)
        return self.form.length + len(self.tail) - 1

    def _value(self, value: int) -> int:
        if value not in self.slot_of:
            self.slot_of[value] = self._slot(PRIVATE - value)
        return self.slot_of[value]


class RefusedShare(RefusedKind):
    """In place of a share that this worker cannot prepare. A call fails, and takes part in the share's collectives with the
    failure in place of operands, as the other members of their groups wait for this worker."""

    def __init__(self, trace: TraceDef, wrong: Exception, space: Any, collectives: GroupPeers) -> None:
        fails = RefusedKind.trace(trace, wrong, more=1)  # the results, and before them the operand of all its collectives
        super().__init__(fails.title, wrong, len(trace.results))
        self.calls, self.segments = 0, [space.segment()]
        space.kinds[self.segments[0]] = (TRACE, fails.run, fails)
        given = Form.of_call(self.result_count, trace.inputs, len(trace.holes)).numbers
        hole = {at: given[i] for i, positions in enumerate(trace.holes) for at in positions}
        self.steps: list[tuple[int, Ready, int | None, Any]] = []  # number, kind, the tag's position in a call, or it
        for index, code in enumerate(trace.body):
            if space.is_collective(code):
                ready = space.kinds[number_of(code)][2]
                self.steps.append((number_of(code), ready, hole.get((index, ready.encoding.numbers[-1])), tag_of(code)))
        groups = {ready.kind.settings["group"] for _, ready, _, _ in self.steps}
        self.collectives, self.group = collectives, groups.pop() if len(groups) == 1 else ()
        self.asks = agreement(space.client, collectives, self.group)
        self.segments.append(space.segment())
        space.kinds[self.segments[1]] = (COLLECTIVE, self.asks.run, self.asks)

    def code(self, call: tuple) -> Iterator[tuple]:
        self.calls += 1
        yield encoded(self.segments[0], (PRIVATE,), arguments(call))
        if self.calls > 1 and self.group and self.collectives.records(self.group):  # the others ask before they record it
            yield self._failed(self.segments[1], self.asks, first_result(call) if self.result_count else 0)
        for number, ready, at, tag in self.steps:
            yield self._failed(number, ready, tag if at is None else call[at])
        most = max(ready.result_count for _, ready, _, _ in self.steps)
        yield from frees_of(PRIVATE - i for i in range(1 + most))

    def _failed(self, number: int, ready: Ready, tag: int) -> tuple:
        """A collective without operands, whose results are not used."""
        results = [PRIVATE - 1 - i for i in range(ready.result_count)]
        return encoded(number, results, (*[PRIVATE] * len(ready.tensor_positions), tag))


def unfold(space: Any, code: Iterable[tuple]) -> Iterator[tuple]:
    """Instructions with the calls of sharded traces expanded."""
    kinds = space.kinds
    for ins in code:
        ready = kinds[ins[0]][2] if ins[0] in kinds else None
        if type(ready) is ShardedTrace or type(ready) is RefusedShare:
            space.within = first_result(ins) if ready.result_count else 0
            yield from ready.code(ins)
            space.within = 0
        else:
            yield ins
