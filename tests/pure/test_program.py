"""Programs: their text, their encoding, and how a stretch of a stream becomes one."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from programs import ADD, ENGINE, KINDS, MUL, NEG, SCALE, X, arrays, calls, op, program, programs

from gt.errors import ProtocolError
from gt.program import Hole, Program, last_uses, run
from gt.program.code import FREE, Form, freed, is_free, kind_table, ops
from gt.program.stretch import Stretch
from gt.program.wire import TraceDef, expand, read, write

STEP = program(
    2,
    [op(ADD, 3, 1, 2, line="train.py:11"), op(SCALE, 4, 3, Hole(0), line="train.py:12"), op(MUL, 5, 4, 2, line="train.py:13")],
    (5,),
    (0,),
)


def test_a_program_is_printed_as_one_would_write_it() -> None:
    assert str(STEP) == "\n".join([
        "program 40(a: float32[2, 3], b: float32[2, 3], N0):  # frees a",
        "    c = add(a, b)  # float32[2, 3], frees a, train.py:11",
        "    d = mul(c, N0)  # float32[2, 3], frees c, train.py:12",
        "    e = mul(d, b)  # float32[2, 3], frees d, train.py:13",
        "    return e",
    ])  # fmt: skip


def test_an_instruction_tells_values_numbers_and_holes_apart() -> None:
    _, scale, _ = STEP.instructions
    assert scale.op.name == "mul" and scale.results == (4,) and scale.values == (3,) and scale.numbers == (Hole(0),)
    assert scale.holes == (0,) and scale.specs == (X,) == scale.made
    assert STEP.specs == dict.fromkeys(range(1, 6), X) and STEP.freed == {1, 3, 4} and set(STEP.kinds) == {1, 2, 3}
    assert last_uses(STEP.instructions) == {1: 0, 2: 2, 3: 1, 4: 2, 5: 2}


def test_the_interpreter_frees_values_and_assigns_each_once() -> None:
    a, b = arrays(2)
    np.testing.assert_allclose(run(STEP, [a, b], [3.0], ENGINE.kernel)[0], (a + b) * 3.0 * b)
    late = STEP.with_instructions([*STEP.instructions, op(NEG, 6, 3)], results=(6,))
    with pytest.raises(KeyError):
        run(late, [a, b], [3.0], ENGINE.kernel)
    twice = STEP.with_instructions([*STEP.instructions, op(NEG, 5, 2)])
    with pytest.raises(AssertionError, match="assigned twice"):
        run(twice, [a, b], [3.0], ENGINE.kernel)


@given(programs())
def test_a_written_program_is_read_back_equal(p: Program) -> None:
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(write(p)), type=TraceDef)
    assert read(sent, KINDS.get) == p


def test_lines_travel_with_a_program_and_cannot_harm_a_terminal() -> None:
    sent = write(STEP)
    assert [ins.line for ins in read(sent, KINDS.get).instructions] == ["train.py:11", "train.py:12", "train.py:13"]
    odd = msgspec.structs.replace(sent, lines=("\x1b[2Ja", "b" * 1000, ""))
    assert [ins.line for ins in read(odd, KINDS.get).instructions] == ["[2Ja", "b" * 128, ""]
    short = msgspec.structs.replace(sent, lines=("only one",))
    assert not any(ins.line for ins in read(short, KINDS.get).instructions)


@pytest.mark.parametrize(
    "body, results, what",
    [
        ([(1, 3, 1, 9)], (3,), "uses an unknown value"),
        ([(1, 2, 1, 1)], (2,), "out of order"),
        ([(77, 3, 1, 2)], (3,), "is of no known kind"),
        ([(FREE, 9)], (), "frees an unknown value"),
        ([(FREE, 1), (1, 3, 1, 2)], (3,), "uses an unknown value"),
        ([(1, 3, 1, 2)], (1,), "inputs"),
        ([(1, 3, 1, 2)], (4,), "results"),
    ],
)
def test_a_definition_that_cannot_be_is_refused(body: list, results: tuple, what: str) -> None:
    with pytest.raises(ProtocolError, match=what):
        read(TraceDef(40, 2, body, results), KINDS.get)


@given(programs())
def test_a_call_stands_for_its_instructions(p: Program) -> None:
    """The expanded instructions give, over a table of ids, the program's results."""
    inputs, numbers = calls(p)
    ids = range(100, 100 + p.inputs)
    call = (40, *range(500, 500 + len(p.results)), *ids, *numbers)
    table = dict(zip(ids, inputs))
    for ins, code in expand(p, call, lambda value: -value):
        if ins is None:
            assert is_free(code)
            del table[code[1]]
            continue
        form = Form.of(ins.kind)
        operands = [table[code[i]] if i in form.tensor_positions else code[i] for i in range(form.at(0), form.length)]
        made = ENGINE.kernel(ins.kind)(*operands)
        table.update(zip(code[form.results], made if form.result_count > 1 else (made,)))
    for id, want in zip(call[1:], run(p, *calls(p), ENGINE.kernel)):
        np.testing.assert_array_equal(table[id], want)
    assert set(table) == {
        *call[1 : 1 + len(p.results)],
        *(id for i, id in enumerate(ids) if i not in p.dying or i + 1 not in p.freed),
    }


