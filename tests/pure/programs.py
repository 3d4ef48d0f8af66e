"""Programs for tests: written by hand, and drawn at random."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from gt.ops import Kind, infer, row
from gt.program import Hole, Instruction, Program, with_frees
from gt.spec import Spec, float32
from gt.worker.engine.numpy import make

X = Spec((2, 3), float32)
ENGINE = make()

ADD = infer(row("add"), (X, X), ())
MUL = infer(row("mul"), (X, X), ())
SCALE = infer(row("mul"), (X, float), ())
NEG = infer(row("neg"), (X,), ())
FULL = infer(row("full"), (float,), (X.shape, float32.code))
LIKE = infer(row("full_like"), (X, float), (float32.code,))
RESHAPE = infer(row("reshape"), (X,), (X.shape,))
SGD = infer(row("sgd"), (X, X, float, float), (False,))
MOMENTUM_STATICS = {"nesterov": False, "maximize": False}
MOMENTUM_ROW = row("sgd_momentum")
MOMENTUM = infer(MOMENTUM_ROW, (X, X, X, float, float, float, float), tuple(MOMENTUM_STATICS[n] for n in MOMENTUM_ROW.statics))
KINDS: dict[int, Kind] = {1: ADD, 2: MUL, 3: SCALE, 4: NEG, 5: FULL, 6: LIKE, 7: RESHAPE, 8: SGD, 9: MOMENTUM}
NUMBERS = {id(kind): n for n, kind in KINDS.items()}


def op(kind: Kind, results: tuple[int, ...] | int, *operands: Any, line: str = "") -> Instruction:
    made = results if isinstance(results, tuple) else (results,)
    return Instruction(NUMBERS[id(kind)], kind, made, operands, line=line)


def program(inputs: int, body: list[Instruction], results: tuple[int, ...], dying: tuple[int, ...] = ()) -> Program:
    """A program in which each value that does not live on is freed behind its last use."""
    alive = {*results, *(i + 1 for i in range(inputs) if i not in dying)}
    holes = 1 + max((h for ins in body for h in ins.holes), default=-1)
    return Program(40, inputs, with_frees(body, alive), results, holes, dying)


def arrays(n: int) -> list[np.ndarray]:
    return [np.arange(6, dtype=np.float32).reshape(2, 3) / (i + 2) + i for i in range(n)]


@st.composite
def programs(draw: Any, updates: bool = True) -> Program:
    """Any program over these kinds: results and inputs that end are drawn, too."""
    inputs = draw(st.integers(1, 4))
    values = list(range(1, inputs + 1))
    body: list[Instruction] = []
    holes = 0
    kinds = [ADD, MUL, SCALE, NEG, FULL, LIKE, RESHAPE] + [SGD, MOMENTUM] * updates
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(kinds))
        operands: list[Any] = []
        for spec in kind.ins:
            if isinstance(spec, Spec):
                operands.append(draw(st.sampled_from(values)))
            elif draw(st.booleans()):
                operands.append(Hole(holes))
                holes += 1
            else:
                operands.append(draw(st.sampled_from([0.5, 0.25, 2.0])))
        made = tuple(range(max(values) + 1, max(values) + 1 + len(kind.outs)))
        values += made
        body.append(op(kind, made, *operands))
    made = [r for ins in body for r in ins.results]
    results = tuple(sorted(draw(st.sets(st.sampled_from(made), min_size=1))))
    dying = tuple(sorted(draw(st.sets(st.integers(0, inputs - 1)))))
    return program(inputs, body, results, dying)


def calls(p: Program) -> tuple[list[np.ndarray], list[float]]:
    """Inputs and numbers of a call."""
    return arrays(p.inputs), [0.125 * (i + 1) for i in range(p.holes)]
