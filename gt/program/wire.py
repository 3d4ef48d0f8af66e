"""The message that defines a program, written and read. A definition comes from another process: it is checked here, once,
before code is generated from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from gt.errors import ProtocolError
from gt.ops.table import Kind
from gt.program import Hole, Instruction, Program
from gt.program.code import FREES, Encoded, Form, KindOf, encoded, free, freed_id, is_free
from gt.spec import Spec

LINE = 128  # characters of a user's line


class TraceDef(msgspec.Struct, frozen=True, array_like=True):
    """A program that is called by one instruction: `(number, *results, *inputs, *numbers for the holes)`. The body's ids are
    values, numbered from 1, inputs first; `results` are values too. A hole is a list of positions, each (index in the body,
    index in that instruction), which a number of the call fills; `dies` are the inputs that the call frees; `compile` is the
    user's request to compile it; `lines` are the user's lines, one for each instruction that is no free, or empty."""

    number: int
    inputs: int
    body: list[Encoded]
    results: tuple[int, ...]
    holes: tuple[tuple[tuple[int, int], ...], ...] = ()
    dies: tuple[int, ...] = ()
    compile: bool = False
    lines: tuple[str, ...] = ()


def write(program: Program) -> TraceDef:
    """The definition of a program."""
    body: list[tuple[Any, ...]] = []
    holes: list[list[tuple[int, int]]] = [[] for _ in range(program.holes)]
    for ins in program.instructions:
        operands = list(ins.operands)
        if any(type(o) is Hole for o in operands):
            form = Form.of(ins.kind)
            for i, operand in enumerate(operands):
                if type(operand) is Hole:
                    holes[operand.index].append((len(body), form.at(i)))
                    operands[i] = 0
        body.append(encoded(ins.number, ins.results, operands))
        body += map(free, ins.frees)
    lines = tuple(ins.line[:LINE] for ins in program.instructions)
    return TraceDef(
        program.number, program.inputs, body, program.results, tuple(map(tuple, holes)), program.dying, program.compile,
        lines if any(lines) else (),
    )  # fmt: skip


def read(definition: TraceDef, kind_of: KindOf) -> Program:
    """The program of a definition. Raises ProtocolError if the definition is invalid."""
    reader = TraceReader(definition, kind_of)
    reader.advance(len(definition.body))
    return reader.program()


class TraceReader:
    """Reads a definition, in parts if it is long."""

    def __init__(self, definition: TraceDef, kind_of: KindOf) -> None:
        self.definition, self.kind_of = definition, kind_of
        if not 0 <= definition.inputs <= sum(map(len, definition.body)):
            raise self.wrong(f"expected at most as many inputs as the body has numbers, got {definition.inputs}")
        self.live = set(range(1, definition.inputs + 1))  # values that are not freed
        self.last = definition.inputs
        self.specs: dict[Any, Spec] = {}
        self.hole: dict[tuple[int, int], int] = {}
        for i, positions in enumerate(definition.holes):
            for position in positions:
                if position in self.hole:
                    raise self.wrong(f"two holes at position {position}")
                self.hole[position] = i
        self.found = 0  # positions of holes that were found to be numbers
        self.kinds: dict[Any, Kind] = {}  # by number
        self.instructions: list[Instruction] = []  # all but the last, behind which values may be freed
        self.row: dict[str, Any] = {}  # of the last: number, kind, results, operands
        self.frees: list[int] = []  # values that are freed behind it
        computing = sum(not is_free(code) for code in definition.body) if definition.lines else 0
        self.lines = definition.lines if len(definition.lines) == computing else ()
        self.index = 0  # of the next instruction
        self.early: list[int] = []  # values freed before the first instruction

    def wrong(self, what: str) -> ProtocolError:
        return ProtocolError(f"invalid trace {self.definition.number}: {what}")

    def advance(self, count: int) -> bool:
        """Read so many instructions more. Returns whether all are read."""
        body = self.definition.body
        for index in range(self.index, min(self.index + count, len(body))):
            if is_free(body[index]):
                self._free(body[index])
            else:
                self._op(index, body[index])
        self.index += count
        return self.index >= len(body)

    def program(self) -> Program:
        """The program, once all instructions are read."""
        found = self.definition
        if not self.live.issuperset(found.results) or len(set(found.results)) != len(found.results):
            raise self.wrong(f"expected distinct, live values as results, got {found.results}")
        if any(r <= found.inputs for r in found.results):
            raise self.wrong(f"expected results that are no inputs, got {found.results}")
        if self.found != len(self.hole):
            raise self.wrong(f"expected holes at positions of numbers, got {found.holes}")
        if not all(0 <= i < found.inputs for i in found.dies) or len(set(found.dies)) != len(found.dies):
            raise self.wrong(f"expected distinct inputs to free, got {found.dies}")
        self._end_row()
        return Program(
            found.number, found.inputs, tuple(self.instructions), found.results, len(found.holes), found.dies, found.compile
        )

    def _free(self, code: Encoded) -> None:
        if len(code) != FREES.length or type(freed_id(code)) is not int or freed_id(code) not in self.live:
            raise self.wrong(f"instruction {code} frees an unknown value")
        value = freed_id(code)
        self.live.remove(value)
        self.frees.append(value)

    def _end_row(self) -> None:
        """No more values are freed behind the last instruction."""
        if self.row:
            line = self.lines[len(self.instructions)] if self.lines else ""
            frees, self.frees = (*self.frees, *self.early), []
            self.early.clear()
            self.instructions.append(Instruction(**self.row, frees=frees, line=printable(line)))
        else:
            self.early, self.frees = self.frees, []

    def _form(self, code: Encoded) -> tuple[Kind, Form]:
        kind = self.kind_of(code[0]) if code and type(code[0]) is int else None
        if kind is None or len(code) != Form.of(kind).length:
            raise self.wrong(f"instruction {code} is of no known kind")
        return kind, Form.of(kind)

    def _op(self, index: int, code: Encoded) -> None:
        kind, form = self._form(code)
        for i, spec in zip(form.tensor_positions, (kind.ins[i] for i in kind.tensor_operands)):
            value = code[i]
            if type(value) is not int or value not in self.live:
                raise self.wrong(f"instruction {code} uses an unknown value")
            if self.specs.setdefault(value, spec) is not spec:
                raise self.wrong(f"{kind}: expected an operand of {spec}, got {self.specs[value]}")
        results: Any = code[form.results]
        for value, spec in zip(results, kind.outs):
            if type(value) is not int or value <= self.last:
                raise self.wrong(f"instruction {code} numbers its results out of order")
            self.live.add(value)
            self.specs[value] = spec
            self.last = value
        operands: list[Any] = list(code[form.operands])
        for i in form.numbers:
            if (index, i) in self.hole:
                operands[form.operand(i)] = Hole(self.hole[index, i])
                self.found += 1
        self._end_row()
        self.kinds[code[0]] = kind
        self.row = {"number": code[0], "kind": kind, "results": results, "operands": tuple(operands)}


def printable(line: str) -> str:
    """A user's line, shortened, with its unprintable characters removed."""
    return line if line.isprintable() and len(line) <= LINE else "".join(c for c in line[:LINE] if c.isprintable())


def expand(
    program: Program, call: tuple[Any, ...], name: Callable[[int], int]
) -> list[tuple[Instruction | None, tuple[Any, ...]]]:
    """The encoded instructions of a call, each with its Instruction (None: a free). Inputs and results get the call's ids,
    other values the ids that `name` gives."""
    form = Form.of_call(len(program.results), program.inputs, program.holes)
    names: dict[int, Any] = dict(zip(program.results, call[form.results]))
    names.update(zip(range(1, program.inputs + 1), call[form.inputs]))
    given = call[form.given]
    out: list[tuple[Instruction | None, tuple[Any, ...]]] = []
    for ins in program.instructions:
        for value in ins.results:
            if value not in names:
                names[value] = name(value)
        operands = [
            names[o] if type(spec) is Spec else given[o.index] if type(o) is Hole else o
            for o, spec in zip(ins.operands, ins.kind.ins)
        ]
        out.append((ins, encoded(ins.number, [names[r] for r in ins.results], operands)))
        out += [(None, free(names[v])) for v in ins.frees]
    return out
