"""Runs the instructions of clients on the engine, in order. The results of a failed instruction carry its cause. A run stops
with Parked when a collective waits for other workers, and with Preempted when its client's turn is over."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from itertools import chain, islice, repeat
from operator import is_
from typing import Any, cast

from gt.errors import RemoteError
from gt.program.code import FIRST_RESULT, by_result, first_result, tag_of
from gt.worker.cancel import Cancellation, OrphanedCollective, Parked
from gt.worker.client_values import Broken, ClientValues, Code, check_device, check_inputs, failure_on, run_general
from gt.worker.collectives.mail import Members, PendingCollective
from gt.worker.collectives.mail_transport import OperandFailed
from gt.worker.engine import Engine
from gt.worker.host_memory import HostMemory
from gt.worker.programs.compile import COLLECTIVE, FREED, TRACE, Executable
from gt.worker.programs.rest_of_call import LOCAL, rest_of_call
from gt.worker.programs.sharded import ShardedTrace
from gt.worker.programs.ticks import Ticks
from gt.worker.programs.units import Unit
from gt.worker.quotas import Quotas
from gt.worker.refusals import check_numbers, mismatched_operand
from gt.worker.turns import LIGHT, Preempted, Turn

Instruction = tuple[Any, ...]
SPARE = 1 << 10  # most specs of freed tensors that are kept, in addition to the number of tensors


class InstructionExecutor:
    def __init__(self, engine: Engine, quotas: Quotas, cancellation: Cancellation) -> None:
        self.engine, self.quotas, self.cancellation = engine, quotas, cancellation
        self.streams, self.threads = engine.streams, engine.threads or nullcontext()
        self.host = HostMemory(engine, self.fail)
        self.name = ""  # the worker's, for error messages
        self.turn: Turn | None = None  # set by the shell; without it, each run is executed to its end
        self.questions: Callable[[], None] | None = None  # executes those of interactive clients, on an asynchronous device
        self.light = LIGHT
        self.ticks = Ticks()  # of the instructions inside of programs
        self.failures = 0
        self.skipped = 0  # instructions of departed clients
        self.collectives_begun: Counter[Members] = Counter()  # begun or skipped, by group: the counts of all members agree

    def forget_lost(self, living: frozenset[int]) -> None:
        """Drop the counts of groups with a lost worker, whose collectives fail at once. All counts are sent at each departure
        of a client, so they may not add up over the workers that come and go."""
        for group in [group for group in self.collectives_begun if not living.issuperset(group)]:
            del self.collectives_begun[group]

    def turn_is_over(self) -> bool:
        """Whether to preempt a program."""
        return self.turn is not None and self.turn.over()

    def shared(self) -> bool:
        """Whether other clients are connected: only then are programs of less than a turn preempted."""
        return self.turn is not None and self.turn.several

    def let_in(self) -> None:
        """In the middle of a long call: execute the questions of interactive clients that have arrived."""
        if self.questions is not None and self.turn is not None and self.turn.several:
            self.questions()

    def run(self, values: ClientValues, rest: Code, stopped: Preempted | None = None, length: int = LIGHT + 1) -> None:
        """Execute the rest of a run of so many instructions, beginning with the one at which it was stopped. In a short run
        only large kernels and traces look whether the turn is over."""
        with self.threads:
            if self.turn is None or stopped is None and length <= self.light:
                self.execute(values, rest)
            else:
                self._take_turn(values, rest, self.turn, stopped)

    def _take_turn(self, values: ClientValues, rest: Code, turn: Turn, stopped: Preempted | None) -> None:
        """Execute until the end, or until the turn is over. Large kernels and traces read the clock themselves."""
        if stopped is not None and stopped.resume is None:
            self.execute(values, self.host.watch_again(values, stopped.instruction))
        elif stopped is not None:
            turn.start()
            self._resume(values, stopped.instruction, stopped.resume)
        for ins in rest:
            if turn.over():
                raise Preempted(ins)
            self.execute(values, chain((ins,), islice(rest, self.light - 1)))

    def _resume(self, values: ClientValues, ins: Instruction, resume: Callable[[], None] | None) -> None:
        """Continue a program that was preempted between two of its instructions."""
        assert resume is not None
        try:
            resume()
            self._called(values, values.kinds[ins[0]][2], ins)
        except Exception as error:  # a kernel may raise anything; its results then carry the cause
            self.fail(values, ins, error)

    def execute(self, values: ClientValues, code: Iterable[Instruction]) -> None:
        table, specs, kinds = values.table, values.specs, values.kinds
        for ins in code:
            try:
                form, kernel, ready = kinds[ins[0]]
                if form == 2:
                    first, second, made = ready.short
                    _, result, a, b = ins
                    if specs[a] is not first or specs[b] is not second:
                        raise mismatched_operand(ready, ins, specs)
                    table[result] = kernel(table[a], table[b])
                    specs[result] = made
                elif form == 1:
                    first, made = ready.short
                    _, result, a = ins
                    if specs[a] is not first:
                        raise mismatched_operand(ready, ins, specs)
                    table[result] = kernel(table[a])
                    specs[result] = made
                elif form == FREED:
                    table.pop(ins[FIRST_RESULT], None)  # its spec is dropped later, with many others
                elif form == COLLECTIVE:
                    self._collective(values, ready, ins)
                else:
                    for i, spec in ready.compared:
                        if specs[ins[i]] is not spec:
                            raise mismatched_operand(ready, ins, specs)
                    if ready.limits:
                        check_numbers(ready, ins)
                    if ready.large and self.turn is not None and self.turn.over():
                        raise Preempted(ins)
                    if form == TRACE:
                        self.call(values, ready, ins)
                    else:
                        run_general(table, ready, ins)
                        specs.update(by_result(ins, ready.results))
            except Exception as error:  # a kernel may raise anything; its results then carry the cause
                self.fail(values, ins, error)
        if len(specs) > 2 * len(table) + SPARE:
            values.forget_specs()

    def call(self, values: ClientValues, ready: Any, ins: Instruction) -> None:
        """A call of a trace. It may have hundreds of operands: their specs are compared without Python."""
        operands, expected = ready.checked
        if not all(map(is_, map(values.specs.__getitem__, operands(ins)), expected)):
            raise mismatched_operand(ready, ins, values.specs)
        if self.failures:
            check_inputs(values.table, ready, ins)
        ready.run(values.table, ins)
        if self.streams is not None:
            self.streams.called(values.client)
        self._called(values, ready, ins)

    def _called(self, values: ClientValues, ready: Any, ins: Instruction) -> None:
        """After a call: note the specs of its results, and drop those of the inputs that it freed."""
        specs = values.specs
        deque(map(specs.pop, ready.ends(ins), repeat(None)), maxlen=0)
        specs.update(by_result(ins, ready.results))

    def skip(self, values: ClientValues, code: Iterable[Instruction]) -> None:
        """Of a departed client's work, execute only the collectives that other workers may wait for."""
        for ins in code:
            form, _, ready = values.kinds.get(ins[0], (0, None, None))
            self.skipped += form != FREED
            values.counts[ins[0]] -= 1  # as it does not run
            if form != COLLECTIVE or ready is None:
                continue
            group = ready.kind.settings["group"]
            self.collectives_begun[group] += 1
            number, limit = self.collectives_begun[group], self.cancellation.limit(values.client, group)
            if limit is not None and number > limit:
                continue
            begin = partial(self._begin, values, ready, ins)
            wait = OrphanedCollective(self.cancellation, values.client, ready.kind, tag_of(ins), number, begin)
            try:
                self._wait(values, ins, wait)
            except Exception as error:  # a collective may raise anything; its results then carry the cause
                self.fail(values, ins, error)

    def _collective(self, values: ClientValues, ready: Any, ins: Instruction) -> None:
        """Begin a collective, and wait unless it ends at once."""
        self.collectives_begun[ready.kind.settings["group"]] += 1
        if self.turn is not None:
            self.turn.start()
        threads = self.engine.threads  # the threads that add up the pieces
        begin = self._begin if threads is None else partial(threads.all, self._begin)
        self._wait(values, ins, begin(values, ready, ins))

    def _wait(self, values: ClientValues, ins: Instruction, wait: PendingCollective) -> None:
        if not wait.ready():
            raise Parked(ins, wait)
        self.settle(values, ins, wait)

    def _begin(self, values: ClientValues, ready: Any, ins: Instruction) -> PendingCollective:
        """Begin a collective even with a broken operand, as the other members of the group wait for this worker."""
        ids = ins[ready.encoding.inputs]
        operands = [values.table.get(i) for i in ids]
        if any(a is None or values.specs.get(i) is not spec for a, i, spec in zip(operands, ids, ready.specs)):
            wrong: Exception = mismatched_operand(ready, ins, {i: values.specs.get(i) for i in ids if i in values.table})
            if values.client in self.cancellation.gone:  # the instructions that compute the operands were skipped
                wrong = RemoteError(f"{ready.title} has no operands: its client has left")
            operands = [a if isinstance(a, Broken) else self.failure(ready.title, wrong, tag_of(ins)) for a in operands]
        return cast(PendingCollective, ready.run(operands, tag_of(ins)))

    def settle(self, values: ClientValues, ins: Instruction, wait: PendingCollective) -> None:
        """Put the results of a collective that has ended into the table."""
        try:
            made = wait.result()
        except Exception as error:  # peers may be lost or send invalid pieces; the results carry the cause
            self.fail(values, ins, error)
            return
        results = values.kinds[ins[0]][2].results if ins else ()
        for id, (spec, array) in by_result(ins, zip(results, made)):
            values.table[id], values.specs[id] = array, spec

    def fail(self, values: ClientValues, ins: Instruction, error: Exception) -> None:
        """Mark the results of a failed instruction. The other instructions of a unit or of a call run one by one, so
        that only failing instructions and their dependents are marked."""
        ready = values.kinds[ins[0]][2] if ins[0] in values.kinds else None
        if isinstance(ready, Unit):
            error.__traceback__ = error.__context__ = None  # their frames hold the unit's intermediate results
            self._one_by_one(values, iter(ready.chunk))
        elif self.host.again(values, ins, error):
            self.execute(values, (ins,))
        elif isinstance(ready, Executable) and (rest := rest_of_call(ready, values, ins, error)) is not None:
            values.blamed = rest.blamed
            for failed in rest.failed:
                self.mark(values, failed, error)
            self._one_by_one(values, iter(rest.code))
            values.blamed = {}
        else:
            self.mark(values, ins, error)

    def _one_by_one(self, values: ClientValues, code: Code) -> None:
        """Execute instructions in place of one that failed. The turn does not end before they do, as a preempted run continues
        after the one that failed."""
        turn, self.turn = self.turn, None
        try:
            self.execute(values, self.host.watch(values, self.quotas.watch(values, code, self.engine, self.fail)))
        finally:
            self.turn = turn

    def mark(self, values: ClientValues, ins: Instruction, error: Exception) -> None:
        """Put the cause of a failure in the place of an instruction's results; a tensor made of a broken one keeps the first
        cause."""
        self.failures += 1
        values.failures += 1
        if ins[0] not in values.kinds:
            return
        ready = values.kinds[ins[0]][2]
        assert not isinstance(ready, ShardedTrace)  # `unfold` has replaced it by its segments and collectives
        causes = [values.table.get(ins[i]) for i in ready.tensor_positions if i < len(ins)]
        for i in ready.dies:
            values.table.pop(ins[i], None)
            values.specs.pop(ins[i], None)
        cause = next((c for c in causes if isinstance(c, Broken)), None)
        if cause is None and isinstance(error, OperandFailed):
            cause = error.cause
        elif cause is None:
            result = first_result(ins)
            told = result if result > 0 else values.blamed.get(result, values.within)
            cause = self.failure(ready.title, error, told)
        for id, spec in by_result(ins, ready.results):
            values.table[id], values.specs[id] = cause, spec
            if id > LOCAL:
                values.note_broken(id)

    def failure(self, what: str, error: Exception, id: Any) -> Broken:
        """The cause for a failed tensor; raises Poisoned if the device is unusable."""
        check_device(self.engine, error)
        return failure_on(f"worker {self.name} ({self.engine.name} on {self.engine.device})", what, error, id)
