"""A program of plain arithmetic and moves of elements on small tensors of one floating dtype, for NumPy."""

from __future__ import annotations

from collections.abc import Container

from gt.program import Hole, Program
from gt.spec import DType, Spec, float32, float64
from gt.worker.programs.passes.in_place import write_in_place

MOST = 1 << 14  # most elements of a tensor: PyTorch is as fast on larger ones


def numpy_form(program: Program, functions: Container[str], moves: Container[str] = ()) -> tuple[Program, DType] | None:
    """The program with NumPy's results written over dying operands, and its dtype; None if it has a large tensor, another dtype
    or an op that is neither in `functions` nor in `moves`. A move returns new memory, and its numbers are those of the program,
    not of its calls. NumPy returns a scalar for a 0-d array, which cannot be overwritten."""
    kinds = program.kinds
    moving = {n for n, kind in kinds.items() if kind.row.name in moves}
    if not kinds or not all(k.row.name in functions for n, k in kinds.items() if n not in moving):
        return None
    given = {ins.number for ins in program.instructions if any(isinstance(o, Hole) for o in ins.operands)}
    if given & moving or any(ins.parts for ins in program.instructions):
        return None
    specs = {s for kind in kinds.values() for s in (*kind.ins, *kind.outs) if isinstance(s, Spec)}
    dtypes = {s.dtype for s in specs}
    if len(dtypes) != 1 or not dtypes <= {float32, float64} or max(s.numel for s in specs) > MOST:
        return None
    alike = {n for n, kind in kinds.items() if kind.outs == kind.ins[:1] and kind.outs[0].ndim and n not in moving}
    return write_in_place(program, alike, moving), dtypes.pop()
