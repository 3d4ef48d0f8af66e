"""The end of each instruction inside a program, for the instruction log: a program is otherwise timed as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gt.program import Instruction, Program
from gt.transport.events import PART

Entry = tuple[int, int]  # the program's number, and PART less the position of an instruction in it


class Ticks:
    """`note` is called as an instruction of a program ends, while someone wants the times of single instructions."""

    __slots__ = ("note",)

    def __init__(self) -> None:
        self.note: Callable[[tuple[Entry, ...]], None] | None = None

    def tick(self, ended: tuple[Entry, ...]) -> None:
        if self.note is not None:
            self.note(ended)


class Ticked(NamedTuple):
    """For a program's timed form: whom to tell, and the position of each value's instruction in the program as received."""

    ticks: Ticks
    number: int
    position: dict[int, int]

    @classmethod
    def of(cls, ticks: Ticks, program: Program) -> Ticked:
        return cls(ticks, program.number, {r: n for n, ins in enumerate(program.instructions) for r in ins.results})

    def entries(self, ins: Instruction) -> tuple[Entry, ...]:
        """The entries of an instruction; those of many that run in one call end together."""
        firsts = [part.results[0] for part in ins.parts or (ins,) if part.results]
        return tuple([(self.number, PART - self.position[r]) for r in firsts if r in self.position])
