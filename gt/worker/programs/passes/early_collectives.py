"""Collectives begin as soon as their operands are there, so that they overlap with kernels that do not need their results. A
collective of many tensors is cut into buckets for that, a model's last layers first, as their gradients come first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gt.program import Instruction, Program, with_frees
from gt.spec import Spec

BUCKET = 16 << 20  # least bytes of a bucket: links between GPUs move as many in some 50 us


def early_collectives(program: Program) -> Program:
    """Move each collective up to behind the last instruction that makes one of its operands. Collectives keep their order, in
    which all workers run them."""
    if not any(ins.op.collective for ins in program.instructions):
        return program
    after: dict[int, list[Instruction]] = {}  # by index of an instruction (-1: the beginning), collectives that follow it
    made: dict[int, int] = {}  # by value, the index of the instruction behind which it is there
    last = -1
    for index, ins in enumerate(program.instructions):
        if ins.op.collective:
            last = max(last, *(made.get(v, -1) for v in ins.values), -1)
            after.setdefault(last, []).append(ins)
            made.update(dict.fromkeys(ins.results, last))
        else:
            made.update(dict.fromkeys(ins.results, index))
    body = [*after.get(-1, ())]
    for index, ins in enumerate(program.instructions):
        if not ins.op.collective:
            body += [ins, *after.get(index, ())]
    lasting = {i + 1 for i in range(program.inputs) if i not in program.dying}
    return program.with_instructions(with_frees(body, {*program.results, *lasting, *program.constants}))


def in_buckets(program: Program, bucket: int = BUCKET) -> Program:
    """Cut separable collectives into several. The cuts depend on specs alone, which are the same on all workers."""
    numbers = min(program.kinds, default=0)
    body: list[Instruction] = []
    for ins in program.instructions:
        parts = list(_parts(ins, bucket)) if ins.op.separable else []
        if len(parts) < 2:
            body.append(ins)
            continue
        for places in parts:
            numbers -= 1
            operands = [o for i, o in enumerate(ins.operands) if i in places or i not in ins.kind.tensor_operands]
            kinds = tuple(s for i, s in enumerate(ins.kind.ins) if i in places or type(s) is not Spec)
            results = tuple(r for i, r in zip(ins.kind.tensor_operands, ins.results) if i in places)
            body.append(Instruction(numbers, ins.kind.like(kinds), results, tuple(operands), line=ins.line))
        body[-1] = replace(body[-1], frees=ins.frees)
    return program if len(body) == len(program.instructions) else program.with_instructions(body)


def _parts(ins: Instruction, bucket: int) -> Iterator[set[int]]:
    """Operands of each bucket, the last ones first."""
    places: set[int] = set()
    nbytes = 0
    for i in reversed(ins.kind.tensor_operands):
        places.add(i)
        nbytes += ins.kind.ins[i].nbytes
        if nbytes >= bucket:
            yield places
            places, nbytes = set(), 0
    if places:
        yield places
