"""The peak memory of a program's call besides its inputs, by the shapes of its values."""

from __future__ import annotations

from gt.program import Program


def peak(program: Program) -> int:
    """The most bytes of values that are live at one time. A dying input gives its bytes back. Workspaces of kernels are unknown
    here. A value with a view counts to the end, as the view may outlive it."""
    specs = program.specs
    viewed = {v for ins in program.instructions if ins.op.view for v in ins.values}
    views = {r for ins in program.instructions if ins.op.view for r in ins.results}
    now = most = 0
    for ins in program.instructions:
        now += sum(specs[r].nbytes for r in ins.results if r not in views)
        most = max(most, now)
        now -= sum(specs[v].nbytes for v in ins.frees if v in specs and v not in views and v not in viewed)
    return most
