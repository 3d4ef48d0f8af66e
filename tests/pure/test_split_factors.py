"""Factors of products are split once, and anew where one may have been overwritten."""

from __future__ import annotations

from typing import Any

import pytest

from gt.ops import infer, row
from gt.program import Instruction, Program, with_frees
from gt.spec import Spec, bfloat16, float32
from gt.worker.engine.torch.product_sizes import product_sizes
from gt.worker.programs.passes import split_factors as passes
from gt.worker.programs.passes.split_factors import SPLIT, SPLIT_PRODUCT, split_factors

X, W, B = Spec((2048, 384), float32), Spec((512, 384), float32), Spec((512,), float32)
Y = Spec((2048, 512), float32)
LINEAR, BACK = infer(row("linear"), (X, W, B), ()), infer(row("matmul"), (Y, W), ())
WEIGHT, UPDATE = infer(row("linear_weight_grad"), (Y, X), ()), infer(row("sgd"), (W, W, float, float), (False,))
STEP = [
    Instruction(1, LINEAR, (5,), (1, 2, 3)), Instruction(2, BACK, (6,), (4, 2)), Instruction(3, WEIGHT, (7,), (4, 1))
]  # fmt: skip


def program(body: list[Instruction], results: tuple[int, ...]) -> Program:
    return Program(7, 4, with_frees(body, {1, 2, 3, 4, *results}), results)


def split(p: Program) -> Program:
    return split_factors(p, lambda ins: product_sizes(ins.kind))


def splits(p: Program) -> list[Any]:
    return [ins.operands[0] for ins in p.instructions if ins.op is SPLIT]


def test_a_step_splits_each_factor_once() -> None:
    after = split(program(STEP, (5, 6, 7)))
    assert splits(after) == [1, 2, 4]
    products = [ins for ins in after.instructions if ins.op is SPLIT_PRODUCT]
    assert [ins.results for ins in products] == [(5,), (6,), (7,)] and [len(ins.operands) for ins in products] == [3, 2, 2]
    made = {ins.operands[0]: ins.results[0] for ins in after.instructions if ins.op is SPLIT}
    assert [ins.operands[:2] for ins in products] == [(made[1], made[2]), (made[4], made[2]), (made[4], made[1])]
    assert products[0].operands[2] == 3 and min(made.values()) > 7
    assert {spec.dtype for ins in products for spec in ins.kind.ins[:2]} == {bfloat16}
    assert [ins.kind.outs for ins in products] == [LINEAR.outs, BACK.outs, WEIGHT.outs]
    assert len({ins.number for ins in after.instructions}) == 6, "two factors have one shape, all others are kinds of their own"
    assert set(made.values()) <= after.freed


def test_a_factor_that_an_update_may_have_overwritten_is_split_again() -> None:
    update = Instruction(4, UPDATE, (8,), (2, 7, 0.1, 0.0))
    again = Instruction(1, LINEAR, (9,), (1, 8, 3))
    assert splits(split(program([*STEP, update, again], (5, 6, 8, 9)))) == [1, 2, 4, 1, 8]


def test_pieces_past_the_limit_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "KEPT", 1)
    assert splits(split(program(STEP, (5, 6, 7)))) == [1, 2, 4, 1], "those of a product at hand are"


def test_a_program_without_large_products_stays_as_it_is() -> None:
    small = infer(row("matmul"), (Spec((4, 4), float32), Spec((4, 4), float32)), ())
    before = Program(7, 2, with_frees([Instruction(1, small, (3,), (1, 2))], {1, 2, 3}), (3,))
    assert split(before) is before
