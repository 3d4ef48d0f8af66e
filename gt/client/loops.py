"""Loops that take nothing from outside: steps between two reads whose instructions follow from the last step's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import sub
from typing import Any

from gt.client.read_ahead import SMALL, Get
from gt.client.tracer import Tracer
from gt.client.traces import Trace, TraceForm, Window, define, program_of
from gt.ops.table import spec_in
from gt.program import Program
from gt.program.code import Encoded, arguments, encoded, number_of, op_numbers
from gt.program.stretch import pick
from gt.program.unroll import Unrolled
from gt.spec import Spec

SURE = 1  # right predictions in a row before steps of a loop are sent ahead for the first time
SECONDS = 2e-3  # most seconds of the steps that are sent at once
STEPS = 16  # most steps that are sent at once
OPS = 256  # most ops of them
BYTES = 32 << 20  # most bytes of results of steps that Python has not reached
BACK = 2  # most steps for which a value is passed on

Numbers = tuple[Any, ...]
Sources = Mapping[int, tuple[int, int]]  # by position in a step's numbers: the index of a result, and so many steps before


class Loop:
    """A step that repeats between two reads. Its `numbers` are the ids and numbers of its call as a trace, further ids that it
    frees, and the ids that are read; each grows by the same number from step to step."""

    def __init__(self, form: TraceForm, step: Program, growth: Numbers, sources: Sources, gets: Sequence[Get]) -> None:
        trace = form.trace
        self.form, self.step, self.growth, self.sources = form, step, growth, sources
        self.live, self.inputs = len(trace.live_results), step.inputs
        self.call_length = self.live + step.inputs + step.holes
        self.specs = [get[2] for get in gets]
        self.reads = slice(len(growth) - len(gets), len(growth))
        self.rest = slice(self.call_length, len(growth) - len(gets))
        self.dying = pick([self.live + i for i in trace.dies_inputs])
        self.period = growth[0]  # how many ids a step takes
        specs = step.specs
        self.nbytes = sum([specs[r].nbytes for r in step.results])
        self.carried = {at - self.live: source for at, source in sources.items() if at < self.live + self.inputs}
        self.programs: dict[int, Unrolled] = {}  # by the number of steps
        self.least = SURE if max([back for _, back in self.carried.values()], default=0) > 1 else 0
        self.wanted = SURE  # right predictions in a row that are required
        self.seconds, self.most = 1.0, 0  # least seconds of a step; how many may be sent at once, 0 if one takes too long
        self.length = 0  # steps of the last run of the loop that were sent ahead and came

    def numbers(self, batch: list[Encoded], gets: Sequence[Get]) -> Numbers | None:
        """The numbers of a step of these instructions; None if it is another step."""
        return numbers_of(self.form, batch, [get[1] for get in gets]) if [get[2] for get in gets] == self.specs else None

    def fits(self, numbers: Numbers) -> bool:
        """Whether a step takes from the steps before it as all others do: the step before it may have been another one."""
        return all(numbers[at] == numbers[result] - back * self.period for at, (result, back) in self.sources.items())

    def following(self, numbers: Numbers) -> Numbers:
        """The numbers of the next step."""
        return tuple([n + more if more else n for n, more in zip(numbers, self.growth)])

    def frees(self, numbers: Numbers) -> list[Any]:
        """The ids of earlier values that a step frees."""
        return [*self.dying(numbers), *numbers[self.rest]]

    def took(self, seconds: float) -> None:
        """A step took so many seconds."""
        self.seconds = min(self.seconds, seconds)
        steps = min(STEPS, OPS // len(self.step.instructions), BYTES // max(1, 2 * self.nbytes))
        steps = min(steps, int(SECONDS / max(self.seconds, 1e-9)))
        self.most = steps if steps > 1 else 0

    def call(self, steps: list[Numbers], several: Unrolled) -> Encoded:
        """The call of the program of these steps."""
        made = [id for numbers in steps for id in numbers[: self.live]]
        first = steps[0]
        given = [first[self.live + i] for i in several.same]
        given += [first[result] - back * self.period for result, back in several.before]
        holes = [n for numbers in steps for n in numbers[self.live + self.inputs : self.call_length]]
        return encoded(several.program.number, made, [*given, *holes])


def numbers_of(form: TraceForm, batch: list[Encoded], reads: Sequence[int]) -> Numbers | None:
    """The numbers of a step of this form that reads these ids."""
    found = form.call(batch)
    return None if found is None else (*arguments(found[0]), *found[1], *reads)


def learned(tracer: Tracer, samples: Sequence[tuple[list[Encoded], Sequence[Get]]]) -> Loop | None:
    """The loop of these steps; None if their successors do not follow from them."""
    kinds, (batch, gets) = tracer.kinds, samples[-1]
    if any(get[2] != last[2] for _, each in samples for get, last in zip(each, gets)) or not _small(gets):
        return None
    if not all(n in kinds and kinds[n].row.kernel is not None for n in op_numbers(map(number_of, batch))):
        return None  # a load, or a call of a captured function
    windows = [Window.of(code) for code, _ in samples]
    trace = define(tracer.number(), kinds, windows[-2], windows[-1]) if windows[-1].ops else None
    if trace is None or tracer.compiled:
        return None
    form = TraceForm(trace, batch, kinds)
    steps = [numbers_of(form, code, [get[1] for get in each]) for code, each in samples]
    growth = _growth(steps)
    if growth is None or steps[-1] is None:
        return None
    step = program_of(trace, frozenset(), tracer.line)
    sources = _sources(trace, step, steps[-1], growth)
    return None if sources is None else Loop(form, step, growth, sources, gets)


def _small(gets: Sequence[Get]) -> bool:
    return all(isinstance(spec := spec_in(get[2]), Spec) and spec.nbytes <= SMALL for get in gets)


def _growth(steps: Sequence[Numbers | None]) -> Numbers | None:
    """By how much each number grows from step to step; None if one does not grow steadily. Fractions must stay."""
    if any(numbers is None or len(numbers) != len(steps[0] or ()) for numbers in steps):
        return None
    grown = [tuple(map(sub, after or (), before or ())) for before, after in zip(steps, steps[1:])]
    steady = all(each == grown[0] for each in grown)
    return grown[0] if steady and all(type(n) is int or n == 0 for n in grown[0]) else None


def _sources(trace: Trace, step: Program, last: Numbers, growth: Numbers) -> Sources | None:
    """By position, the sources of the ids that grow with the steps. None if there is another source than results of the last
    steps, if an input that stays is freed, or if nothing changes from step to step: such a loop waits for something else."""
    live, period = len(trace.live_results), growth[0]
    if not live or period <= 0 or any(growth[i] != period for i in range(live)):
        return None
    end = live + step.inputs
    made = {last[i] - back * period: (i, back) for back in range(BACK + 1) for i in range(live)}
    others = range(end + step.holes, len(growth))  # further ids that a step frees, and the ids that it reads
    sources = {at: made.get(last[at], (-1, 0)) for at in (*range(live, end), *others) if growth[at] or at in others}
    if any(growth[at] != period or result < 0 for at, (result, _) in sources.items()):
        return None
    carried = any(at < end for at in sources)
    if any(live + i not in sources for i in trace.dies_inputs) or not (carried or any(growth[end : end + step.holes])):
        return None
    return sources
