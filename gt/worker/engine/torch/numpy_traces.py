"""Traces of plain arithmetic on small tensors, on the CPU, run by NumPy over the tensors' own memory: its functions start in a
third of the time of PyTorch's, which on a few hundred elements is all there is. Only operations that are rounded once, by the
letter of IEEE 754, so both give the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gt.spec import DType, Spec, float32, float64
from gt.transport.messages import FREE
from gt.worker.programs.codegen import overwritten

MOST = 1 << 14  # elements of a tensor; beyond, PyTorch's own loops are as good
FUNCTIONS: dict[str, Any] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative, "abs": np.absolute,
    "square": np.square, "sqrt": np.sqrt,
}  # fmt: skip


class NumpyTrace:
    """Such a trace."""

    def __init__(self, program: Any, dtype: DType) -> None:
        self.program, self.calls = program, 0
        self.function = _function(program, np.dtype(dtype.name))

    def run(self, table: dict[int, Any], ins: tuple) -> bool:
        program, outs = self.program, self.program.outs
        split = 1 + outs + program.inputs
        arrays = [table[i].numpy() for i in ins[1 + outs : split]]
        with np.errstate(all="ignore"):  # PyTorch gives infinities and nans without a word
            made = self.function(*arrays, *ins[split:])
        for i in program.dies:
            del table[ins[i]]
        for id, array in zip(ins[1:], made):
            table[id] = torch.from_numpy(array)
        self.calls += 1
        return True

    def stats(self) -> dict[str, float]:
        return {"numpy_calls": self.calls}


def numpy_trace(program: Any) -> NumpyTrace | None:
    """This form of a trace, or None where something in it is large, of another dtype or more than plain arithmetic."""
    kinds = [program.kinds[int(ins[0])].kind for ins in program.trace.body if ins[0] != FREE]
    if not all(kind.row.name in FUNCTIONS for kind in kinds):
        return None
    specs = {s for kind in kinds for s in (*kind.ins, *kind.outs) if isinstance(s, Spec)}
    dtypes = {s.dtype for s in specs}
    if len(dtypes) != 1 or not dtypes <= {float32, float64} or max(s.numel for s in specs) > MOST:
        return None
    return NumpyTrace(program, dtypes.pop())


def _function(program: Any, dtype: np.dtype) -> Callable[..., tuple[np.ndarray, ...]]:
    """`f(*inputs, *numbers)`: a line for each instruction. NumPy takes where to write as a last operand, and gives a number for
    an array without axes, which cannot be written to."""
    trace, kinds = program.trace, program.kinds
    names: dict[str, Any] = {"array": np.asarray, "dtype": dtype}
    holes = {place: f"h{i}" for i, places in enumerate(trace.holes) for place in places}
    given = [*(f"r{i + 1}" for i in range(trace.inputs)), *(f"h{i}" for i in range(len(trace.holes)))]
    lines = [f"def program({', '.join(given)}):", *(f"    h{i} = array(h{i}, dtype)" for i in range(len(trace.holes)))]
    alike = {n: r for n, r in kinds.items() if r.kind.outs == r.kind.ins[:1] and r.kind.outs[0].ndim}
    ending = overwritten(trace.body, kinds, alike)
    for index, ins in enumerate(trace.body):
        if ins[0] == FREE:
            lines.append(f"    del r{ins[1]}")
            continue
        ready = kinds[int(ins[0])]
        names[ready.kind.row.name] = FUNCTIONS[ready.kind.row.name]
        operands = []
        for i in range(2, len(ins)):
            if i not in ready.tensors and (index, i) not in holes:
                names[f"c{index}_{i}"] = np.asarray(ins[i], dtype)
            operands.append(f"r{ins[i]}" if i in ready.tensors else holes.get((index, i), f"c{index}_{i}"))
        operands += [operands[0]] * (index in ending)
        lines.append(f"    r{ins[1]} = {ready.kind.row.name}({', '.join(operands)})")
    lines.append(f"    return ({''.join(f'array(r{r}), ' for r in trace.outs)})")
    exec(compile("\n".join(lines), f"<trace {trace.number}, small>", "exec"), names)
    return names["program"]
