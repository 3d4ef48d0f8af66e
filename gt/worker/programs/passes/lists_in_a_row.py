"""Brings instructions together that can run as one list, where others that use their results stand between them: as in a
running average of parameters, a product and a sum for each."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from gt.program import Instruction, Program, with_frees

MOST = 1 << 25  # elements of the results that a list may have earlier than before


@dataclass
class _List:
    first: int  # the index of its first instruction, behind which the others are moved
    moved: list[int] = field(default_factory=list)
    elements: int = 0


def in_a_row(program: Program, alike: Callable[[Instruction], Hashable]) -> Program:
    """Move instructions up behind the first with the same `alike`, if their operands are there by then and nothing between them
    overwrites any, as updates do."""
    lists: dict[Hashable, _List] = {}  # lists that may grow
    found: dict[int, _List] = {}  # by the index of its first instruction
    made: dict[int, int] = {}  # by value, the index of the instruction that makes it, or behind which that is moved
    for index, ins in enumerate(program.instructions):
        if ins.op.updates or ins.parts or ins.in_place:
            lists.clear()
        position, key = index, alike(ins) if not ins.parts else None
        if key is not None:
            row = lists.get(key)
            elements = sum(spec.numel for spec in ins.made)
            if row is None or row.elements + elements > MOST or any(made.get(v, -1) >= row.first for v in ins.values):
                row = lists[key] = found[index] = _List(index)
            else:
                row.moved.append(index)
                row.elements += elements
            position = row.first
        made.update(dict.fromkeys(ins.results, position))
    gone = {index for row in found.values() for index in row.moved}
    if all(row.moved == list(range(row.first + 1, row.first + 1 + len(row.moved))) for row in found.values()):
        return program
    order = [i for index in range(len(program.instructions)) if index not in gone for i in (index, *_moved(found, index))]
    lasting = {i + 1 for i in range(program.inputs) if i not in program.dying}
    body = [program.instructions[i] for i in order]
    return program.with_instructions(with_frees(body, {*program.results, *lasting, *program.constants}))


def _moved(found: dict[int, _List], index: int) -> list[int]:
    return found[index].moved if index in found else []
