"""Sums of residual connections are computed with the norms behind them, and added to the gradients of norms."""

from __future__ import annotations

import numpy as np
import pytest
from programs import ENGINE

from gt.ops import Kind, infer, row
from gt.program import Instruction, Program, run, with_frees
from gt.spec import Spec, float16, float32
from gt.worker.programs.passes.sums_in_norms import fuse_sums

X, W, SAVED = Spec((4, 3), float32), Spec((3,), float32), Spec((4, 1), float32)  # inputs 1 to 3 are like X, 4 and 5 like W


def ins(op: str, results: tuple[int, ...], operands: tuple, specs: tuple, statics: tuple = ()) -> Instruction:
    kind = infer(row(op), specs, statics)
    return Instruction(abs(hash((op, specs))), kind, results, operands)


def add(result: int, a: int, b: int, spec: Spec = X) -> Instruction:
    return ins("add", (result,), (a, b), (spec, spec))


def neg(result: int, a: int) -> Instruction:
    return ins("neg", (result,), (a,), (X,))


def norm(first: int, a: int, spec: Spec = X) -> Instruction:
    w = Spec((3,), spec.dtype)
    return ins("layer_norm", (first, first + 1, first + 2), (a, 1e-5, 4, 5), (spec, float, w, w), (1,))


def norm_grad(first: int, g: int, a: int, mean: int) -> Instruction:
    specs = (X, X, SAVED, SAVED, W)
    return ins("layer_norm_grad", (first, first + 1, first + 2), (g, a, mean, mean + 1, 4), specs, (1, True))


def program(body: list[Instruction], results: tuple[int, ...]) -> Program:
    return Program(7, 5, with_frees(body, {*results, *range(1, 6)}), results)


def names(program: Program) -> list[str]:
    return [ins.op.name for ins in program.instructions]


def always(kind: Kind) -> bool:
    return True


def same(after: Program, before: Program) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in [X.shape] * 3 + [W.shape] * 2]
    for a, b in zip(run(after, arrays, [], ENGINE.kernel), run(before, arrays, [], ENGINE.kernel), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_a_sum_is_computed_with_the_norm_that_uses_it_first() -> None:
    before = program([add(10, 1, 2), norm(20, 10), add(30, 10, 20), norm(40, 30)], (30, 40))
    after = fuse_sums(before, always)
    assert names(after) == ["add_layer_norm", "add_layer_norm"]
    same(after, before)


def test_the_gradient_of_a_norm_is_added_to_one_that_is_known_by_then() -> None:
    first = [norm(10, 1), neg(20, 2), norm_grad(30, 3, 1, 11), add(50, 20, 30)]
    before = program([*first, norm_grad(60, 50, 1, 11), add(70, 60, 50)], (31, 32, 61, 62, 70))
    after = fuse_sums(before, always)
    assert names(after) == ["layer_norm", "neg", "add_layer_norm_grad", "add_layer_norm_grad"]
    same(after, before)


@pytest.mark.parametrize(
    "body, results",
    [
        ([add(10, 1, 2), neg(11, 10), norm(20, 10)], (11, 20)),  # someone else uses the sum before
        ([norm(10, 1), norm_grad(30, 3, 1, 11), neg(20, 2), add(50, 20, 30)], (50,)),  # the other term comes later
        ([norm(10, 1), norm_grad(30, 3, 1, 11), add(50, 2, 30)], (30, 50)),  # a result of the program
        ([norm(10, 1), norm_grad(30, 3, 1, 11), add(50, 30, 30)], (50,)),  # twice the same
    ],
)
def test_other_sums_stay(body: list[Instruction], results: tuple[int, ...]) -> None:
    before = program(body, results)
    assert fuse_sums(before, always) is before


def test_only_kinds_with_a_kernel_are_fused_and_none_of_16_bits() -> None:
    before = program([add(10, 1, 2), norm(20, 10)], (20,))
    assert fuse_sums(before, lambda kind: False) is before
    half = Spec((4, 3), float16)
    before = program([add(10, 1, 2, half), norm(20, 10, half)], (20,))
    assert fuse_sums(before, always) is before
