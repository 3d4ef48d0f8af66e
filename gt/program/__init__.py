"""A program: instructions in single-assignment form. Clients find programs in loops, the dispatcher plans them for each worker,
and a worker transforms them pass by pass. `wire.py` writes and reads the message that defines a program, `stretch.py` reads a
program from a stream of encoded instructions, `text.py` prints it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from gt.ops.estimate import estimated_seconds
from gt.ops.table import Kind, Row
from gt.program.text import text
from gt.spec import Spec

NOTHING: Mapping[int, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Hole:
    """A number that each call of a program supplies, by its index among these numbers."""

    index: int

    def __str__(self) -> str:
        return f"N{self.index}"


@dataclass(frozen=True, slots=True)
class Instruction:
    """An op of a program. Values are numbered from 1, inputs of the program first; at most one instruction assigns a value.
    Each of the `operands` is a value, a number, or a Hole.

    `frees` are the values whose live range ends with this instruction. `line` is the user's line, if known. Passes set the
    other fields: `parts` are instructions that this one runs in one call, `in_order`: later parts may use the results of
    earlier ones, and results that it also frees are never seen outside of it, `in_place`: the result overwrites the first
    operand, `side`: it runs on a second stream."""

    number: int  # the number of its kind
    kind: Kind
    results: tuple[int, ...]
    operands: tuple[Any, ...]
    frees: tuple[int, ...] = ()
    line: str = ""
    parts: tuple[Instruction, ...] = ()
    in_place: bool = False
    side: bool = False
    in_order: bool = False

    @property
    def op(self) -> Row:
        return self.kind.row

    @property
    def values(self) -> tuple[int, ...]:
        """The operands that are values."""
        if self.parts:
            return tuple([v for part in self.parts for v in part.values])
        return tuple([self.operands[i] for i in self.kind.tensor_operands])

    @property
    def numbers(self) -> tuple[Any, ...]:
        """The operands that are numbers or holes."""
        if self.parts:
            return tuple(n for part in self.parts for n in part.numbers)
        return tuple([o for o, spec in zip(self.operands, self.kind.ins) if type(spec) is not Spec])

    @property
    def holes(self) -> tuple[int, ...]:
        return tuple(n.index for n in self.numbers if type(n) is Hole)

    @property
    def reads(self) -> frozenset[int]:
        """The values whose elements it reads; an op that creates a tensor reads an operand's shape only."""
        return frozenset() if self.kind.row.creates else frozenset(self.values)

    @property
    def specs(self) -> tuple[Spec, ...]:
        """The specs of the operands that are values."""
        return tuple([part.kind.ins[i] for part in self.parts or (self,) for i in part.kind.tensor_operands])

    @property
    def made(self) -> tuple[Spec, ...]:
        """The specs of the results."""
        return tuple([spec for part in self.parts for spec in part.kind.outs]) if self.parts else self.kind.outs

    @property
    def seconds(self) -> float:
        """The estimated time on one core of a CPU."""
        return sum([estimated_seconds(part.kind) for part in self.parts or (self,)])

    def mapped(self, value: Mapping[int, int], hole: Mapping[int, int] | None = None) -> Instruction:
        """The same instruction with its values and, if given, its holes renamed."""
        operands = [
            value[o] if type(spec) is Spec else Hole(hole[o.index]) if hole is not None and type(o) is Hole else o
            for o, spec in zip(self.operands, self.kind.ins)
        ]
        return replace(
            self,
            results=tuple([value[r] for r in self.results]),
            operands=tuple(operands),
            frees=tuple([value[v] for v in self.frees if v in value]),
            parts=tuple([part.mapped(value, hole) for part in self.parts]),
        )


@dataclass(frozen=True, slots=True)
class Program:
    """A call supplies the values 1 to `inputs`, and a number for each of the `holes`. `results` are the values that outlive the
    call, `dying` the inputs, counted from 0, that the call frees. `constants` are values that are the same in every call."""

    number: int
    inputs: int
    instructions: tuple[Instruction, ...]
    results: tuple[int, ...]
    holes: int = 0
    dying: tuple[int, ...] = ()
    compile: bool = False  # the user requested a compiled form
    constants: Mapping[int, Any] = field(default_factory=lambda: NOTHING, compare=False)

    def __str__(self) -> str:
        return text(self)

    @property
    def kinds(self) -> dict[int, Kind]:
        """The kinds of its instructions, by number."""
        return {part.number: part.kind for ins in self.instructions for part in ins.parts or (ins,)}

    @property
    def specs(self) -> dict[int, Spec]:
        """The specs of its values; an input that no instruction uses has none."""
        found: dict[int, Spec] = {}
        for ins in self.instructions:
            found.update(zip(ins.values, ins.specs))
            found.update(zip(ins.results, ins.made))
        return found

    @property
    def line(self) -> str:
        """The first of its user's lines, if any is known."""
        return next((ins.line for ins in self.instructions if ins.line), "")

    @property
    def freed(self) -> set[int]:
        """Values whose live range ends inside the program."""
        return {v for ins in self.instructions for v in ins.frees}

    def with_instructions(self, instructions: Iterable[Instruction], **changed: Any) -> Program:
        return replace(self, instructions=tuple(instructions), **changed)


def last_uses(instructions: Sequence[Instruction]) -> dict[int, int]:
    """The index of each value's last use: the last instruction with it as an operand, or the one that assigns an unused
    result."""
    last: dict[int, int] = {}
    for index, ins in enumerate(instructions):
        last.update(dict.fromkeys((*ins.results, *ins.values), index))
    return last


def with_frees(instructions: Sequence[Instruction], alive: set[int]) -> tuple[Instruction, ...]:
    """The program in which each value that is not a result is freed after its last use."""
    ends: dict[int, list[int]] = {}
    for value, index in last_uses(instructions).items():
        if value not in alive:
            ends.setdefault(index, []).append(value)
    return tuple([
        Instruction(
            ins.number, ins.kind, ins.results, ins.operands, tuple(ends.get(i, ())), ins.line, ins.parts, ins.in_place,
            ins.side, ins.in_order,
        )
        for i, ins in enumerate(instructions)
    ])  # fmt: skip


def run(
    program: Program, inputs: Sequence[Any], numbers: Sequence[Any], kernel: Callable[[Kind], Callable[..., Any]]
) -> list[Any]:
    """The results, computed instruction by instruction: the reference for every pass. Using a freed value raises KeyError."""
    table: dict[int, Any] = {**program.constants, **dict(enumerate(inputs, 1))}
    for ins in program.instructions:
        for part in ins.parts or (ins,):
            operands = [
                table[o] if type(spec) is Spec else numbers[o.index] if type(o) is Hole else o
                for o, spec in zip(part.operands, part.kind.ins)
            ]
            made = kernel(part.kind)(*operands)
            for value, array in zip(part.results, made if len(part.results) > 1 else (made,)):
                assert value not in table, f"value {value} is assigned twice"
                table[value] = array
        for value in ins.frees:
            del table[value]
    return [table[r] for r in program.results]
