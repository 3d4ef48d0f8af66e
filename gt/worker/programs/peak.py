"""How many bytes a call of a program takes at most besides its inputs, by the shapes of its values."""

from __future__ import annotations

from gt.program import Program


def peak(program: Program) -> int:
    """The most that its values take at a time. An input that ends inside gives its bytes back. Memory that kernels take for
    themselves is not known here. A value of which a view was taken counts to the end, as the view may outlive it."""
    specs = program.specs
    viewed = {v for ins in program.instructions if ins.op.view for v in ins.values}
    views = {r for ins in program.instructions if ins.op.view for r in ins.results}
    now = most = 0
    for ins in program.instructions:
        now += sum(specs[r].nbytes for r in ins.results if r not in views)
        most = max(most, now)
        now -= sum(specs[v].nbytes for v in ins.frees if v in specs and v not in views and v not in viewed)
    return most
