"""Runs of small instructions over PyTorch's CPU tensors (`gt.small`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gt.ops import Kind
from gt.program import Hole, Instruction
from gt.small import NATIVE
from gt.small.fits import is_own, is_step
from gt.small.plan import RunBuilder, Unfit, View
from gt.small.steps import emit
from gt.spec import Spec
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
        return is_step(ins)

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
        return is_own(kind)

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
