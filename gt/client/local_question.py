"""A question that the client can answer by itself: the instructions between two reads, all on small float32 tensors, as one
plan of `gt.small`, whose kernels give the bits that a worker on this host would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gt.client.traces import Topology
from gt.ops import Kind
from gt.ops.estimate import INSTRUCTION, estimated_seconds
from gt.program import Program
from gt.program.code import Encoded, KindOf, bits, first_result, freed_id, is_free, number_of, op_places, walk
from gt.program.foreach import ForeachKind
from gt.program.stretch import Stretch, flat, pick
from gt.small import NATIVE
from gt.small.fits import fits, is_own
from gt.small.plan import RunBuilder, Unfit, View
from gt.small.steps import OWN, emit
from gt.spec import Spec

LONGEST = 64  # most instructions
SECONDS = 5e-5  # most estimated time: less than a message to another process and its answer take
BYTES = 1 << 20  # most bytes of its inputs
VARIANTS = 16  # most plans, one for each set of numbers that are not operands of it


class LocalQuestion:
    """Made from the instructions of a question and the id that is read at its end; raises Unfit where they cannot be computed
    here. It holds for later ones of the same kinds."""

    def __init__(self, code: list[Encoded], kind_of: KindOf, id: int) -> None:
        numbers = list(map(number_of, code))
        places = op_places(numbers)
        loads = [i for i in places if _kind(kind_of, numbers[i]).row.loads]
        work = [i for i in places if i not in loads]
        if not work or len(work) > LONGEST:
            raise Unfit("no op, or too many")
        if sum([_seconds(_kind(kind_of, numbers[i])) for i in work]) > SECONDS:
            raise Unfit("more work than a message takes")
        self.kind_of = kind_of
        self.work, self.loads = pick(work), pick(loads)
        self.frees = pick([i for i, ins in enumerate(code) if is_free(ins)])
        stretch = Stretch(self.work(code), kind_of)
        self.topology = Topology(stretch)
        ended, results = set(map(freed_id, self.frees(code))), self.topology.results(flat(stretch.code))
        if id not in results:
            raise Unfit("a read of another value")
        self.read = results.index(id)
        self.live = [i for i, result in enumerate(results) if i == self.read or result not in ended]
        self.outputs, self.inputs = pick(self.live), list[Spec]()  # (their specs)
        self.made: list[Spec] = []  # of the outputs
        holes, fixed = _numbers(stretch.code, kind_of)
        self.holes, self.fixed = pick(holes), pick(fixed)
        self.hole_at = {at: i for i, at in enumerate(holes)}
        self.plans: dict[tuple[Any, ...], Any] = {}  # by the numbers that are constants of it
        self._plan(stretch)
        if sum([spec.nbytes for spec in self.inputs]) > BYTES:
            raise Unfit("inputs of too many bytes")
        # How often its inputs are asked for: see `LocalAnswers`.
        self.asked, self.rest, self.wait, self.gain = False, 0, 0, 0

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

    def bind(self, code: list[Encoded], id: int) -> tuple[tuple[Any, ...], tuple[Any, ...], list[Any]] | None:
        """The results, the inputs and all numbers of another question of the same kinds; None if it differs in more."""
        known = flat(self.work(code))
        bound = self.topology.bind(known)
        return None if bound is None or bound[0][self.read] != id else (*bound, known)

    def answer(self, code: list[Encoded], known: list[Any], values: Sequence[bytes]) -> Any:
        """The values of its outputs from those of its inputs: bytes, or a tuple if there are several. None if it has to be
        asked for, as where an index is out of range: the worker's error tells the line."""
        try:
            plan = self.plans.get(_key(self.fixed(known)))
            if plan is None:
                if len(self.plans) >= VARIANTS:
                    return None
                plan = self._plan(Stretch(self.work(code), self.kind_of))
            return NATIVE.run(plan, *values, *self.holes(known))
        except (ArithmeticError, IndexError, Unfit):
            return None

    def ids(self, code: list[Encoded]) -> list[Any]:
        """The results of its loads."""
        return list(map(first_result, self.loads(code)))


def _key(numbers: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(map(bits, numbers)) if 0 in numbers else numbers


def _kind(kind_of: KindOf, number: Any) -> Kind:
    kind = kind_of(number)
    if kind is None or kind.signal:
        raise Unfit("a call, or a signal")
    return kind


def _numbers(code: Sequence[Encoded], kind_of: KindOf) -> tuple[list[int], list[int]]:
    """The positions of numbers that may be others the next time, and of ones that the steps of their op depend on."""
    holes, fixed = list[int](), list[int]()
    for at, _, kind, form in walk(code, kind_of):
        each = kind.kinds if isinstance(kind, ForeachKind) else (kind,)
        (holes if all(map(fits, each)) else fixed).extend([at + i for i in form.numbers])
    return holes, fixed


def _seconds(kind: Kind) -> float:
    each = kind.kinds if isinstance(kind, ForeachKind) else (kind,)
    return sum([estimated_seconds(one) - INSTRUCTION for one in each])
