"""Fuses the updates of many parameters into one instruction, at the position of the last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gt.ops import Kind
from gt.program import Instruction, Program


def fuse_updates(program: Program, fusable: Callable[[Kind], bool]) -> Program:
    """Fuse updates of the same op and settings into one instruction, whose kernel may overwrite all their tensors except the
    gradients. `fusable(kind)` returns whether there is a fused kernel."""
    numbers = {n for n, kind in program.kinds.items() if fusable(kind) and may_overwrite(program, n)}
    groups: dict[tuple, list[int]] = {}
    for index, ins in enumerate(program.instructions):
        if ins.number in numbers and not ins.parts:
            groups.setdefault((ins.op.name, ins.kind.statics), []).append(index)
    body: list[Instruction | None] = list(program.instructions)
    for places in groups.values():
        fuse_at(body, places)
    fused = tuple([ins for ins in body if ins is not None])
    return program if not groups or fused == program.instructions else program.with_instructions(fused)


def may_overwrite(program: Program, number: int) -> bool:
    """Whether updates of this kind, fused at the position of the last one or of a later update, may overwrite all their tensors
    except the gradient's: each tensor dies in the program, neither another update nor a later instruction reads it or a view of
    it, and no view of it is a result."""
    places = [i for i, ins in enumerate(program.instructions) if ins.number == number]
    updates = [program.instructions[i] for i in places]
    written = [v for ins in updates for i, v in enumerate(ins.values) if not 1 <= i <= ins.op.reads]
    read = {v for ins in updates for v in ins.values[1 : 1 + ins.op.reads]} | set(program.results)
    for i, ins in enumerate(program.instructions):
        if ins.number != number and (i > places[-1] or ins.op.updates):
            read.update(ins.values)
    base = _bases(program)
    memory = {base.get(v, v) for v in written}
    return (
        len(memory) == len(written) and program.freed.issuperset(written) and memory.isdisjoint({base.get(v, v) for v in read})
    )


def _bases(program: Program) -> dict[int, int]:
    """For each value that may be a view, the value whose memory it shares."""
    base: dict[int, int] = {}
    for ins in program.instructions:
        if ins.op.view and ins.values and not ins.parts:
            base.update(dict.fromkeys(ins.results, base.get(ins.values[0], ins.values[0])))
    return base


def fuse_at(body: list[Instruction | None], places: list[int]) -> None:
    """Replace the instructions at these positions by one, unless an instruction before the last of them uses their results. It
    frees the operands that they freed."""
    parts = [ins for i in places if (ins := body[i]) is not None]
    made = {r for part in parts for r in part.results}
    used = {v for part in parts for v in part.values}
    between = [(i, ins) for i in range(places[0], places[-1] + 1) if (ins := body[i]) is not None]
    if any(made.intersection(ins.values) or made.intersection(ins.frees) for _, ins in between):
        return
    late: list[int] = []
    for i, ins in between:
        late += [v for v in ins.frees if v in used]
        body[i] = None if i in places else replace(ins, frees=tuple(v for v in ins.frees if v not in used))
    last = parts[-1]
    results = tuple(r for part in parts for r in part.results)
    bare = tuple(replace(part, frees=()) for part in parts)
    body[places[-1]] = Instruction(last.number, last.kind, results, (), tuple(late), parts=bare)
