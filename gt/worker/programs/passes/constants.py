"""Constant folding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gt.program import Instruction, Program

SMALL = 1 << 20  # most bytes of a folded constant
MOST = 1 << 24  # most bytes of all constants of a program


def fold_constants(
    program: Program, evaluate: Callable[[Instruction, dict[int, Any]], tuple | None], most: int = MOST
) -> Program:
    """Replace creation ops of constant numbers, and ops on their results, by constants. Results of the program and operands of
    updates are left out, as they are overwritten. `evaluate(instruction, constants so far)` computes the results of one, or
    returns None to leave it in the program. `most` is the maximum of bytes of all constants."""
    taken = set(program.results)
    for ins in program.instructions:
        if ins.op.updates:
            taken.update(ins.values)
    found: dict[int, Any] = {}
    body: list[Instruction] = []
    loose: list[int] = []  # values freed by folded instructions before the first remaining one
    total = 0
    for ins in program.instructions:
        nbytes = total + sum(spec.nbytes for spec in ins.made)
        made = evaluate(ins, found) if nbytes <= most and _constant(ins, taken, found) else None
        if made is None:
            body.append(replace(ins, frees=(*loose, *ins.frees)) if loose else ins)
            loose = []
            continue
        total = nbytes
        found.update(zip(ins.results, made))
        if body:
            body[-1] = replace(body[-1], frees=(*body[-1].frees, *ins.frees))
        else:
            loose += ins.frees
    if not found:
        return program
    body = [replace(ins, frees=tuple(v for v in ins.frees if v not in found)) for ins in body]
    return program.with_instructions(body, constants={**program.constants, **found})


def _constant(ins: Instruction, taken: set[int], found: dict[int, Any]) -> bool:
    if ins.holes or ins.parts or ins.op.updates or ins.op.collective:
        return False
    if taken.intersection(ins.results) or not ins.reads <= found.keys():
        return False
    return (ins.op.creates or bool(ins.values)) and all(spec.nbytes <= SMALL for spec in ins.kind.outs)
