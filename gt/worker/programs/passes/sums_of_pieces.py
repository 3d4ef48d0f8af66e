"""The sum of pieces of a tensor, each in zeros, is written piece by piece: as the gradients of its slices add up to its own."""

from __future__ import annotations

from collections import Counter

from gt.ops import infer, row
from gt.program import Instruction, Program, with_frees

Region = tuple[range, ...]


def write_pieces(program: Program) -> Program:
    """Replace sums of two values that nobody else uses, and that differ from zero in different places: the one of a single
    piece is written into the other, where that lies."""
    uses = Counter(v for ins in program.instructions for v in ins.values)
    uses.update(program.results)
    first = number = min(program.kinds, default=0)
    pieces: dict[int, list[tuple[int, Region]]] = {}  # by value that is zero elsewhere, its pieces: instructions, and where
    body: list[Instruction | None] = list(program.instructions)
    for index, ins in enumerate(program.instructions):
        if ins.op.updates or ins.parts:
            pieces.clear()  # their operands may be overwritten
        elif ins.op.piece is not None and not ins.holes:
            pieces[ins.results[0]] = [(index, ins.op.piece.places(ins.kind, ins.numbers))]
        elif ins.op.adds and len(set(ins.values)) == 2 and all(v in pieces and uses[v] == 1 for v in ins.values):
            a, b = ins.values if len(pieces[ins.values[1]]) == 1 else reversed(ins.values)
            known, [(source, where), *more] = pieces[a], pieces[b]
            if not more and not any(_meet(where, other) for _, other in known):
                number -= 1
                body[index] = _put(number, ins, a, program.instructions[source])
                body[source] = None
                pieces[ins.results[0]] = [*known, (source, where)]
    if number == first:
        return program
    lasting = {i + 1 for i in range(program.inputs) if i not in program.dying}
    kept = [ins for ins in body if ins is not None]
    return program.with_instructions(with_frees(kept, {*program.results, *lasting, *program.constants}))


def _put(number: int, add: Instruction, into: int, piece: Instruction) -> Instruction:
    """The instruction that writes a piece into a value, and takes the place of the sum of both."""
    assert piece.op.piece is not None
    put = row(piece.op.piece.put)
    kind = infer(put, (*add.kind.outs, *piece.kind.ins), tuple([piece.kind.settings[name] for name in put.statics]))
    return Instruction(number, kind, add.results, (into, *piece.operands), line=add.line, in_place=True)


def _meet(a: Region, b: Region) -> bool:
    return all(_overlap(x, y) for x, y in zip(a, b))


def _overlap(a: range, b: range) -> bool:
    return bool(a) and bool(b) and max(min(a), min(b)) <= min(max(a), max(b))
