"""A stretch of a stream of encoded instructions, read once: which numbers in it are results, references to its results,
references to earlier tensors, and plain numbers. The traces that a client finds, the units of a worker and the dispatcher's
plans for a worker are read here and become programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from gt.program import NOTHING, Hole, Instruction, Program, with_frees
from gt.program.code import FIRST_RESULT, Form, KindOf, freed_id, is_free, walk
from gt.program.foreach import parts


def pick(positions: Sequence[int]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that gives the items at these positions as a tuple, at the speed of C."""
    if not positions:
        return lambda items: ()
    if len(positions) == 1:
        at = positions[0]
        return lambda items: (items[at],)
    return itemgetter(*positions)


def flat(code: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Instructions concatenated to one tuple."""
    return list(chain.from_iterable(code))


class Stretch:
    """Positions count through the concatenated instructions. An id that is freed or assigned again denotes another value from
    there on. `frees` has for each free its position, the id, and the freed value: the index of a result, ~ the index of an
    input, or None for a tensor that the stretch does not use."""

    def __init__(self, code: Sequence[tuple[Any, ...]], kind_of: KindOf) -> None:
        self.code, self.kind_of = code, kind_of
        self.result_at: list[int] = []  # positions of results
        self.ref_at: list[int] = []  # positions of operands that are results, and the index of each result
        self.ref_of: list[int] = []
        self.first_at: list[int] = []  # position of the first mention of each input
        self.again_at: list[int] = []  # positions of later mentions, and the index of each input
        self.again_of: list[int] = []
        self.number_at: list[int] = []
        self.frees: list[tuple[int, int, int | None]] = []
        self.named: dict[Any, int] = {}  # by id, the value at the end of the stretch
        self._read()

    def _read(self) -> None:
        named, kind_of = self.named, self.kind_of
        at = 0
        for ins in self.code:
            kind = kind_of(ins[0])
            if kind is None:  # a free, or the tracer's mark
                if is_free(ins):
                    id = freed_id(ins)
                    self.frees.append((at + FIRST_RESULT, id, named.pop(id, None)))
                at += len(ins)
                continue
            form = Form.of(kind)
            self.number_at += [at + i for i in form.numbers]
            for i in form.tensor_positions:
                value = named.get(ins[i])
                if value is None:
                    named[ins[i]] = ~len(self.first_at)
                    self.first_at.append(at + i)
                elif value >= 0:
                    self.ref_at.append(at + i)
                    self.ref_of.append(value)
                else:
                    self.again_at.append(at + i)
                    self.again_of.append(~value)
            for i in form.made:
                named[ins[i]] = len(self.result_at)
                self.result_at.append(at + i)
            at += len(ins)

    @property
    def signature(self) -> tuple[Any, ...]:
        """Equal for stretches of the same kinds whose operands refer to the same values."""
        return (self.result_at, self.ref_at, self.ref_of, self.first_at, self.again_at, self.again_of, self.number_at)

    @property
    def key(self) -> tuple[Any, ...]:
        """The `signature` with the freed and the remaining values: the key of a unit."""
        ended = [value for _, _, value in self.frees if value is not None]
        numbers = [ins[0] for ins in self.code if not is_free(ins)]
        known = (numbers, self.ref_at, self.ref_of, self.first_at, self.again_of, ended, self.left.values())
        return tuple(map(tuple, known))

    @property
    def rest(self) -> list[int]:
        """The freed ids that no instruction uses."""
        return [id for _, id, value in self.frees if value is None]

    @property
    def left(self) -> dict[int, int]:
        """The results that are not freed, by id."""
        return {id: value for id, value in self.named.items() if value >= 0}

    @property
    def ended(self) -> list[int]:
        """The freed inputs."""
        return [~value for _, _, value in self.frees if value is not None and value < 0]

    def program(
        self, number: int, live: Sequence[int], dying: Sequence[int], holes: Mapping[int, int] = NOTHING, *,
        compile: bool = False, line: Callable[[int, tuple[Any, ...]], str] | None = None, unused: int = 0,
    ) -> Program:  # fmt: skip
        """The program of this stretch: `live` are the results that outlive it, `dying` the inputs that it frees, `holes` the
        index of the hole for each position of a number that calls supply. `line(first result's index, instruction)` is the
        user's line. `unused` further inputs are only freed."""
        inputs = len(self.first_at) + unused
        value_at = {p: inputs + i + 1 for i, p in enumerate(self.result_at)}
        value_at |= {p: inputs + i + 1 for p, i in zip(self.ref_at, self.ref_of)}
        value_at |= {p: i + 1 for i, p in enumerate(self.first_at)}
        value_at |= {p: i + 1 for p, i in zip(self.again_at, self.again_of)}
        instructions = []
        count = 0
        for at, ins, kind, form in walk(self.code, self.kind_of):
            asked = line(count, ins) if line is not None else ""
            for own, each, made, places in parts(ins[0], kind, form):
                operands = tuple([value_at[at + i] if at + i in value_at else Hole(holes[at + i]) if at + i in holes else ins[i]
                                  for i in places])  # fmt: skip
                results = tuple([value_at[at + i] for i in made])
                instructions.append(Instruction(own, each, results, operands, line=asked))
            count += form.result_count
        ends = set(dying)
        alive = {inputs + i + 1 for i in live} | {i + 1 for i in range(inputs) if i not in ends}
        results = tuple([inputs + i + 1 for i in live])
        return Program(
            number, inputs, with_frees(instructions, alive), results, len(set(holes.values())), tuple(dying), compile
        )  # fmt: skip
