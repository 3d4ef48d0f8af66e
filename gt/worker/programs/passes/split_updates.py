"""Splits a program into all but its fused updates, and the fused updates, so that compiled code writes nothing in place."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from gt.program import Program


class Halves(NamedTuple):
    """`first` has the program's inputs and numbers, and returns the program's results that it computes, then the operands that
    the updates need from it; `updates` has the updates' tensors as its inputs."""

    first: Program
    updates: Program
    given: tuple[int, ...]  # for each input of `updates`: an input of the program, or, from `inputs` on, a result of `first`
    results: tuple[int, ...]  # for each result of the program: a result of `first`, or, from their number on, of `updates`


def split_updates(program: Program) -> Halves | None:
    """The program and its fused updates separately. None if there are none, or another instruction uses their results."""
    late = [ins for ins in program.instructions if ins.parts]
    made = [r for ins in late for r in ins.results]
    if not late or any(set(made).intersection(ins.values) for ins in program.instructions):
        return None
    taken = list(dict.fromkeys(v for ins in late for v in ins.values))
    wanted = set(taken)
    left = [replace(ins, frees=tuple(v for v in ins.frees if v not in wanted)) for ins in program.instructions if not ins.parts]
    kept = [r for r in program.results if r not in made] + [v for v in taken if v > program.inputs]
    value = {v: i + 1 for i, v in enumerate((*taken, *made))}
    last = tuple(value[r] for r in program.results if r in made)
    return Halves(
        program.with_instructions(left, results=tuple(kept), dying=()),
        Program(
            program.number, len(taken), tuple(replace(ins.mapped(value), frees=()) for ins in late), last, program.holes
        ),
        tuple(v - 1 if v <= program.inputs else program.inputs + kept.index(v) for v in taken),
        tuple(len(kept) + last.index(value[r]) if r in made else kept.index(r) for r in program.results),
    )  # fmt: skip
