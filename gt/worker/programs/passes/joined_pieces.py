"""The sum of pieces that make up a whole tensor, each in zeros, is their concatenation: as the gradients of all slices of a
tensor add up to its own."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from gt.ops import infer, row
from gt.program import Instruction, Program, with_frees

Region = tuple[range, ...]


class PieceSum(NamedTuple):
    """A sum of pieces: the instructions that put them into zeros, their places, and the sums in between."""

    sources: list[int]
    regions: list[Region]
    sums: list[int]


def join_pieces(program: Program) -> Program:
    """Replace sums of pieces that nobody else uses and that are a whole tensor, along one axis. The pieces are results of ops
    that are no views, or other forms of such that nobody else uses, so that a kernel may leave them where they lie: no other
    value of the program has that memory."""
    uses = Counter(v for ins in program.instructions for v in ins.values)
    uses.update(program.results)
    body: list[Instruction | None] = list(program.instructions)
    number = first = min(program.kinds, default=0)
    owned: set[int] = set()  # values with memory of their own
    found: dict[int, PieceSum] = {}  # by value that is zero elsewhere
    for index, ins in enumerate(program.instructions):
        if ins.op.updates or ins.parts:
            found.clear()  # their operands may be overwritten
        elif ins.op.piece is not None and not ins.holes and ins.values[0] in owned and uses[ins.values[0]] == 1:
            found[ins.results[0]] = PieceSum([index], [ins.op.piece.places(ins.kind, ins.numbers)], [])
        elif ins.op.adds and len(set(ins.values)) == 2 and all(v in found and uses[v] == 1 for v in ins.values):
            a, b = (found[v] for v in ins.values)
            both = found[ins.results[0]] = PieceSum(a.sources + b.sources, a.regions + b.regions, [*a.sums, *b.sums, index])
            if (axis := _axis(both.regions, ins.kind.outs[0].shape)) is not None:
                number = _join(body, both, axis, number)
        if not ins.parts and (not ins.op.view or _is_other_form(ins) and ins.values[0] in owned and uses[ins.values[0]] == 1):
            owned.update(ins.results)
    if number == first:
        return program
    lasting = {i + 1 for i in range(program.inputs) if i not in program.dying}
    kept = [ins for ins in body if ins is not None]
    return program.with_instructions(with_frees(kept, {*program.results, *lasting, *program.constants}))


def _is_other_form(ins: Instruction) -> bool:
    """Whether it is a view of all elements of its operand, each once."""
    return len(ins.values) == 1 and ins.specs[0].numel == ins.kind.outs[0].numel


def _axis(regions: list[Region], shape: tuple[int, ...]) -> int | None:
    """The axis along which pieces, in any order, follow one another without a gap, from the beginning to the end of a tensor of
    this shape; each has all of the other axes. None if there is none."""
    whole = [range(n) for n in shape]
    for axis, size in enumerate(shape):
        along = sorted((r[axis] for r in regions), key=lambda r: r.start)
        ends = [0, *(r.stop for r in along)]
        follow = all(r.step == 1 and r.start == end for r, end in zip(along, ends)) and ends[-1] == size
        if follow and all([*r[:axis], whole[axis], *r[axis + 1 :]] == whole for r in regions):
            return axis
    return None


def _join(body: list[Instruction | None], found: PieceSum, axis: int, number: int) -> int:
    """Write the concatenation in the place of the last sum, with numbers of kinds below this one; returns the last."""
    last = body[found.sums[-1]]
    assert last is not None
    values, specs = [], []
    for source, region in sorted(zip(found.sources, found.regions), key=lambda piece: piece[1][axis].start):
        piece = body[source]
        assert piece is not None and piece.op.piece is not None
        fact, shape = piece.op.piece, tuple(map(len, region))
        body[source], value, spec = None, piece.values[0], piece.specs[0]
        if spec.shape != shape:  # an index removed the axis
            number -= 1
            kind = infer(row(fact.form), (spec,), (shape,))
            value, spec = piece.results[0], kind.outs[0]
            body[source] = Instruction(number, kind, (value,), piece.values, line=piece.line)
        values.append(value)
        specs.append(spec)
    for index in found.sums:
        body[index] = None
    kind = infer(row(fact.join), tuple(specs), (axis,))
    body[found.sums[-1]] = Instruction(number - 1, kind, last.results, tuple(values), line=last.line)
    return number - 1
