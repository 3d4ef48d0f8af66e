"""Each pass of a worker, alone: the program gives the same results before and after it."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from programs import (
    ADD,
    ENGINE,
    FULL,
    LIKE,
    MOMENTUM,
    MUL,
    NEG,
    NUMBERS,
    RESHAPE,
    SCALE,
    SGD,
    arrays,
    calls,
    op,
    program,
    programs,
)

from gt.ops import Kind
from gt.program import Hole, Instruction, Program, run
from gt.worker.programs.codegen import KernelTable, straight_line
from gt.worker.programs.passes.constants import fold_constants
from gt.worker.programs.passes.fuse_updates import fuse_updates
from gt.worker.programs.passes.in_place import write_in_place
from gt.worker.programs.passes.numpy_form import numpy_form
from gt.worker.programs.passes.segments import FreedValues, ProgramSegment, segment, segments
from gt.worker.programs.passes.side_stream import off_critical_path
from gt.worker.programs.passes.split_updates import split_updates
from gt.worker.programs.passes.unused import without_unused
from gt.worker.programs.peak import peak

FRESH = {NUMBERS[id(k)] for k in (ADD, MUL, SCALE, NEG)}


def updates(kind: Kind) -> bool:
    return kind.row.updates


def evaluate(ins: Instruction, known: dict[int, Any]) -> tuple:
    operands = [
        known.get(o, np.full((2, 3), np.nan, np.float32)) if i in ins.kind.tensor_operands else o
        for i, o in enumerate(ins.operands)
    ]
    made = ENGINE.kernel(ins.kind)(*operands)
    return made if len(ins.results) > 1 else (made,)


@given(programs())
def test_the_peak_of_a_program_is_never_less_than_the_memory_of_its_values(made: Program) -> None:
    table: dict[int, Any] = dict(enumerate(arrays(made.inputs), 1))
    start = sum(a.nbytes for a in table.values())
    numbers = [0.5] * made.holes
    most = 0
    for ins in made.instructions:
        operands = [numbers[o.index] if isinstance(o, Hole) else o for o in ins.operands]
        operands = [table[o] if i in ins.kind.tensor_operands else o for i, o in enumerate(operands)]
        found = ENGINE.kernel(ins.kind)(*operands)
        table.update(zip(ins.results, found if len(ins.results) > 1 else (found,)))
        most = max(most, sum(dict(map(ENGINE.buffer, table.values())).values()) - start)
        for value in ins.frees:
            del table[value]
    assert most <= peak(made)


def test_the_peak_of_a_chain_is_two_of_its_values() -> None:
    body = [op(NEG, n + 1, n) for n in range(1, 9)]
    assert peak(program(1, body, (9,))) == 2 * 24 and peak(program(1, [*body, op(RESHAPE, 10, 9)], (10,))) == 2 * 24


def same(found: Any, want: Any) -> None:
    assert len(found) == len(want)
    for a, b in zip(found, want):
        np.testing.assert_array_equal(a, b)


def checked(p: Program, after: Program) -> None:
    """The same results from the program before a pass, from the one after it, and from the generated function."""
    want = run(p, *calls(p), ENGINE.kernel)
    same(run(after, *calls(p), ENGINE.kernel), want)
    inputs, numbers = calls(p)
    same(straight_line(after, overwriting())(inputs, *numbers), want)
    assert not inputs, "the list is emptied, so that arrays end with their last use"


def overwriting() -> KernelTable:
    """NumPy's kernels: those for in-place instructions write over their first operand, those for fused updates over all their
    tensors but the gradients."""

    def over(kind: Kind) -> Any:
        def kernel(first: np.ndarray, *others: Any) -> np.ndarray:
            first[...] = ENGINE.kernel(kind)(first, *others)
            return first

        return kernel

    def fused(kind: Kind) -> Any:
        def kernel(calls: list[tuple]) -> list[tuple]:
            made = []
            for call in calls:
                found = ENGINE.kernel(kind)(*call)
                found = tuple(np.array(a) for a in (found if isinstance(found, tuple) else (found,)))
                for i, a in enumerate(call):
                    if isinstance(a, np.ndarray) and i != 1:
                        a[...] = np.nan
                made.append(found)
            return made

        return kernel

    from programs import KINDS

    copying = {n: lambda *operands, kind=kind: _copied(ENGINE.kernel(kind)(*operands)) for n, kind in KINDS.items()}
    copying[NUMBERS[id(RESHAPE)]] = ENGINE.kernel(RESHAPE)  # a view, as on every engine
    return KernelTable(copying, {n: over(kind) for n, kind in KINDS.items()}, fused)


def _copied(made: Any) -> Any:
    return tuple(map(np.array, made)) if isinstance(made, tuple) else np.array(made)


@given(programs())
def test_leaving_out_unused_ops_changes_nothing(p: Program) -> None:
    after = without_unused(p)
    checked(p, after)
    used = {*after.results, *(v for ins in after.instructions for v in ins.values)}
    assert all(used.intersection(ins.results) for ins in after.instructions)


@given(programs())
def test_fusing_updates_changes_nothing(p: Program) -> None:
    checked(p, fuse_updates(p, updates))


@given(programs())
def test_writing_in_place_changes_nothing(p: Program) -> None:
    checked(p, write_in_place(p, FRESH))


@given(programs())
def test_folding_constants_changes_nothing(p: Program) -> None:
    after = fold_constants(p, evaluate)
    checked(p, after)
    assert not {r for ins in after.instructions for r in ins.results} & after.constants.keys()


@given(programs())
def test_a_second_stream_changes_nothing_and_is_waited_for(p: Program) -> None:
    after = off_critical_path(fold_constants(fuse_updates(p, updates), evaluate))
    checked(p, after)
    pending: list[Any] = []

    class Watched:
        def run(self, kernel: Any, *operands: Any) -> Any:
            made = kernel(*operands)
            pending.extend(made if isinstance(made, tuple) else [made])
            return made

        def join(self) -> None:
            pending.clear()

    table = overwriting()
    inputs, numbers = calls(p)
    same(straight_line(after, table, flat=True, side=Watched())(*inputs, *numbers), run(p, *calls(p), ENGINE.kernel))
    assert not pending, "the side stream is waited for before the end"


@given(programs())
def test_both_halves_together_are_the_whole(p: Program) -> None:
    fused = fuse_updates(p, updates)
    halves = split_updates(fused)
    if halves is None:
        made = {r for ins in fused.instructions if ins.parts for r in ins.results}
        assert not made or any(made & set(ins.values) for ins in fused.instructions)
        return
    inputs, numbers = calls(p)
    first = run(halves.first, inputs, numbers, ENGINE.kernel)
    operands = [(*inputs, *first)[i] for i in halves.given]
    made = [*first, *run(halves.updates, operands, numbers, ENGINE.kernel)]
    same([made[i] for i in halves.results], run(p, inputs, numbers, ENGINE.kernel))


@given(programs(updates=False))
def test_the_form_for_numpy_changes_nothing(p: Program) -> None:
    found = numpy_form(p, {"add", "mul", "neg"})
    plain = all(ins.op.name in ("add", "mul", "neg") for ins in p.instructions)
    assert (found is not None) == plain
    if found is not None:
        checked(p, found[0])


@given(programs(), st.data())
def test_segments_one_after_another_are_the_whole(p: Program, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(p.instructions)))
    inputs, numbers = calls(p)
    table = dict(enumerate(inputs, 1))
    for chunk, behind in ((p.instructions[:cut], p.instructions[cut:]), (p.instructions[cut:], ())):
        wanted = {*p.results, *(v for ins in behind for v in (*ins.values, *ins.frees))}
        part = segment(p, list(chunk), wanted)
        made = run(part.program, [table[v] for v in part.inputs], [numbers[h] for h in part.holes], ENGINE.kernel)
        for i in part.program.dying:
            del table[part.inputs[i]]
        table.update(zip(part.results, made))
    same([table[r] for r in p.results], run(p, inputs, numbers, ENGINE.kernel))


# The effect of each, on programs written by hand


def test_updates_are_fused_where_the_last_of_them_stands() -> None:
    body = [op(SGD, 5, 1, 3, Hole(0), 0.0), op(NEG, 6, 4), op(SGD, 7, 2, 6, Hole(0), 0.0)]
    after = fuse_updates(program(4, body, (5, 7), (0, 1)), updates)
    assert [len(ins.parts) for ins in after.instructions] == [0, 2]
    assert after.instructions[1].results == (5, 7) and set(after.instructions[1].frees) == {1, 2, 6}
    assert "together:  # 2 sgd in one call, frees a, f, b" in str(after)


def test_an_update_whose_result_is_used_before_the_last_stays_by_itself() -> None:
    body = [op(SGD, 5, 1, 3, 0.5, 0.0), op(NEG, 6, 5), op(SGD, 7, 2, 6, 0.5, 0.0)]
    p = program(4, body, (5, 7), (0, 1))
    assert fuse_updates(p, updates) is p


def test_a_parameter_that_lives_on_is_not_written_over() -> None:
    p = program(2, [op(SGD, 3, 1, 2, 0.5, 0.0)], (3,))
    assert fuse_updates(p, updates) is p


def test_a_parameter_with_a_view_that_lives_on_is_not_written_over() -> None:
    p = program(2, [op(RESHAPE, 3, 1), op(SGD, 4, 1, 2, 0.5, 0.0)], (3, 4), dying=(0, 1))
    assert fuse_updates(p, updates) is p
    checked(p, fuse_updates(p, updates))


def test_a_dying_value_of_the_program_is_written_over() -> None:
    p = write_in_place(program(2, [op(ADD, 3, 1, 2), op(SCALE, 4, 3, 2.0), op(MUL, 5, 4, 4)], (5,), (0,)), FRESH)
    assert [ins.in_place for ins in p.instructions] == [False, True, False]  # an input is another's, 4 stands twice
    seen = program(2, [op(ADD, 3, 1, 2), op(RESHAPE, 4, 3), op(NEG, 5, 3)], (4, 5))
    assert write_in_place(seen, FRESH) is seen  # there is a view of it


def test_a_value_computed_of_numbers_alone_is_a_constant() -> None:
    body = [op(FULL, 2, 0.5), op(LIKE, 3, 1, 2.0), op(MUL, 4, 2, 3), op(ADD, 5, 4, 1), op(FULL, 6, Hole(0)), op(ADD, 7, 5, 6)]
    after = fold_constants(program(1, body, (7,)), evaluate)
    assert set(after.constants) == {2, 3, 4} and [ins.op.name for ins in after.instructions] == ["add", "full", "add"]
    assert "constant" in str(after)


def test_instructions_off_the_critical_path_run_on_the_side_stream() -> None:
    body = [op(NEG, 3, 1), op(MUL, 4, 3, 2), op(NEG, 5, 1), op(ADD, 6, 4, 4)]
    after = off_critical_path(program(2, body, (5, 6)))
    assert [ins.side for ins in after.instructions] == [False, False, True, False] and "side stream" in str(after)


def test_a_program_is_cut_at_its_collectives() -> None:
    from programs import X

    from gt.ops import infer, row
    from gt.program import with_frees

    reduce = infer(row("all_reduce"), (X, int), ((0, 1), "sum"))
    talk = Instruction(-1, reduce, (6,), (5, Hole(0)))
    body = [op(NEG, 3, 1), op(MUL, 4, 3, 2), op(NEG, 5, 4), talk, op(NEG, 7, 6)]
    p = Program(40, 2, with_frees(body, {2, 7}), (7,), 1, (0,))
    first, collective, ended, last, gone = segments(p)
    assert (
        isinstance(first, ProgramSegment) and first.inputs == (1, 2) and first.results == (5,) and first.program.dying == (0,)
    )
    assert (
        isinstance(collective, Instruction)
        and collective.kind is reduce
        and not collective.frees
        and ended == FreedValues((5,))
    )
    assert isinstance(last, Instruction) and last.results == (7,) and gone == FreedValues((6,))  # too short for a program


def test_passes_follow_one_another() -> None:
    body = [op(FULL, 5, 1.0), op(ADD, 6, 3, 5), op(MOMENTUM, (7, 8), 1, 6, 2, 0.5, 0.9, 0.0, 0.0), op(NEG, 9, 4)]
    p = program(4, body, (7, 8, 9), (0, 1))
    after = off_critical_path(fold_constants(fuse_updates(p, updates), evaluate))
    same(run(after, arrays(4), [], ENGINE.kernel), run(p, arrays(4), [], ENGINE.kernel))
    assert len(after.instructions) == 3 and after.constants


def test_an_output_that_nobody_looks_at_is_not_computed() -> None:
    p = program(2, [op(ADD, 3, 1, 2), op(NEG, 4, 3), op(MUL, 5, 4, 4), op(NEG, 6, 3)], (6,), (0,))
    after = without_unused(p)
    assert [ins.results for ins in after.instructions] == [(3,), (6,)] and without_unused(after) is after
    assert after.instructions[0].frees == (1,)
