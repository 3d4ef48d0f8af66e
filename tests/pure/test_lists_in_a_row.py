"""Instructions that can run as a list are brought together, where others that use their results stand between them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import ENGINE

from gt.ops import infer, row
from gt.program import Instruction, Program, run, with_frees
from gt.spec import Spec, float32
from gt.worker.engine.torch.lists import alike
from gt.worker.programs.passes import lists_in_a_row
from gt.worker.programs.passes.fuse_lists import fuse_lists
from gt.worker.programs.passes.lists_in_a_row import in_a_row

X = Spec((3,), float32)
MUL, ADD = infer(row("mul"), (X, float), ()), infer(row("add_scaled"), (X, X, float), ())
SGD = infer(row("sgd"), (X, X, float, float), (False,))


def mul(result: int, a: int, by: float = 0.5) -> Instruction:
    return Instruction(1, MUL, (result,), (a, by))


def plus(result: int, a: int, b: int, by: float = 0.25) -> Instruction:
    return Instruction(2, ADD, (result,), (a, b, by))


def program(inputs: int, body: list[Instruction], results: tuple[int, ...]) -> Program:
    return Program(7, inputs, with_frees(body, {*results, *range(1, inputs + 1)}), results)


def same(after: Program, before: Program) -> None:
    arrays = list(np.random.default_rng(0).standard_normal((before.inputs, 3)).astype(np.float32))
    for a, b in zip(run(after, arrays, [], ENGINE.kernel), run(before, arrays, [], ENGINE.kernel), strict=True):
        np.testing.assert_array_equal(a, b)


def average(count: int) -> Program:
    """A running average: for each of many tensors a product, and a sum that uses it."""
    body = [ins for i in range(count) for ins in (mul(100 + i, 1 + i), plus(200 + i, 100 + i, 1 + count + i))]
    return program(2 * count, body, tuple(range(200, 200 + count)))


def test_a_running_average_is_two_lists() -> None:
    before = average(5)
    after = in_a_row(before, alike)
    assert [ins.op.name for ins in after.instructions] == ["mul"] * 5 + ["add_scaled"] * 5
    same(after, before)
    assert [len(ins.parts) for ins in fuse_lists(after, alike).instructions] == [5, 5]
    assert in_a_row(after, alike) is after


def test_what_needs_another_of_its_list_or_an_update_stays_behind_it() -> None:
    chain = program(1, [mul(10, 1), plus(20, 10, 1), mul(11, 20), plus(21, 11, 1)], (21,))
    assert in_a_row(chain, alike) is chain
    update = Instruction(3, SGD, (10,), (1, 2, 0.1, 0.0))
    updated = program(3, [mul(20, 3), update, mul(21, 10), mul(22, 3)], (20, 21, 22))
    after = in_a_row(updated, alike)
    assert [ins.op.name for ins in after.instructions] == ["mul", "sgd", "mul", "mul"], "nothing moves across an update"


def test_lists_hold_a_bounded_number_of_elements_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists_in_a_row, "MOST", 6)
    after = in_a_row(average(5), alike)
    assert [ins.op.name for ins in after.instructions] == ["mul"] * 3 + ["add_scaled"] * 3 + ["mul"] * 2 + ["add_scaled"] * 2
    same(after, average(5))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 30), st.sampled_from([0.5, 0.25])), max_size=16))
def test_random_programs_give_the_same_numbers(steps: list[tuple[bool, int, int, float]]) -> None:
    values, body = [1, 2, 3], []
    for i, (is_sum, a, b, by) in enumerate(steps):
        x, y = values[a % len(values)], values[b % len(values)]
        body.append(plus(10 + i, x, y, by) if is_sum else mul(10 + i, x, by))
        values.append(10 + i)
    before = program(3, body, tuple(values[3:]))
    after = in_a_row(before, alike)
    assert sorted(ins.results for ins in after.instructions) == sorted(ins.results for ins in body)
    same(after, before)
