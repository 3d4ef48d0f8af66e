"""A question that the client can answer by itself: the instructions between two reads, all on small float32 tensors, as one
plan of `gt.small`, whose kernels give the bits that a worker on this host would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gt.client.traces import Topology
from gt.ops import Kind
from gt.ops.estimate import INSTRUCTION, estimated_seconds
from gt.program import Program
from gt.program.code import FIRST_RESULT, Encoded, KindOf, bits, is_client_kind, walk
from gt.program.foreach import ForeachKind
from gt.program.stretch import Stretch, flat, pick
from gt.small import NATIVE
from gt.small.fits import fits, is_own
from gt.small.plan import RunBuilder, Unfit, View
from gt.small.steps import OWN, emit
from gt.spec import Spec

LONGEST = 64  # most ops
SECONDS = 5e-5  # most estimated time: less than a message to another process and its answer take
BYTES = 1 << 20  # most bytes of its inputs
VARIANTS = 16  # most plans, one for each set of numbers that are not operands of it


class LocalQuestion:
    """Made from the instructions of a question and the id that is read at its end; raises Unfit where they cannot be computed
    here. It holds for later ones of the same kinds. Loads count as inputs."""

    def __init__(self, code: list[Encoded], all_kinds: KindOf, id: int) -> None:
        def kind_of(number: Any) -> Kind | None:
            kind = all_kinds(number)
            return None if kind is None or kind.row.loads else kind

        self.kind_of = kind_of
        _check(code, all_kinds)
        stretch = Stretch(code, kind_of)
        known, loads = flat(code), _loads(code, all_kinds)
        self.topology = Topology(stretch)
        results = self.topology.results(known)
        if id not in results:
            raise Unfit("a read of another value")
        self.read = results.index(id)
        self._note_frees(stretch, known, loads)
        self.loads = pick(loads)
        self.inputs = list[Spec]()  # (their specs)
        self.made = list[Spec]()  # of the outputs
        holes, fixed = _numbers(code, kind_of)
        self.holes, self.fixed = pick(holes), pick(fixed)
        self.hole_at = {at: i for i, at in enumerate(holes)}
        self.plans: dict[tuple[Any, ...], Any] = {}  # by the numbers that are constants of it
        self._plan(stretch)
        if sum([spec.nbytes for spec in self.inputs]) > BYTES:
            raise Unfit("inputs of too many bytes")
        # How often its inputs are asked for: see `LocalAnswers`.
        self.asked, self.rest, self.wait, self.gain = False, 0, 0, 0

    def _note_frees(self, stretch: Stretch, known: list[Any], loads: list[int]) -> None:
        """Which results and loads are left at the end, and which ids it frees that it has not made."""
        made = {known[at]: at for at in (*stretch.result_at, *loads)}
        own = [(at, made[id]) for at, id, _ in stretch.frees if id in made]
        self.ended, self.ended_made = pick([at for at, _ in own]), pick([at for _, at in own])
        self.outer = pick([at for at, id, _ in stretch.frees if id not in made])
        gone = {at for _, at in own}
        self.left = pick([at for at in made.values() if at not in gone])
        self.live = [i for i, at in enumerate(stretch.result_at) if i == self.read or at not in gone]
        self.outputs, self.answered = pick(self.live), self.live.index(self.read)

    def _plan(self, stretch: Stretch) -> Any:
        """Make the plan of this stretch."""
        key = _key(self.fixed(flat(stretch.code)))
        plan = self.plans[key] = self._compiled(stretch.program(0, self.live, (), self.hole_at))
        return plan

    def _compiled(self, program: Program) -> Any:
        specs = program.specs
        builder = RunBuilder()
        views: dict[int, View] = {value: builder.input(specs[value]) for value in range(1, program.inputs + 1)}
        numbers = {index: builder.hole() for index in range(program.holes)}
        for part in program.instructions:
            if part.op.name in OWN and not is_own(part.kind):
                raise Unfit("a kernel of the worker's that is not this one")
            emit(builder, part, views, numbers)
        self.inputs = [specs[value] for value in range(1, program.inputs + 1)]
        self.made = [specs[r] for r in program.results]
        made = [builder.result(views[r], specs[r]) for r in program.results]
        return builder.plan(made, tuple([specs[r].nbytes for r in program.results]))

    def bind(self, known: list[Any], id: int) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
        """The results and the inputs of another question of the same kinds, whose instructions are concatenated; None if it
        differs in more."""
        bound = self.topology.bind(known)
        if bound is None or bound[0][self.read] != id or self.ended(known) != self.ended_made(known):
            return None
        return bound

    def answer(self, code: list[Encoded], known: list[Any], values: Sequence[bytes | None]) -> Any:
        """The values of its outputs from those of its inputs: bytes, or a tuple if there are several. None if it has to be
        asked for, as where an index is out of range: the worker's error tells the line."""
        try:
            plan = self.plans.get(_key(self.fixed(known)))
            if plan is None:
                if len(self.plans) >= VARIANTS:
                    return None
                plan = self._plan(Stretch(code, self.kind_of))
            return NATIVE.run(plan, *values, *self.holes(known))
        except (ArithmeticError, IndexError, Unfit):
            return None


def _key(numbers: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(bits, numbers)) if 0 in numbers else numbers


def _check(code: list[Encoded], kind_of: KindOf) -> None:
    """Raise unless these are a few small ops and loads."""
    seconds, count = 0.0, 0
    for ins in code:
        if not is_client_kind(ins[0]):
            continue
        kind = kind_of(ins[0])
        if kind is None or kind.signal:
            raise Unfit("a call, or a signal")
        if not kind.row.loads:
            each = kind.kinds if isinstance(kind, ForeachKind) else (kind,)
            seconds, count = seconds + sum([estimated_seconds(one) - INSTRUCTION for one in each]), count + len(each)
    if not 0 < count <= LONGEST or seconds > SECONDS:
        raise Unfit("no op, or more work than a message takes")


def _loads(code: list[Encoded], kind_of: KindOf) -> list[int]:
    """The positions of the loads' results."""
    return [at + FIRST_RESULT for at, _, kind, _ in walk(code, kind_of) if kind.row.loads]


def _numbers(code: Sequence[Encoded], kind_of: KindOf) -> tuple[list[int], list[int]]:
    """The positions of numbers that may be others the next time, and of ones that the steps of their op depend on."""
    holes, fixed = list[int](), list[int]()
    for at, _, kind, form in walk(code, kind_of):
        each = kind.kinds if isinstance(kind, ForeachKind) else (kind,)
        (holes if all(map(fits, each)) else fixed).extend([at + i for i in form.numbers])
    return holes, fixed
