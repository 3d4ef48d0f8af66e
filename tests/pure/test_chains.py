"""Elementwise instructions become chains, each computed where its last instruction stood."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import ADD, ENGINE, MUL, NEG, RESHAPE, SCALE, SGD, X, calls, op, program, programs

from gt.ops import infer, row
from gt.program import Hole, Instruction, Program, run
from gt.worker.programs.passes.chains import CHAIN, INPUTS, fuse_chains

ROLL = infer(row("roll"), (X, int), ((1,),))
LINKED = {id(kind) for kind in (ADD, MUL, SCALE, NEG, ROLL)}


def roll(result: int, a: int, by: int = 1) -> Instruction:
    return Instruction(99, ROLL, (result,), (a, by))


def fuse(p: Program) -> Program:
    return fuse_chains(p, lambda ins: id(ins.kind) in LINKED, lambda ins: ins.kind is not ROLL, lambda kind: True)


def same(before: Program) -> Program:
    """The fused program, which has the same results."""
    after, call = fuse(before), calls(before)
    for a, b in zip(run(after, *call, ENGINE.kernel), run(before, *call, ENGINE.kernel), strict=True):
        np.testing.assert_array_equal(a, b)
    return after


def chains(p: Program) -> list[str]:
    return [str(ins.kind.settings["chain"]) if ins.op is CHAIN else ins.op.name for ins in p.instructions]


def test_a_shift_begins_a_chain_behind_the_one_that_makes_its_operand() -> None:
    step = [roll(3, 1), roll(4, 1, -1), op(ADD, 5, 3, 4), op(SCALE, 6, 5, 0.1), op(ADD, 7, 1, 6)]
    again = [roll(8, 7), op(MUL, 9, 8, 2), op(ADD, 10, 7, 9)]
    after = same(program(2, [*step, *again], (10,)))
    assert chains(after) == ["roll roll add mul add", "roll mul add"]
    assert after.instructions[0].results == (7,) and after.instructions[0].operands == (1,)


def test_equal_chains_have_one_number() -> None:
    body = [
        op(ADD, 3, 1, 2),
        op(NEG, 4, 3),
        roll(5, 4),
        op(ADD, 6, 5, 2),
        op(NEG, 7, 6),
        roll(8, 7),
        op(ADD, 9, 8, 2),
        op(NEG, 10, 9),
    ]
    first, second, third = same(program(2, body, (10,))).instructions
    assert first.number != second.number == third.number


def test_what_others_use_is_a_result() -> None:
    body = [op(ADD, 3, 1, 2), op(NEG, 4, 3), op(MUL, 5, 4, 3), op(RESHAPE, 6, 3)]
    assert chains(same(program(2, body, (5, 6)))) == ["add neg mul", "reshape"]
    assert same(program(2, body, (5, 6))).instructions[0].results == (3, 5)


def test_instructions_stay_apart_where_one_between_them_uses_the_first() -> None:
    body = [op(ADD, 3, 1, 2), op(RESHAPE, 4, 3), op(MUL, 5, 3, 4), op(NEG, 6, 5)]
    assert chains(same(program(2, body, (6,)))) == ["add", "reshape", "mul neg"]


def test_instructions_stay_apart_where_an_update_between_them_may_overwrite_operands() -> None:
    body = [op(ADD, 3, 1, 2), op(SGD, 4, 1, 2, 0.1, 0.0), op(NEG, 5, 3)]
    assert chains(same(program(2, body, (4, 5)))) == ["add", "sgd", "neg"]


def test_two_chains_become_one_where_both_are_used() -> None:
    body = [op(NEG, 3, 1), op(SCALE, 4, 3, Hole(0)), op(NEG, 5, 2), op(SCALE, 6, 5, Hole(0)), op(MUL, 7, 4, 6)]
    [chain] = same(program(2, body, (7,))).instructions
    assert chain.operands == (1, Hole(0), 2)


def test_a_chain_has_few_inputs() -> None:
    inputs = INPUTS + 4
    body = [op(ADD, inputs + i, inputs + i - 1 if i > 1 else 1, i + 1) for i in range(1, inputs)]
    after = same(program(inputs, body, (body[-1].results[0],)))
    assert [len(ins.operands) for ins in after.instructions] == [INPUTS, 5]


def test_a_chain_without_a_kernel_is_left_alone() -> None:
    before = program(2, [op(ADD, 3, 1, 2), op(NEG, 4, 3)], (4,))
    asked: list[Any] = []
    assert fuse_chains(before, lambda ins: True, lambda ins: True, lambda kind: bool(asked.append(kind))) is before
    assert len(asked) == 1


@pytest.mark.parametrize("numbers", [(0.0, -0.0), (1.0, 2.0)], ids=str)
def test_chains_with_other_numbers_are_others(numbers: tuple[float, float]) -> None:
    a, b = numbers
    body = [op(SCALE, 3, 1, a), op(NEG, 4, 3), roll(5, 4), op(SCALE, 6, 5, b), op(NEG, 7, 6), roll(8, 7)]
    after = same(program(2, body, (8,)))
    assert len({ins.number for ins in after.instructions}) == len(after.instructions)


@given(programs(), st.data())
@settings(max_examples=200)
def test_random_programs_give_the_same_numbers(p: Program, data: Any) -> None:
    def shifted(ins: Instruction) -> Instruction:
        if ins.kind is not NEG or data.draw(st.booleans()):
            return ins
        return Instruction(99, ROLL, ins.results, (*ins.operands, data.draw(st.integers(-4, 4))))

    same(program(p.inputs, [shifted(ins) for ins in p.instructions], p.results, p.dying))
