"""Several repetitions of a program as one program, for a loop that passes results of each step to the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gt.program import Instruction, Program, with_frees

Carried = Mapping[int, tuple[int, int]]  # by input of a step, counted from 0: the index of a result, and so many steps before


@dataclass(frozen=True, slots=True)
class Unrolled:
    """`program` has as inputs the inputs `same` of a step, which are the same in each repetition, then the results `before` of
    steps before the first repetition: each the index of a result, and how many steps before. Its results and holes are those of
    all repetitions, one after the other; it frees none of its inputs."""

    program: Program
    same: tuple[int, ...]
    before: tuple[tuple[int, int], ...]


def unrolled(step: Program, number: int, times: int, carried: Carried) -> Unrolled:
    """The program of so many repetitions of `step`; inputs that are not `carried` are the same in each."""
    same = tuple([i for i in range(step.inputs) if i not in carried])
    before = tuple(dict.fromkeys(_reach_back(times, carried)))
    inputs = len(same) + len(before)
    given = {i: v for v, i in enumerate(same, 1)}
    outer = {source: v for v, source in enumerate(before, len(same) + 1)}
    instructions: list[Instruction] = []
    results: list[int] = []
    used = inputs
    made: list[tuple[int, ...]] = []  # by repetition, its results
    for repetition in range(times):
        value = {i + 1: v for i, v in given.items()}
        for i, (result, back) in carried.items():
            ago = back - repetition
            value[i + 1] = outer[result, ago] if ago > 0 else made[repetition - back][result]
        for ins in step.instructions:
            value.update({r: used + k for k, r in enumerate(ins.results, 1)})
            used += len(ins.results)
            instructions.append(ins.mapped(value, {h: repetition * step.holes + h for h in range(step.holes)}))
        made.append(tuple([value[r] for r in step.results]))
        results += made[-1]
    alive = {*results, *range(1, inputs + 1)}
    return Unrolled(Program(number, inputs, with_frees(instructions, alive), tuple(results), times * step.holes), same, before)


def _reach_back(times: int, carried: Carried) -> Iterator[tuple[int, int]]:
    """The results of steps before the first repetition that the repetitions take."""
    for result, back in carried.values():
        for repetition in range(min(times, back)):
            yield result, back - repetition
