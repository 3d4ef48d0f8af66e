"""Joins consecutive instructions on small tensors into runs: to start a kernel of each would take longer than to compute it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from gt.ops.movement import contiguous_strides
from gt.program import Instruction, Program, with_frees

LONGEST = 3e-4  # estimated seconds of a run, which nobody can preempt
FEWEST = 2  # instructions of a run, views not counted


class StepsOfRuns(Protocol):
    """The steps of an engine, and whether a run can have several (`gt.worker.engine.torch.small_runs`)."""

    def is_step(self, ins: Instruction) -> bool: ...
    def begin(self) -> Callable[[Instruction], bool]: ...


def small_runs(program: Program, runs: StepsOfRuns) -> Program:
    """Each run is one instruction whose parts are in order. A view that is seen outside of runs is no part of one, unless it is
    contiguous in any case: other kernels might round otherwise if their operands were laid out otherwise."""
    steps = [not ins.parts and not ins.in_place and not ins.side and runs.is_step(ins) for ins in program.instructions]
    if sum(steps) < FEWEST:
        return program
    seen = set(program.results)
    for ins, step in zip(program.instructions, steps):
        seen.update(() if step else ins.values)
    body: list[Instruction] = []
    group: list[Instruction] = []
    takes, seconds = runs.begin(), 0.0
    packed: set[int] = set()  # values of steps that are contiguous wherever they are computed
    for ins, step in zip(program.instructions, steps):
        if step and (not ins.op.view or packed.issuperset(ins.values) and _keeps_order(ins)):
            packed.update(ins.results)
        member = step and (not ins.op.view or not seen.intersection(ins.results) or packed.issuperset(ins.results))
        if member and seconds + ins.seconds <= LONGEST and takes(ins):
            group.append(ins)
            seconds += ins.seconds
            continue
        made = {r for part in group for r in part.results}
        if step and not member and made.isdisjoint(ins.values):
            body.append(ins)  # a view of a value from before
            continue
        body += _joined(group)
        takes, seconds = runs.begin(), ins.seconds
        group = [ins] if member and takes(ins) else []
        body += [] if group else [ins]
    body += _joined(group)
    if not any(ins.in_order for ins in body):
        return program
    values = {v for ins in program.instructions for v in (*ins.values, *ins.results)}
    return program.with_instructions(with_frees(body, (values | set(program.results)) - program.freed))


def _keeps_order(ins: Instruction) -> bool:
    """Whether the view of a contiguous tensor is contiguous."""
    (made,), alias = ins.kind.outs, ins.op.alias
    if alias is None:
        return False
    before = ins.specs[0].shape
    found = alias.strides(before, contiguous_strides(before), **ins.kind.settings)
    return found is not None and all(s == t or n == 1 for n, s, t in zip(made.shape, found, contiguous_strides(made.shape)))


def _joined(group: list[Instruction]) -> list[Instruction]:
    if sum(not ins.op.view for ins in group) < FEWEST:
        return group
    last = group[-1]
    results = tuple([r for part in group for r in part.results])
    bare = tuple([replace(part, frees=()) for part in group])
    return [Instruction(last.number, last.kind, results, (), line=last.line, parts=bare, in_order=True)]
