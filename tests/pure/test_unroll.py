"""Several repetitions of a program as one: the results of the repetitions, for values passed on over one step and over two."""

from __future__ import annotations

from operator import add, mul
from typing import Any

import pytest

from gt.ops.table import TABLE, Kind, infer
from gt.program import Hole, Instruction, Program, run, with_frees
from gt.program.unroll import unrolled
from gt.spec import Spec, float32

SPEC = Spec((2,), float32)
KERNELS: dict[str, Any] = {"add": add, "mul": mul}


def instruction(op: str, result: int, *operands: Any) -> Instruction:
    kinds = [float if isinstance(o, Hole) else SPEC for o in operands]
    return Instruction(1, infer(TABLE[op], kinds, ()), (result,), operands)


def step() -> Program:
    """Of x (1), y (2) and a constant c (3): sum = x + y, scaled = sum * c, more = scaled + hole."""
    body = [instruction("add", 4, 1, 2), instruction("mul", 5, 4, 3), instruction("add", 6, 5, Hole(0))]
    return Program(7, 3, with_frees(body, {3, 4, 6}), (4, 6), 1, (0,))


def kernel(kind: Kind) -> Any:
    return KERNELS[kind.row.name]


@pytest.mark.parametrize("times", [1, 2, 3, 8])
@pytest.mark.parametrize("carried", [{0: (1, 1)}, {0: (1, 1), 1: (0, 1)}, {0: (0, 2), 1: (1, 1)}, {0: (0, 2), 1: (1, 2)}])
def test_a_program_of_several_steps_gives_the_results_of_each(times: int, carried: dict[int, tuple[int, int]]) -> None:
    one, history, given = step(), [(2.0, 3.0), (5.0, 7.0)], [11.0, 13.0, 0.5]  # results of the two steps before
    several = unrolled(one, 9, times, carried)
    assert several.program.number == 9 and not several.program.dying and several.program.holes == times
    inputs = [given[i] for i in several.same] + [history[-back][result] for result, back in several.before]
    numbers = [1.0 + n for n in range(times)]
    found = run(several.program, inputs, numbers, kernel)
    for n in range(times):
        operands = [history[-carried[i][1]][carried[i][0]] if i in carried else given[i] for i in range(3)]
        history.append(tuple(run(one, operands, [numbers[n]], kernel)))
    assert found == [value for results in history[2:] for value in results]


def test_a_step_that_takes_nothing_from_the_one_before_has_only_inputs_that_stay() -> None:
    several = unrolled(step(), 9, 4, {})
    assert several.same == (0, 1, 2) and not several.before and len(several.program.results) == 8