@given(programs())
def test_a_stretch_of_a_stream_reads_as_the_program_it_came_from(p: Program) -> None:
    """Numbers that were holes are given as such; inputs are numbered as they are first mentioned."""
    call = (40, *range(500, 500 + len(p.results)), *range(100, 100 + p.inputs), *[0.0] * p.holes)
    code = [c for _, c in expand(p, call, lambda value: -value)]
    stretch = Stretch(code, KINDS.get)
    live = [id for id in stretch.left if id >= 500]
    flat = [x for c in code for x in c]
    assert sorted(live) == list(call[1 : 1 + len(p.results)]) and not stretch.rest
    given = [flat[position] for position in stretch.first_at]
    dying = [i for i, id in enumerate(given) if id - 100 in p.dying]
    assert sorted(stretch.ended) == dying
    again = stretch.program(40, [stretch.left[id] for id in live], dying)
    inputs, _ = calls(p)
    want = dict(zip(call[1:], run(p, inputs, [0.0] * p.holes, ENGINE.kernel)))
    found = run(again, [inputs[id - 100] for id in given], [], ENGINE.kernel)
    for id, array in zip(live, found):
        np.testing.assert_array_equal(array, want[id])


def test_ids_that_are_used_again_stand_for_other_values() -> None:
    """As the dispatcher's temporaries are."""
    code = [(1, -1, 10, 11), (4, 20, -1), (FREE, -1), (1, -1, 20, 11), (4, 21, -1), (FREE, -1), (FREE, 10), (FREE, 77)]
    stretch = Stretch(code, KINDS.get)
    p = stretch.program(40, list(stretch.left.values()), stretch.ended)
    assert [ins.operands for ins in p.instructions] == [(1, 2), (3,), (4, 2), (5,)]
    assert stretch.rest == [77] and list(stretch.left) == [20, 21] and p.dying == (0,) and p.freed == {1, 3, 5}


def test_the_key_of_a_stretch_has_the_remaining_results() -> None:
    """Two results under one id leave one value, under two ids two."""
    one, two = (Stretch([(1, 20, 10, 11), (1, second, 10, 11)], KINDS.get) for second in (20, 21))
    assert one.signature == two.signature and one.key != two.key


def test_instructions_are_told_apart_by_their_number() -> None:
    code = [(1, 3, 1, 2), (FREE, 1), (-1,), (2, 4, 3, 3)]
    assert ops(code) == [code[0], code[3]] and freed(code) == {1} and kind_table("it") == {FREE: "it"}


# No other file knows how an instruction is encoded

ROOT = Path(__file__).parents[2] / "gt"
COUNTING = re.compile(
    r"1 \+ ([\w.]+\.)?(outs|result_count)\b|1 \+ len\([\w.]*outs\)|"
    r"\b(ins|call|code|instruction)\[1 ?[:+]|\b(ins|call|code)\[1 : 1 \+|"
    r"(?<![\w.])(ins|call|code|instruction)(\[0\])?\[-?[1-9]\d*\]"
)


@pytest.mark.parametrize(
    "path", sorted({*ROOT.rglob("*.py")} - {*ROOT.glob("ops/*.py")}), ids=lambda path: str(path.relative_to(ROOT))
)
def test_only_the_program_counts_in_instructions_and_tests_for_free(path: Path) -> None:
    if path == ROOT / "program" / "code.py":
        return
    for number, line in enumerate(path.read_text().splitlines(), 1):
        assert not re.search(r"\bFREE\b", line), f"{path.name}:{number} names FREE: use gt.program.code"
        assert not COUNTING.search(line), f"{path.name}:{number} counts where something stands: use gt.program.code.Form"


def test_the_rule_finds_such_lines() -> None:
    for line in (
        "ins[1 + outs + i]",
        "1 + form.result_count",
        "ins[1 : 1 + use.outs]",
        "lead = 1 + len(kind.outs)",
        "zip(ins[1:], made)",
        "entries[ins[1]]",
        "tags[ins[-1]]",
        "first = code[0][1]",
    ):
        assert COUNTING.search(line)
