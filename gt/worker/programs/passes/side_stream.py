"""Instructions off the critical path run on a second stream."""

from __future__ import annotations

from dataclasses import replace

from gt.program import Program


def off_critical_path(program: Program) -> Program:
    """Mark instructions that the last one on the critical path does not depend on. Updates are never among them."""
    length: dict[int, int] = {}  # by value, ops on the longest path to it
    longest: tuple[int, int] = (0, -1)
    for i, ins in enumerate(program.instructions):
        way = max((length.get(v, 0) for v in ins.reads), default=0) + (not ins.op.view)
        length.update(dict.fromkeys(ins.results, way))
        if not ins.op.updates and way > longest[0]:
            longest = way, i
    wanted: set[int] = set()
    body = list(program.instructions)
    for i, ins in reversed(list(enumerate(body))):
        if i == longest[1] or wanted.intersection(ins.results):
            wanted |= ins.reads
        elif not ins.op.updates:
            body[i] = replace(ins, side=True)
    return program.with_instructions(body) if any(ins.side for ins in body) else program
