"""A call of a program that failed, as single instructions, so that only results that depend on the failure are marked."""

from __future__ import annotations

import traceback
from bisect import bisect_right
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from gt.errors import OutOfMemory
from gt.program import Hole, Instruction, Program
from gt.program.code import encoded, free
from gt.spec import Spec
from gt.worker.client_values import BrokenInput
from gt.worker.programs.compile import Executable

LOCAL = -(1 << 55)  # ids of values local to a call, downwards


class RestOfCall(NamedTuple):
    failed: list[tuple]  # instructions that may have overwritten an operand, and cannot run again
    code: list[tuple]  # instructions that have not run, and frees
    blamed: dict[int, int]  # by value local to the call, the client's tensor that first depends on it, for messages


def rest_of_call(ready: Executable, values: Any, ins: tuple, error: Exception) -> RestOfCall | None:
    """The instructions of a call that have not run when it raised this error, on values that this puts into the table. None
    if it was neither refused nor stopped at an instruction: a faster form of a program may have overwritten inputs."""
    frames = list(traceback.walk_tb(error.__traceback__))
    stopped = next(((frame, line) for frame, line in frames if ready.is_form(frame.f_code)), None)
    if stopped is not None:
        program, first = ready.lowered, bisect_right(stopped[0].f_globals["starts"], stopped[1]) - 1
    elif isinstance(error, (OutOfMemory, BrokenInput)):  # refused before it began
        program, first = ready.program, 0
    else:
        return None
    id_of = _ids(ready, program, ins)
    if stopped is not None:
        _restore(values, program, id_of, stopped[0])
        traceback.clear_frames(error.__traceback__)
    failed, code = _instructions(ready, program, ins, id_of, first, begun=stopped is not None)
    return RestOfCall(failed, code, _blamed(program, id_of))


def _ids(ready: Executable, program: Program, ins: tuple) -> Callable[[int], int]:
    """The id of each value of a call: the client's for inputs and results."""
    known = dict(zip(program.results, ins[ready.encoding.results]))
    known |= dict(enumerate(ins[ready.encoding.inputs], 1))
    return lambda value: known.get(value, LOCAL - value)


def _restore(values: Any, program: Program, id_of: Callable[[int], int], frame: FrameType) -> None:
    """Put the values that a call has computed, and its dying inputs, into the table."""
    specs = program.specs
    held = {int(name[1:]): array for name, array in frame.f_locals.items() if name[0] == "r" and name[1:].isdigit()}
    for value, array in {**program.constants, **held}.items():
        values.put(id_of(value), specs.get(value), array)


def _instructions(
    ready: Executable, program: Program, ins: tuple, id_of: Callable[[int], int], first: int, begun: bool
) -> tuple[list[tuple], list[tuple]]:
    numbers = ins[ready.encoding.given]
    lasting = set(range(1, 1 + program.inputs)) - {i + 1 for i in program.dying}

    def codes(instruction: Instruction) -> Iterator[tuple]:
        for part in instruction.parts or (instruction,):
            operands = [
                id_of(o) if type(spec) is Spec else numbers[o.index] if type(o) is Hole else o
                for o, spec in zip(part.operands, part.kind.ins)
            ]
            yield encoded(part.number, map(id_of, part.results), operands)

    failed: list[tuple] = []
    code: list[tuple] = []
    for n, instruction in enumerate(program.instructions[first:]):
        overwrote = begun and n == 0 and (instruction.in_place or instruction.op.updates)
        (failed if overwrote else code).extend(codes(instruction))
        code += [free(id_of(v)) for v in instruction.frees if v not in lasting]
    ended = [i + 1 for i in program.dying] + list(program.constants)
    return failed, code + [free(id_of(v)) for v in ended if v not in program.results]


def _blamed(program: Program, id_of: Callable[[int], int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for ins in reversed(program.instructions):
        made = [id_of(r) for r in ins.results]
        told = next((t for t in (r if r > 0 else found.get(r, 0) for r in made) if t), 0)
        found |= {id_of(v): told for v in ins.values if told}
    return found
