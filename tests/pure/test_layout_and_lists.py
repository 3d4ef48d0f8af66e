"""Instructions that are alike, and pairs that share their work, run as one; on GPUs images are laid out for convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import ADD, ENGINE, MUL, NEG, SCALE, SGD, arrays, op, program, programs

from gt.ops import Kind, infer, row
from gt.program import Instruction, Program, run
from gt.spec import Spec, float32, float64
from gt.worker.programs.codegen import KernelTable, straight_line
from gt.worker.programs.passes import fuse_lists as passes_fuse_lists
from gt.worker.programs.passes.fuse_lists import fuse_lists, fuse_pairs
from gt.worker.programs.passes.image_layout import channels_last

LISTED = (ADD, MUL, NEG)


def alike(ins: Instruction) -> Kind | None:
    return ins.kind if ins.kind in LISTED else None


def many(kind: Kind) -> Any:
    kernel = ENGINE.kernel(kind)
    return lambda calls: [made if isinstance(made := kernel(*call), tuple) else (made,) for call in calls]


def same(after: Program, before: Program, many: Any = many) -> None:
    kernels = {n: ENGINE.kernel(kind) for n, kind in before.kinds.items()}
    numbers = [0.5] * before.holes
    made = straight_line(after, KernelTable(kernels, fused=many))(arrays(before.inputs), *numbers)
    for a, b in zip(made, run(before, arrays(before.inputs), numbers, ENGINE.kernel), strict=True):
        np.testing.assert_array_equal(a, b)


def lengths(program: Program) -> list[int]:
    return [len(ins.parts) for ins in program.instructions]


def test_instructions_in_a_row_that_are_alike_become_one() -> None:
    body = [op(MUL, 3 + i, 1, 2) for i in range(5)] + [op(NEG, 8 + i, 3 + i) for i in range(4)] + [op(ADD, 12, 8, 11)]
    before = program(2, body, (7, 9, 10, 12), (0,))
    after = fuse_lists(before, alike)
    assert lengths(after) == [5, 4, 0]
    assert set(after.instructions[0].frees) == {1} and set(after.instructions[1].frees) == {3, 4, 5, 6}
    same(after, before)


def test_few_instructions_and_those_that_use_one_another_s_results_stay() -> None:
    few = program(2, [op(MUL, 3, 1, 2), op(MUL, 4, 1, 1), op(MUL, 5, 2, 2)], (3, 4, 5))
    assert fuse_lists(few, alike) is few
    chain = program(2, [op(MUL, 3 + i, 2 + i, 1) for i in range(6)], (8,))
    assert fuse_lists(chain, alike) is chain
    other = program(2, [op(SCALE, 3 + i, 1, 0.5) for i in range(6)], (8,))
    assert fuse_lists(other, alike) is other
    apart = program(1, [op(NEG, 2, 1), op(NEG, 3, 2), *[op(NEG, 4 + i, 1) for i in range(4)]], (3, 4, 5, 6, 7))
    after = fuse_lists(apart, alike)  # the second uses the first's, the others may join it
    assert lengths(after) == [0, 5]
    same(after, apart)


def test_small_ones_wait_for_one_another_unless_something_uses_or_overwrites_what_they_have() -> None:
    between = [ins for i in range(4) for ins in (op(NEG, 3 + i, 1), op(SCALE, 10 + i, 2, 0.5))]
    results = (*range(3, 7), *range(10, 14))
    before = program(2, between, results)
    after = fuse_lists(before, alike)
    assert lengths(after) == [0, 0, 0, 4, 0]
    same(after, before)
    used = program(2, [*between[:5], op(SCALE, 20, 3, 0.5), *between[5:]], (*results, 20))
    assert fuse_lists(used, alike) is used
    updated = program(2, [*between[:5], op(SGD, 20, 2, 1, 0.1, 0.0), *between[5:]], (*results, 20))
    assert fuse_lists(updated, alike) is updated


def test_large_ones_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes_fuse_lists, "SMALL", 5)
    apart = program(2, [ins for i in range(4) for ins in (op(NEG, 3 + i, 1), op(SCALE, 10 + i, 2, 0.5))], tuple(range(3, 7)))
    assert fuse_lists(apart, alike) is apart
    row_ = program(2, [op(NEG, 3 + i, 1) for i in range(4)], tuple(range(3, 7)))
    assert lengths(fuse_lists(row_, alike)) == [4]


@settings(max_examples=200, deadline=None)
@given(programs(), st.integers(1, 4))
def test_fused_lists_compute_what_the_instructions_compute(before: Program, few: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes_fuse_lists, "FEW", few)
        same(fuse_lists(before, alike), before)


def half(ins: Instruction) -> tuple[int, bool] | None:
    """A sum and a product of the same first operand are a pair."""
    return (ins.operands[0], ins.kind is MUL) if ins.kind in (ADD, MUL) else None


def of_pair(last: Kind) -> Any:
    if last not in (ADD, MUL):
        return many(last)
    first = ADD if last is MUL else MUL
    return lambda calls: [(ENGINE.kernel(kind)(*call),) for kind, call in zip((first, last), calls, strict=True)]


def test_pairs_become_one_where_the_second_stands() -> None:
    body = [op(ADD, 3, 1, 2), op(NEG, 4, 2), op(MUL, 5, 1, 2), op(MUL, 6, 2, 2), op(ADD, 7, 2, 1), op(ADD, 8, 1, 1)]
    before = program(2, body, (3, 4, 5, 6, 7, 8))
    after = fuse_pairs(before, half)
    assert [[part.results[0] for part in ins.parts] or list(ins.results) for ins in after.instructions] == [
        [4], [3, 5], [6, 7], [8]
    ]  # fmt: skip
    same(after, before, of_pair)


def test_pairs_that_need_one_another_or_stand_on_both_sides_of_an_update_stay() -> None:
    needs = program(2, [op(ADD, 3, 1, 2), op(MUL, 4, 1, 3)], (4,))
    assert fuse_pairs(needs, half) is needs
    used = program(2, [op(ADD, 3, 1, 2), op(NEG, 4, 3), op(MUL, 5, 1, 2)], (4, 5))
    assert fuse_pairs(used, half) is used
    updated = program(2, [op(ADD, 3, 1, 2), op(SGD, 4, 2, 1, 0.1, 0.0), op(MUL, 5, 1, 1)], (3, 4, 5))
    assert fuse_pairs(updated, half) is updated


@settings(max_examples=200, deadline=None)
@given(programs())
def test_fused_pairs_compute_what_the_instructions_compute(before: Program) -> None:
    same(fuse_pairs(before, half), before, of_pair)


def network(dtype: Any = float32, groups: int = 1, norm: bool = False) -> Program:
    """Four convolutions of images by weights of one shape, one of which is updated."""
    image, weight = Spec((2, 4, 5, 5), dtype), Spec((4, 4 // groups, 3, 3), dtype)
    how = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": groups}
    conv = infer(row("conv"), (image, weight), tuple(how[n] for n in row("conv").statics))
    body = [Instruction(100, conv, (10 + i,), (1 if not i else 9 + i, 2 + i)) for i in range(4)]
    if norm:
        body.append(Instruction(101, infer(row("group_norm"), (image, float), (2,)), (14, 15, 16), (13, 1e-5)))
    step = infer(row("sgd_momentum"), (weight, weight, weight, *[float] * 4), (False, False))
    body.append(Instruction(102, step, (17, 18), (2, 6, 7, 0.1, 0.0, 0.9, 0.0)))
    return Program(50, 9, tuple(body), (13, 17, 18))


def test_convolutions_have_their_images_and_weights_with_the_state_of_these_channels_last() -> None:
    assert channels_last(network()) == {1, 2, 3, 4, 5, 6, 7}  # not the inputs that no convolution sees


def test_images_stay_where_the_other_layout_would_not_be_faster() -> None:
    assert (
        not channels_last(network(float64)) and not channels_last(network(groups=2)) and not channels_last(network(norm=True))
    )
    few = network()
    assert not channels_last(few.with_instructions(few.instructions[1:]))
