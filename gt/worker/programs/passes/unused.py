"""Instructions whose results nobody uses."""

from __future__ import annotations

from gt.program import Program, with_frees


def without_unused(program: Program) -> Program:
    """Leave out instructions none of whose results lives on or is used: a model's second output that the loop does not look at.
    Results depend on operands alone, so nothing else can tell whether they ran; but other workers wait for a collective."""
    needed, kept = set(program.results), []
    for ins in reversed(program.instructions):
        if ins.op.collective or not needed.isdisjoint(ins.results):
            kept.append(ins)
            needed.update(ins.values)
    if len(kept) == len(program.instructions):
        return program
    lasting = {i + 1 for i in range(program.inputs) if i not in program.dying}
    return program.with_instructions(with_frees(kept[::-1], {*program.results, *lasting, *program.constants}))
