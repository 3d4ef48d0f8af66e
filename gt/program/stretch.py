"""A stretch of a stream of encoded instructions, read through once: which of its numbers are results, which refer to results
of its own, which to tensors from before, and which are plain numbers. What a client finds to repeat, what a worker runs as one
unit and what the dispatcher planned for a worker are read here, and become programs here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from gt.program import NOTHING, Hole, Instruction, Program, with_frees
from gt.program.code import Form, KindOf, is_free, walk
from gt.program.foreach import parts


def pick(positions: Sequence[int]) -> Callable[[Any], tuple[Any, ...]]:
    """The items at these positions, as a tuple[Any, ...], at the speed of C."""
    if not positions:
        return lambda items: ()
    if len(positions) == 1:
        at = positions[0]
        return lambda items: (items[at],)
    return itemgetter(*positions)


def flat(code: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Instructions laid end to end."""
    return list(chain.from_iterable(code))


class Stretch:
    """Positions count through all instructions, laid end to end. An id that is freed or made again stands for another value
    from there on. `frees` has for each free its position, the id, and the value it ends: a result's index, ~ an input's, or
    None for what the stretch does not mention."""

    def __init__(self, code: Sequence[tuple[Any, ...]], kind_of: KindOf) -> None:
        self.code, self.kind_of = code, kind_of
        self.result_at: list[int] = []  # positions of results
        self.ref_at: list[int] = []  # positions of operands made inside, and which result each is
        self.ref_of: list[int] = []
        self.first_at: list[int] = []  # position of the first mention of each input
        self.again_at: list[int] = []  # further mentions, and of which input
        self.again_of: list[int] = []
        self.number_at: list[int] = []
        self.frees: list[tuple[int, int, int | None]] = []
        self.named: dict[Any, int] = {}  # ids -> the value each stands for in the end
        self._read()

    def _read(self) -> None:
        named, kind_of = self.named, self.kind_of
        at = 0
        for ins in self.code:
            kind = kind_of(ins[0])
            if kind is None:  # a free, or the tracer's mark
                if is_free(ins):
                    self.frees.append((at + 1, ins[1], named.pop(ins[1], None)))
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
        """Equal for stretches of the same kinds whose operands refer alike."""
        return (self.result_at, self.ref_at, self.ref_of, self.first_at, self.again_at, self.again_of, self.number_at)

    @property
    def key(self) -> tuple[Any, ...]:
        """As `signature`, what ends inside and what is left: what a unit is known by."""
        ended = [value for _, _, value in self.frees if value is not None]
        numbers = [ins[0] for ins in self.code if not is_free(ins)]
        known = (numbers, self.ref_at, self.ref_of, self.first_at, self.again_of, ended, self.left.values())
        return tuple(map(tuple, known))

    @property
    def rest(self) -> list[int]:
        """The ids that are freed, and nothing here mentions."""
        return [id for _, id, value in self.frees if value is None]

    @property
    def left(self) -> dict[int, int]:
        """By id, the results that are there in the end."""
        return {id: value for id, value in self.named.items() if value >= 0}

    @property
    def ended(self) -> list[int]:
        """The inputs that are freed."""
        return [~value for _, _, value in self.frees if value is not None and value < 0]

    def program(
        self, number: int, live: Sequence[int], dying: Sequence[int], holes: Mapping[int, int] = NOTHING, *,
        compile: bool = False, line: Callable[[int, tuple[Any, ...]], str] | None = None, unused: int = 0,
    ) -> Program:  # fmt: skip
        """The program of this stretch: `live` are the results that live on, `dying` the inputs that end with it, `holes` by
        position the index of the hole that a number is. `line(first result's index, instruction)` is the user's line. `unused`
        more inputs are there only to end."""
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
