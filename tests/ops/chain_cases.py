"""Programs of one chain, together with all ops that a chain may have, and operands, for Triton's interpreter and for GPUs."""

from __future__ import annotations

from typing import Any

import torch

from gt.ops import infer, row
from gt.program import Hole, Instruction, Program, with_frees
from gt.spec import Spec, bfloat16, float16, float32
from gt.worker.engine.torch.dtypes import TORCH

SHAPE = (7, 3, 500)
EDGES = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-40, -3e38, 1.0, 2.0]


class Writer:
    """Writes a program; its inputs are a tensor of SHAPE, others that are broadcast to it, and a number for each hole."""

    def __init__(self, dtype: Any) -> None:
        shapes = (SHAPE, SHAPE, SHAPE[1:], (500,), (7, 1, 1), (7, 1, 500), (1, 3, 1), ())
        self.specs = dict(enumerate((Spec(shape, dtype) for shape in shapes), 1))
        self.inputs, self.body = len(shapes), list[Instruction]()

    def __call__(self, op: str, *operands: Any, **statics: Any) -> int:
        """An operand is a value, a Hole or, as a float or in a tuple, a number."""
        given = [o[0] if type(o) is tuple else o for o in operands]
        specs = [type(o[0]) if type(o) is tuple else float if type(o) in (Hole, float) else self.specs[o] for o in operands]
        kind = infer(row(op), tuple(specs), tuple(statics.values()))
        value = self.inputs + len(self.body) + 1
        self.specs[value] = kind.outs[0]
        self.body.append(Instruction(len(self.body) + 1, kind, (value,), tuple(given)))
        return value

    def program(self, *results: int) -> Program:
        holes = 1 + max((h for ins in self.body for h in ins.holes), default=-1)
        return Program(7, self.inputs, with_frees(self.body, {*results, *range(1, self.inputs + 1)}), results, holes)

    def arrays(self, at: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        made = []
        for i in range(1, self.inputs + 1):
            a = torch.randn(self.specs[i].shape) * 3
            a.view(-1)[: len(EDGES)] = torch.tensor(EDGES)[: a.numel()] if a.ndim else 0.75
            made.append(a.flip(0).to(TORCH[self.specs[i].dtype]).to(at) if i == 2 else a.to(TORCH[self.specs[i].dtype]).to(at))
        return made


def arithmetic(dtype: Any) -> tuple[Writer, Program]:
    """Sums and products, with operands of all shapes, and shifts."""
    w = Writer(dtype)
    x = w("mul", w("add", 1, 2), (4,))
    found = [w("abs", w("sub", w("neg", x), i)) for i in range(3, w.inputs + 1)]
    shifted = w("roll", 1, (1,), (-2,), axes=(0, 2))
    y = w("sub", w("mul", shifted, 0.1), w("square", w("roll", 2, (3,), axes=(1,))))
    y = w("relu_grad", w("add", 0.3, y), w("relu", w("sub", 0.7, 2)))
    for value in found:
        y = w("add", y, w("mul", value, 1 / 3))
    return w, w.program(x, y)


def others(of_numbers: bool) -> tuple[Writer, Program]:
    """Ops of float32 alone, some with a number in each call."""
    w = Writer(float32)
    n = Hole(0) if of_numbers else 0.37
    x, y = w("mul", 1, n), w("add", 2, n)
    quotient = w("div", x, 3.0)
    results = [
        w("where", w("lt", x, y), w("maximum", x, y), w("minimum", x, y)), w("where", w("ge", x, 0.5), quotient, -1.0),
        w("sqrt", w("maximum", quotient, 0.0)), w("div", w("pow", x, (2,)), y), w("div", 2.0, w("relu", w("div", y, n))),
    ]  # fmt: skip
    same = w("where", w("eq", x, y), w("neg", x), w("cast", w("le", x, 4), dtype=float32.code))
    return w, w.program(*results, same, w("gt", x, y), w("ne", x, y))


def casts() -> tuple[Writer, Program]:
    w = Writer(bfloat16)
    whole = w("cast", w("add", 1, 3), dtype=float32.code)
    half = w("cast", w("mul", whole, 1 / 3), dtype=float16.code)
    return w, w.program(w("mul", 0.1, half), w("cast", w("add", whole, 1.0), dtype=bfloat16.code))


def cases() -> dict[str, tuple[Writer, Program]]:
    found = {f"arithmetic of {dtype.name}": arithmetic(dtype) for dtype in (float32, bfloat16, float16)}
    return {**found, "others": others(False), "numbers of calls": others(True), "casts": casts()}
