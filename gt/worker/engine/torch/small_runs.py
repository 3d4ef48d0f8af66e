"""Runs of small instructions over PyTorch's CPU tensors (`gt.worker.engine.small`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch

from gt.ops import Kind
from gt.program import Hole, Instruction
from gt.spec import Spec
from gt.worker.engine.small import NATIVE
from gt.worker.engine.small.plan import RunBuilder, Unfit, View
from gt.worker.engine.small.steps import ALL, OWN, emit
from gt.worker.engine.torch.dtypes import TORCH
from gt.worker.programs.codegen import operands_in_order, outlive


class SmallRuns:
    """Which instructions a run may have, and the kernels of runs."""

    def __init__(self) -> None:
        NATIVE.use(torch.empty_like)

    def counts(self) -> dict[str, int]:
        """How often each kind of kernel for small tensors ran in this process."""
        found: dict[str, int] = NATIVE.counts()
        return found

    def is_step(self, ins: Instruction) -> bool:
        """Whether an instruction can be part of a run."""
        return ins.op.name in ALL and _fits(ins.kind, tuple([None if type(n) is Hole else n for n in ins.numbers]))

    def begin(self) -> Callable[[Instruction], bool]:
        """Begin a run: the function adds an instruction to it, if it can, and returns whether it did. After the first that it
        cannot have, the run has ended."""
        builder = RunBuilder()
        views: dict[int, View] = {}
        numbers: dict[int, View] = {}

        def takes(ins: Instruction) -> bool:
            for value, spec in zip(ins.values, ins.specs):
                if value not in views:
                    views[value] = builder.input(spec)
            try:
                emit(builder, ins, views, numbers)
            except Unfit:
                return False
            return True

        return takes

    def in_order(self, ins: Instruction) -> Callable[..., Any]:
        """The kernel of a run."""
        values, holes = operands_in_order(ins)
        return _run(ins.parts, values, holes, outlive(ins))

    def is_own(self, kind: Kind) -> bool:
        """Whether a kind runs by steps outside of runs, too."""
        return kind.row.name in OWN and _fits(kind, (None,) * (len(kind.ins) - len(kind.tensor_operands)))

    def kernel(self, kind: Kind) -> Callable[..., Any] | None:
        """The kernel of such a kind."""
        if not self.is_own(kind):
            return None
        values, results = [1 + i for i in kind.tensor_operands], list(range(-len(kind.outs), 0))
        holes = [i for i in range(len(kind.ins)) if 1 + i not in values]
        if values != list(range(1, 1 + len(values))):
            return None  # a run takes tensors first
        operands = tuple([1 + i if 1 + i in values else Hole(i) for i in range(len(kind.ins))])
        return _run((Instruction(0, kind, tuple(results), operands),), values, holes, results)


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


def _run(parts: tuple[Instruction, ...], values: list[int], holes: list[int], results: list[int]) -> Callable[..., Any]:
    """The kernel of these instructions: of the values and the numbers, in this order, to the results."""
    specs: dict[int, Spec] = {}
    for part in parts:
        specs |= dict(zip(part.values, part.specs)) | dict(zip(part.results, part.kind.outs))
    builder = RunBuilder()
    views = {value: builder.input(specs[value]) for value in values}
    numbers = {index: builder.hole() for index in holes}
    for part in parts:
        emit(builder, part, views, numbers)
    made = [builder.result(views[r], specs[r]) for r in results]
    like = tuple([torch.empty(specs[r].shape, dtype=TORCH[specs[r].dtype]) for r in results])
    return partial(NATIVE.run, builder.plan(made, like))
