"""Fuses sums with norms: that of a residual connection with the norm behind it, and of a norm's gradient with another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from gt.ops import Kind, infer, row
from gt.program import Instruction, Program, with_frees


class _Fusion:
    """A program whose instructions are fused one by one, with new numbers of kinds."""

    def __init__(self, program: Program, fits: Callable[[Kind], bool]) -> None:
        self.body: list[Instruction | None] = list(program.instructions)
        self.number, self.fits = min(program.kinds, default=0), fits
        self.uses = Counter(v for ins in program.instructions for v in ins.values)
        self.uses.update(program.results)
        self.made: dict[int, int] = {}  # by value, the index of the instruction that makes it
        self.sums: dict[int, int] = {}  # by sum that nobody has used yet, its index
        self.gradients: dict[int, int] = {}  # by gradient of a norm's input that is used once, its index

    def norm_of_sum(self, index: int, ins: Instruction) -> None:
        """Compute a sum with the norm that uses it first."""
        at = self.sums.get(ins.values[0])
        if at is None or (add := self.body[at]) is None:
            return
        (_, *specs), (_, *operands) = ins.kind.ins, ins.operands
        kind = infer(row(ins.op.of_sum), (*add.kind.ins, *specs), ins.kind.statics)
        self._put(index, at, kind, ins, (*add.results, *ins.results), (*add.operands, *operands))

    def gradient_and_sum(self, index: int, add: Instruction) -> None:
        """Add another gradient, which is known by then, where the norm's is computed."""
        for value, other in (add.values, add.values[::-1]):
            at = self.gradients.get(value)
            if at is None or self.made.get(other, -1) >= at or (ins := self.body[at]) is None:
                continue
            kind = infer(row(ins.op.plus), (add.kind.outs[0], *ins.kind.ins), ins.kind.statics)
            _, *rest = ins.results
            if self._put(at, index, kind, ins, (*add.results, *rest), (other, *ins.operands)):
                return

    def _put(self, at: int, gone: int, kind: Kind, ins: Instruction, results: tuple, operands: tuple) -> bool:
        if not self.fits(kind):
            return False
        self.number -= 1
        self.body[at], self.body[gone] = Instruction(self.number, kind, results, operands, line=ins.line), None
        return True


def fuse_sums(program: Program, fits: Callable[[Kind], bool]) -> Program:
    """Fuse sums of two tensors of one shape with norms, where `fits` of the fused kind is true."""
    found = _Fusion(program, fits)
    for index, ins in enumerate(program.instructions):
        is_sum = ins.op.adds and len(set(ins.values)) == 2 and {*ins.kind.ins, *ins.kind.outs} == {ins.kind.outs[0]}
        is_sum = is_sum and ins.kind.outs[0].dtype.size > 2  # as the fused rows have it
        if ins.op.updates or ins.parts or ins.in_place:  # it may overwrite their operands
            found.sums.clear()
            found.gradients.clear()
        elif ins.op.of_sum and not ins.holes:
            found.norm_of_sum(index, ins)
        elif ins.op.plus and found.uses[ins.results[0]] == 1:
            found.gradients[ins.results[0]] = index
        elif is_sum:
            found.gradient_and_sum(index, ins)
        for value in ins.values:
            found.sums.pop(value, None)
        if is_sum and found.body[index] is ins:
            found.sums[ins.results[0]] = index
        found.made.update(dict.fromkeys(ins.results, index))
    if all(ins is not None for ins in found.body):
        return program
    lasting = {i + 1 for i in range(program.inputs) if i not in program.dying}
    kept = [ins for ins in found.body if ins is not None]
    return program.with_instructions(with_frees(kept, {*program.results, *lasting, *program.constants}))
