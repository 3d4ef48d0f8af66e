"""Which kinds have steps."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from gt.ops import Kind
from gt.program import Hole, Instruction
from gt.small.plan import RunBuilder, Unfit, View
from gt.small.steps import ALL, OWN, emit
from gt.spec import Spec


def is_step(ins: Instruction) -> bool:
    """Whether an instruction can be part of a run."""
    return ins.op.name in ALL and _fits(ins.kind, tuple([None if type(n) is Hole else n for n in ins.numbers]))


def fits(kind: Kind) -> bool:
    """Whether a kind has steps, whatever its numbers are."""
    return kind.row.name in ALL and _fits(kind, (None,) * (len(kind.ins) - len(kind.tensor_operands)))


def is_own(kind: Kind) -> bool:
    """Whether a kind runs by steps outside of runs, too."""
    return kind.row.name in OWN and fits(kind)


@lru_cache(1 << 12)
def _fits(kind: Kind, numbers: tuple[Any, ...]) -> bool:
    """Whether this kind with these numbers (None for holes) has steps."""
    given, builder = iter(numbers), RunBuilder()
    operands: list[Any] = []
    views: dict[int, View] = {}
    for i, spec in enumerate(kind.ins):
        if type(spec) is Spec:
            operands.append(-i - 1)
            views[-i - 1] = builder.input(spec)
        else:
            number = next(given)
            operands.append(Hole(i) if number is None else number)
    try:
        emit(builder, Instruction(0, kind, tuple(range(len(kind.outs))), tuple(operands)), views, {})
    except Unfit:
        return False
    return True
