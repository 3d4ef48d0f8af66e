"""Collectives begin when their operands are there, and in buckets; the program gives the same results as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from programs import ADD, ENGINE, MUL, NEG, X, arrays, op

from gt.ops import Kind, infer, row
from gt.program import Hole, Instruction, Program, run, with_frees
from gt.worker.programs.passes.constants import fold_constants
from gt.worker.programs.passes.early_collectives import early_collectives, in_buckets
from gt.worker.programs.passes.unused import without_unused


def reduce(number: int, results: tuple[int, ...], *operands: int) -> Instruction:
    kind = infer(row("all_reduce"), (*[X] * len(operands), int), ((0, 1), "sum"))
    return Instruction(number, kind, results, (*operands, Hole(0)))


def kernel(kind: Kind) -> Callable[..., Any]:
    if not kind.row.collective:
        return ENGINE.kernel(kind)
    return lambda *given: 2 * given[0] if len(given) == 2 else tuple(2 * x for x in given[:-1])


def made(inputs: int, body: list[Instruction], results: tuple[int, ...]) -> Program:
    return Program(40, inputs, with_frees(body, set(results)), results, 1, tuple(range(inputs)))


def same(after: Program, before: Program) -> None:
    for a, b in zip(*(run(p, arrays(before.inputs), [7], kernel) for p in (after, before))):
        np.testing.assert_array_equal(a, b)


def test_a_collective_follows_its_operands_and_passes_no_other_collective() -> None:
    body = [
        op(NEG, 3, 1), op(MUL, 4, 3, 2), op(NEG, 5, 4), op(ADD, 6, 5, 4), reduce(-1, (7,), 5), reduce(-2, (8,), 3),
        op(ADD, 9, 7, 8), reduce(-3, (10,), 9), op(ADD, 11, 10, 6),
    ]  # fmt: skip
    before = made(2, body, (11,))
    after = early_collectives(before)
    assert [ins.results[0] for ins in after.instructions] == [3, 4, 5, 7, 8, 6, 9, 10, 11]
    same(after, before)


def test_a_collective_of_many_tensors_is_cut_into_buckets_the_last_tensors_first() -> None:
    body = [
        op(NEG, 3, 1), op(NEG, 4, 2), op(ADD, 5, 3, 4), op(MUL, 6, 5, 5), reduce(-1, (7, 8, 9, 10), 6, 5, 4, 3),
        op(ADD, 11, 7, 8), op(ADD, 12, 9, 10),
    ]  # fmt: skip
    before = made(2, body, (11, 12))
    cut = in_buckets(before, 2 * X.nbytes)
    sums = [ins for ins in cut.instructions if ins.op.collective]
    assert [ins.results for ins in sums] == [(9, 10), (7, 8)] and len({ins.number for ins in sums}) == 2
    assert sums[0].operands == (4, 3, Hole(0)) and sums[0].kind.settings == body[4].kind.settings
    same(cut, before)
    after = early_collectives(cut)
    assert [ins.results[0] for ins in after.instructions] == [3, 4, 9, 5, 6, 7, 11, 12]
    same(after, before)
    assert in_buckets(before, 4 * X.nbytes) is before


def test_a_collective_stays_though_nobody_uses_it_or_its_operand_is_a_constant() -> None:
    from programs import FULL

    unused = Instruction(-1, infer(row("all_reduce"), (X, int), ((0, 1), "sum")), (3,), (2, 5))
    before = made(1, [op(FULL, 2, 0.5), unused, op(NEG, 4, 1)], (4,))
    assert without_unused(before) is before
    folded = fold_constants(before, lambda ins, known: (kernel(ins.kind)(*ins.operands),))
    assert [ins.op.name for ins in folded.instructions] == ["all_reduce", "neg"]
