"""Gradients of all slices of a tensor are concatenated, or left where they lie, instead of added up."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import ENGINE

from gt.ops import infer, row
from gt.program import Instruction, Program, run, with_frees
from gt.spec import Spec, float32
from gt.worker.engine.torch.joined import joining, side_by_side
from gt.worker.programs.passes.joined_pieces import join_pieces

WHOLE = Spec((3, 4), float32)
ADD = infer(row("add"), (WHOLE, WHOLE), ())
PICK = ((-1, 1), (4, 1))  # one index of the first axis


def piece(value: int, of: int, at: tuple[int, int], take: tuple = PICK) -> Instruction:
    shape = tuple(size for size, _ in take if size >= 0)
    kind = infer(row("slice_grad"), (Spec(shape, float32), int, int), (WHOLE.shape, take))
    return Instruction(abs(hash((take, "piece"))), kind, (value,), (of, *at))


def made(value: int, of: int, take: tuple = PICK, op: str = "neg") -> Instruction:
    spec = Spec(tuple(size for size, _ in take if size >= 0), float32)
    kind = infer(row(op), (spec,), () if op == "neg" else (spec.shape,))
    return Instruction(abs(hash((take, op))), kind, (value,), (of,))


def plus(value: int, a: int, b: int) -> Instruction:
    return Instruction(1, ADD, (value,), (a, b))


def program(inputs: int, body: list[Instruction], results: tuple[int, ...]) -> Program:
    return Program(7, inputs, with_frees(body, {*results, *range(1, inputs + 1)}), results)


def same(after: Program, before: Program) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(before.specs[i].shape).astype(np.float32) for i in range(1, before.inputs + 1)]
    for a, b in zip(run(after, arrays, [], ENGINE.kernel), run(before, arrays, [], ENGINE.kernel), strict=True):
        np.testing.assert_array_equal(a, b)


def names(program: Program) -> list[str]:
    return [ins.op.name for ins in program.instructions]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_pieces_that_make_up_a_tensor_are_concatenated(order: tuple[int, ...]) -> None:
    first = [made(10 + i, 1 + i) for i in range(3)]
    pieces = [piece(20 + i, 10 + i, (at, 0)) for i, at in enumerate(order)]
    before = program(3, [*first, pieces[0], pieces[1], plus(30, 20, 21), pieces[2], plus(31, 22, 30)], (31,))
    after = join_pieces(before)
    assert names(after) == ["neg"] * 3 + ["reshape"] * 3 + ["cat"]
    same(after, before)


def test_pieces_of_several_indices_need_no_other_shape() -> None:
    takes = [((3, 1), (1, 1)), ((3, 1), (3, 1))]
    body = [made(10, 1, takes[0]), made(11, 2, takes[1]), piece(20, 10, (0, 3), takes[0]), piece(21, 11, (0, 0), takes[1])]
    before = program(2, [*body, plus(30, 20, 21)], (30,))
    after = join_pieces(before)
    assert names(after) == ["neg", "neg", "cat"]
    same(after, before)


def test_other_forms_of_pieces_are_concatenated_if_nobody_else_uses_what_they_are_of() -> None:
    forms = [made(10 + i, 1 + i) for i in range(3)], [made(15 + i, 10 + i, op="reshape") for i in range(3)]
    pieces = [piece(20 + i, 15 + i, (i, 0)) for i in range(3)]
    body = [*forms[0], *forms[1], *pieces, plus(30, 20, 21), plus(31, 22, 30)]
    after = join_pieces(program(3, body, (31,)))
    assert names(after)[-1] == "cat"
    same(after, program(3, body, (31,)))
    other = program(3, body, (31, 11))
    assert join_pieces(other) is other


PIECES = [piece(20 + i, 10 + i, (i, 0)) for i in range(3)]
SUMS = [plus(30, 20, 21), plus(31, 22, 30)]


@pytest.mark.parametrize(
    "body, results",
    [
        ([*[made(10 + i, 1 + i) for i in range(3)], *PIECES[:2], SUMS[0]], (30,)),  # the last is missing
        ([*[made(10 + i, 1 + i) for i in range(3)], *PIECES, *SUMS], (31, 11)),  # someone else has a piece
        ([made(10, 1), made(11, 2), made(12, 3, op="reshape"), *PIECES, *SUMS], (31,)),  # the memory of an input
        (
            [*[made(10 + i, 1 + i) for i in range(3)], PIECES[0], PIECES[1], piece(22, 12, (1, 0)), *SUMS],
            (31,),
        ),  # twice the same
    ],
)
def test_other_sums_stay(body: list[Instruction], results: tuple[int, ...]) -> None:
    before = program(3, body, results)
    assert join_pieces(before) is before


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_tensors_side_by_side_are_concatenated_where_they_lie(data: st.DataObject) -> None:
    axes, axis = data.draw(st.permutations(range(3))), data.draw(st.integers(0, 2))
    whole = torch.arange(4 * 6 * 2.0).reshape(4, 6, 2).permute(axes)
    size = whole.shape[axis]
    each = data.draw(st.sampled_from([n for n in (1, 2, 3) if size % n == 0 and n < size]))
    pieces = list(whole.split(each, axis))
    for _ in range(data.draw(st.integers(0, 2))):  # none, or some that lie elsewhere
        i, j = (data.draw(st.integers(0, len(pieces) - 1)) for _ in range(2))
        pieces[i] = data.draw(st.sampled_from([pieces[j], pieces[i].clone(), pieces[i].flip(0)]))
    run = joining(partial(lambda *pieces, axis: torch.cat(pieces, axis), axis=axis))
    assert torch.equal(run(*pieces), torch.cat(pieces, axis))
    found = side_by_side(tuple(whole.split(each, axis)), axis)
    assert found is not None and found.data_ptr() == whole.data_ptr() and torch.equal(found, whole)
