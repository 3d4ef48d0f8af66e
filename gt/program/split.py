"""A program split in two: a part without side effects, which can be called early, and its updates, which free their inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gt.program import Instruction, Program, with_frees
from gt.program.code import Encoded, encoded


@dataclass(frozen=True, slots=True)
class ProgramPart:
    """Some instructions of a program as a program of their own. `given`, `made` and `holes` are its inputs, results and holes
    as values and holes of the whole program."""

    program: Program
    given: tuple[int, ...]
    made: tuple[int, ...]
    holes: tuple[int, ...]

    def call(self, ids: Sequence[Any] | Mapping[int, Any], numbers: Sequence[Any]) -> Encoded:
        """A call of this part, given the id of each value of the whole program and the numbers of its holes."""
        given = [*[ids[v] for v in self.given], *[numbers[h] for h in self.holes]]
        return encoded(self.program.number, [ids[v] for v in self.made], given)


@dataclass(frozen=True, slots=True)
class Split:
    """`first` frees none of its inputs, so that it can be called before the call is certain. `rest` begins with the first
    update; None if there are no updates. `dying` are the inputs that the whole program frees and `rest` does not."""

    first: ProgramPart
    rest: ProgramPart | None
    dying: tuple[int, ...]


def before_updates(program: Program, first: int, rest: int) -> Split | None:
    """The program split before its first update; the parts get these numbers. None if it begins with an update."""
    body = program.instructions
    at = next((i for i, ins in enumerate(body) if ins.op.updates), len(body))
    if not at:
        return None
    live, ends = set(program.results), {i + 1 for i in program.dying}
    head, tail = body[:at], body[at:]
    used = {v for ins in tail for v in ins.values}
    made = [r for ins in head for r in ins.results]
    early = _part(first, head, program, [v for v in made if v in live or v in used], frozenset())
    late = None
    if tail:
        made_late = [r for ins in tail for r in ins.results if r in live]
        late = _part(rest, tail, program, made_late, ends | {v for v in made if v not in live})
    taken = set(late.given) if late is not None else set()
    return Split(early, late, tuple(sorted(ends - taken)))


def _part(
    number: int, body: Sequence[Instruction], program: Program, results: list[int], ends: Iterable[int]
) -> ProgramPart:  # fmt: skip
    made = {r for ins in body for r in ins.results}
    given = tuple(dict.fromkeys(v for ins in body for v in ins.values if v not in made))
    holes = tuple(dict.fromkeys(h for ins in body for h in ins.holes))
    value = {v: i for i, v in enumerate(given, 1)}
    for ins in body:
        value.update({r: len(value) + i for i, r in enumerate(ins.results, 1)})
    own = [ins.mapped(value, {h: i for i, h in enumerate(holes)}) for ins in body]
    dying = tuple(i for i, v in enumerate(given) if v in ends)
    alive = {value[r] for r in results} | {i + 1 for i in range(len(given)) if i not in dying}
    part = Program(
        number, len(given), with_frees(own, alive), tuple(value[r] for r in results), len(holes), dying, program.compile
    )  # fmt: skip
    return ProgramPart(part, given, tuple(results), holes)
