"""Programs of plain arithmetic on small CPU tensors, run by NumPy over the tensors' memory: its functions have a third of the
overhead of PyTorch's, which dominates on a few hundred elements. Only operations that IEEE 754 rounds once and moves of
elements, so that both give the same bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch

from gt.program import Instruction, Program
from gt.program.code import by_result
from gt.spec import DType
from gt.worker.programs.codegen import KernelTable, straight_line
from gt.worker.programs.passes.numpy_form import numpy_form
from gt.worker.programs.ticks import Ticked

FUNCTIONS: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative, "abs": np.absolute,
    "square": np.square, "sqrt": np.sqrt,
}  # fmt: skip


def _roll(ins: Instruction) -> Callable[[np.ndarray], np.ndarray]:
    """The function of one `roll`: for each axis the two parts of the array, joined the other way round."""
    shape = ins.specs[0].shape
    parts = []
    for shift, axis in zip(ins.operands[1:], ins.kind.settings["axes"]):
        whole, at = (slice(None),) * axis, -int(shift) % max(shape[axis], 1)
        parts.append(((*whole, slice(at, None)), (*whole, slice(at)), axis))

    def roll(a: np.ndarray) -> np.ndarray:
        for last, first, axis in parts:
            a = np.concatenate((a[last], a[first]), axis)
        return a

    return roll


MOVES: dict[str, Callable[[Instruction], Callable[..., np.ndarray]]] = {"roll": _roll}


class NumpyTrace:
    """A program run by NumPy; `program` is the worker's Executable, `form` the program in NumPy's form."""

    def __init__(self, program: Any, form: Program, dtype: DType) -> None:
        self.program, self.form, self.dtype, self.calls = program, form, np.dtype(dtype.name), 0
        self.function = straight_line(program.stage("for NumPy", form), NumpyKernels(self.dtype), flat=True)

    @cached_property
    def timed(self) -> Callable[..., Any]:
        """The function with the end of each instruction told."""
        ticked = Ticked.of(self.program.ticks, self.program.program)
        return straight_line(self.form, NumpyKernels(self.dtype), flat=True, ticked=ticked)

    def run(self, table: dict[int, Any], ins: tuple) -> bool:
        program, encoding = self.program, self.program.encoding
        arrays = [table[i].numpy() for i in ins[encoding.inputs]]
        with np.errstate(all="ignore"):  # as PyTorch, without warnings about infinities and nans
            made = (self.function if program.ticks.note is None else self.timed)(*arrays, *ins[encoding.given])
        for i in program.dies:
            del table[ins[i]]
        table.update(by_result(ins, map(torch.from_numpy, made)))
        self.calls += 1
        return True

    def stats(self) -> dict[str, float]:
        return {"numpy_calls": self.calls}


def numpy_trace(program: Any) -> NumpyTrace | None:
    """The NumPy form of a worker's Executable, or None if NumPy cannot run it."""
    found = numpy_form(program.program, FUNCTIONS, MOVES)
    return NumpyTrace(program, *found) if found is not None else None


class NumpyKernels(KernelTable):
    """NumPy's functions, with the output array as last operand. Numbers are 0-d arrays of the program's dtype; a move knows its
    own."""

    def __init__(self, dtype: np.dtype) -> None:
        super().__init__({})
        self.dtype = dtype

    def kernel(self, ins: Instruction) -> tuple[str, Any]:
        if (move := MOVES.get(ins.op.name)) is not None:
            return f"{ins.op.name}{ins.results[0]}", move(ins)
        return ins.op.name, FUNCTIONS[ins.op.name]

    def begin(self, holes: int) -> list[str]:
        return [f"h{i} = array(h{i}, dtype)" for i in range(holes)]

    def globals(self) -> dict[str, Any]:
        return {"array": np.asarray, "dtype": self.dtype}

    def number(self, value: Any) -> Any:
        return np.asarray(value, self.dtype)

    def operands(self, ins: Instruction, names: list[str]) -> list[str]:
        if ins.op.name in MOVES:
            return names[:1]
        return [*names, names[0]] if ins.in_place else names

    def result(self, name: str) -> str:
        return f"array({name})"
