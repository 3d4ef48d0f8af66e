"""Gradients of slices, which are zero elsewhere, are written into one another instead of added up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import ENGINE

from gt.ops import infer, row
from gt.program import Hole, Instruction, Program, run, with_frees
from gt.spec import Spec, float32
from gt.worker.programs.passes.sums_of_pieces import write_pieces

WHOLE = Spec((3, 4), float32)
ADD, NEG = infer(row("add"), (WHOLE, WHOLE), ()), infer(row("neg"), (WHOLE,), ())


def piece(value: int, of: int, at: tuple[Any, Any], take: tuple = ((-1, 1), (4, 1))) -> Instruction:
    shape = tuple(size for size, _ in take if size >= 0)
    kind = infer(row("slice_grad"), (Spec(shape, float32), int, int), (WHOLE.shape, take))
    return Instruction(abs(hash((take, "piece"))), kind, (value,), (of, *at))


def plus(value: int, a: int, b: int) -> Instruction:
    return Instruction(1, ADD, (value,), (a, b))


def program(inputs: int, body: list[Instruction], results: tuple[int, ...]) -> Program:
    holes = 1 + max((h for ins in body for h in ins.holes), default=-1)
    return Program(7, inputs, with_frees(body, {*results, *range(1, inputs + 1)}), results, holes=holes)


def arrays(program: Program) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    specs = program.specs
    return [rng.standard_normal(specs[i].shape if i in specs else ()).astype(np.float32) for i in range(1, program.inputs + 1)]


def same(after: Program, before: Program) -> None:
    given = arrays(before), [1] * before.holes
    for a, b in zip(run(after, *given, ENGINE.kernel), run(before, *given, ENGINE.kernel), strict=True):
        np.testing.assert_array_equal(a, b)


def names(program: Program) -> list[str]:
    return [ins.op.name for ins in program.instructions]


@pytest.mark.parametrize("turned", [False, True])
def test_the_gradients_of_a_tensor_s_slices_are_written_into_one(turned: bool) -> None:
    sums = [plus(14, 11, 10), plus(15, 12, 14)] if turned else [plus(14, 10, 11), plus(15, 14, 12)]
    body = [piece(10, 1, (0, 0)), piece(11, 2, (1, 0)), sums[0], piece(12, 3, (2, 0)), sums[1]]
    before = program(3, [*body, Instruction(2, NEG, (16,), (15,))], (16,))
    after = write_pieces(before)
    assert names(after) == ["slice_grad", "slice_put", "slice_put", "neg"]
    assert [ins.in_place for ins in after.instructions] == [False, True, True, False]
    assert after.instructions[1].frees and not set(after.instructions[1].frees) & {1, 2, 3}
    same(after, before)


@pytest.mark.parametrize(
    "body, results",
    [
        ([piece(10, 1, (0, 0)), piece(11, 2, (0, 0)), plus(12, 10, 11)], (12,)),  # the same places
        ([piece(10, 1, (0, 0)), piece(11, 2, (Hole(0), 0)), plus(12, 10, 11)], (12,)),  # places given by each call
        ([piece(10, 1, (0, 0)), piece(11, 2, (1, 0)), plus(12, 10, 11)], (12, 10)),  # someone else has the first
        ([piece(10, 1, (0, 0)), piece(11, 2, (1, 0)), plus(12, 10, 11), plus(13, 11, 12)], (13,)),  # or the second
        ([piece(10, 1, (0, 0)), plus(12, 10, 10)], (12,)),
    ],
)  # fmt: skip
def test_other_sums_stay(body: list[Instruction], results: tuple[int, ...]) -> None:
    before = program(2, body, results)
    assert write_pieces(before) is before


TAKES = st.sampled_from([((-1, 1), (4, 1)), ((1, 1), (2, 1)), ((2, 1), (2, 2)), ((3, -1), (-1, 1)), ((0, 1), (4, 1))])


@settings(max_examples=200, deadline=None)
@given(st.lists(TAKES, min_size=2, max_size=6), st.data())
def test_sums_of_any_pieces_are_right(takes: list, data: st.DataObject) -> None:
    body, values = [], []
    for i, take in enumerate(takes):
        kind = piece(20 + i, 1 + i, (0, 0), take).kind
        limits = {at: (low, high) for at, low, high in row("slice_grad").limits(kind)}  # type: ignore[misc]
        starts = tuple(data.draw(st.integers(*limits.get(at, (0, 0)))) for at in (1, 2))
        body.append(piece(20 + i, 1 + i, starts, take))  # type: ignore[arg-type]
        values.append(20 + i)
    for i in range(len(takes) - 1):
        a, b = (values.pop(data.draw(st.integers(0, len(values) - 1))) for _ in range(2))
        body.append(plus(40 + i, a, b))
        values.append(40 + i)
    before = program(len(takes), body, (values[0],))
    same(write_pieces(before), before)
