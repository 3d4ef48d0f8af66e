"""Splits a program at its collectives, which stay instructions: the instructions between two of them become a program of
their own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gt.program import Instruction, Program

SHORT = 3  # least ops of a segment; updates always become one, as a program runs them in place


@dataclass(frozen=True, slots=True)
class ProgramSegment:
    """A part of a program as a program: the whole program's values that are its inputs and results, and the whole program's
    holes that are its holes."""

    program: Program
    inputs: tuple[int, ...]
    results: tuple[int, ...]
    holes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FreedValues:
    """Values that are freed between two steps."""

    values: tuple[int, ...]


Step = ProgramSegment | Instruction | FreedValues


def segments(program: Program) -> list[Step]:
    """The steps of a call of the program. A single instruction frees nothing: its frees are a step of their own."""
    freed = program.freed
    steps: list[Step] = [FreedValues(tuple(i + 1 for i in program.dying if i + 1 not in freed))]
    chunk: list[Instruction] = []
    for index, ins in enumerate(program.instructions):
        if ins.op.collective:
            steps += _closed(program, chunk, program.instructions[index:])
            steps += [replace(ins, frees=()), FreedValues(ins.frees)]
            chunk = []
        else:
            chunk.append(ins)
    steps += _closed(program, chunk, ())
    return [step for step in steps if not isinstance(step, FreedValues) or step.values]


def _closed(program: Program, chunk: list[Instruction], behind: Iterable[Instruction]) -> list[Step]:
    if len(chunk) < SHORT and not any(ins.op.updates for ins in chunk):
        return [step for ins in chunk for step in (replace(ins, frees=()), FreedValues(ins.frees))]
    wanted = {*program.results, *(v for ins in behind for v in (*ins.values, *ins.frees))}
    part = segment(program, chunk, wanted)
    named = {*part.inputs, *(r for ins in chunk for r in ins.results)}
    return [part, FreedValues(tuple(v for ins in chunk for v in ins.frees if v not in named))]


def segment(program: Program, chunk: list[Instruction], wanted: set[int]) -> ProgramSegment:
    """Some instructions of a program as a program with the results `wanted`."""
    made = [r for ins in chunk for r in ins.results]
    inside = set(made)
    inputs = list(dict.fromkeys(v for ins in chunk for v in ins.values if v not in inside))
    results = tuple(r for r in made if r in wanted)
    holes = sorted({h for ins in chunk for h in ins.holes})
    value = {v: i + 1 for i, v in enumerate((*inputs, *made))}
    freed = {v for ins in chunk for v in ins.frees}
    part = Program(
        program.number, len(inputs), tuple(ins.mapped(value, {h: i for i, h in enumerate(holes)}) for ins in chunk),
        tuple(value[r] for r in results), len(holes), tuple(i for i, v in enumerate(inputs) if v in freed), program.compile,
    )  # fmt: skip
    return ProgramSegment(part, tuple(inputs), results, tuple(holes))
