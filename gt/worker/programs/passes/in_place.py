"""Ops that overwrite a dying operand with their result."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from gt.program import Program
from gt.spec import Spec


def write_in_place(program: Program, numbers: Container[int], new: Container[int] = ()) -> Program:
    """Mark instructions of the kinds `numbers` that may overwrite their first operand: the program computed it in new memory,
    only kinds that return new memory (these, and `new`) have used it, so that there is no view of it, and it dies there."""
    fresh: set[int] = set()  # values in new memory
    uses: dict[int, list[int]] = {}  # by value, the instructions of all these kinds that use it
    for index, ins in enumerate(program.instructions):
        member = (ins.number in numbers or ins.number in new) and not ins.parts
        for value in ins.values:
            if member:
                uses.setdefault(value, []).append(index)
            else:
                fresh.discard(value)
        if member:
            fresh.add(ins.results[0])
    freed = program.freed
    body = list(program.instructions)
    for value, places in uses.items():
        last = body[places[-1]]
        first = last.operands[0] == value and isinstance(last.kind.ins[0], Spec)
        once = places.count(places[-1]) == 1
        if value in fresh and value in freed and first and once and last.number in numbers:
            body[places[-1]] = replace(last, in_place=True)
    return program.with_instructions(body) if any(ins.in_place for ins in body) else program
