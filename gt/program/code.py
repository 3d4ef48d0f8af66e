"""An encoded instruction: `(kind, *results, *operands)`, a tuple of numbers, as it is sent and run. An operand is the id of a
tensor, or a number where the kind has a type. `(FREE, id)` frees a tensor. A call of a program has the same form: its results,
its inputs and the numbers for its holes. No other file counts where in such a tuple something stands, or tests for FREE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

from gt.ops.table import Kind

FREE = 0  # the kind of the instruction (FREE, id)
FEW = 8  # operands of kinds that share a form with others

Number = int | float | bool
Encoded = tuple[Number, ...]
KindOf = Callable[[Any], Kind | None]  # the kind of this number, None where there is none

number_of: Callable[[Any], Any] = itemgetter(0)  # of the kind of an instruction


class Form:
    """Where in an encoded instruction its results, tensors and numbers stand. `inputs` is for calls, whose tensors stand in a
    row before their numbers."""

    __slots__ = (
        "result_count", "made", "results", "operands", "inputs", "given", "tensor_positions", "numbers", "ids", "length",
    )  # fmt: skip

    def __init__(self, result_count: int, operands: int, tensor_operands: Sequence[int]) -> None:
        lead = 1 + result_count
        self.result_count = result_count
        self.length = lead + operands
        self.results, self.operands = slice(1, lead), slice(lead, self.length)
        first_number = lead + len(tensor_operands)
        self.inputs, self.given = slice(lead, first_number), slice(first_number, self.length)
        self.made = tuple(range(1, lead))  # positions of the results
        self.tensor_positions = tuple([lead + i for i in tensor_operands])
        taken = set(self.tensor_positions)
        self.numbers = tuple([i for i in range(lead, self.length) if i not in taken])
        self.ids = frozenset((*self.made, *self.tensor_positions))

    @staticmethod
    def of(kind: Kind) -> Form:
        """The form of a kind's instructions. It ends with the kind; most kinds share theirs with others."""
        try:
            form: Form = kind.form
        except AttributeError:
            make = _shared if len(kind.ins) <= FEW else Form
            form = kind.form = make(len(kind.outs), len(kind.ins), kind.tensor_operands)
        return form

    @classmethod
    def of_call(cls, results: int, inputs: int, holes: int) -> Form:
        return cls(results, inputs + holes, range(inputs))

    def at(self, operand: int) -> int:
        """Where an operand stands, by its index among the operands."""
        return int(self.operands.start) + operand

    def operand(self, position: int) -> int:
        """Which operand stands there."""
        return position - int(self.operands.start)


@lru_cache(1 << 8)
def _shared(result_count: int, operands: int, tensor_operands: tuple[int, ...]) -> Form:
    return Form(result_count, operands, tensor_operands)


def result_at(i: int) -> int:
    """Where a result stands, by its index among the results."""
    return 1 + i


def encoded(number: int, results: Iterable[Any], operands: Iterable[Any]) -> tuple[Any, ...]:
    return (number, *results, *operands)


def free(id: Any) -> tuple[int, Any]:
    """The instruction that frees a tensor."""
    return (FREE, id)


def is_free(code: Sequence[Any]) -> bool:
    return bool(code) and code[0] == FREE


def is_client_kind(number: Any) -> bool:
    """Whether a client may give a kind this number: those below are the dispatcher's and the tracer's own."""
    return bool(number > FREE)


def count_numbers(code: Iterable[Sequence[Any]]) -> Counter[Any]:
    """How many instructions of each number there are."""
    return Counter([ins[0] for ins in code if ins])


def count_frees(counts: Counter[Any]) -> int:
    return counts[FREE]


def first_kind() -> int:
    """The first number that a client gives to a kind."""
    return FREE + 1


def freed(code: Iterable[Sequence[Any]]) -> set[Any]:
    """The ids that are freed in these instructions."""
    return {ins[1] for ins in code if ins[0] == FREE}


def frees(code: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Of these instructions, those that free."""
    return [ins for ins in code if ins[0] == FREE]


def ops(code: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Of a client's instructions, those that compute: no frees and no marks."""
    return [ins for ins in code if ins[0] > FREE]


def op_numbers(numbers: Iterable[int]) -> list[int]:
    """Of the kinds of a client's instructions, those that compute."""
    return [n for n in numbers if n > FREE]


def op_places(numbers: Sequence[int], begin: int = 0) -> list[int]:
    """Where among a client's instructions those stand that compute."""
    return [i for i in range(begin, len(numbers)) if numbers[i] > FREE]


def next_op(numbers: Sequence[int], begin: int) -> int:
    """Where the next of a client's instructions stands that computes; behind all where there is none."""
    return next((i for i in range(begin, len(numbers)) if numbers[i] > FREE), len(numbers))


class Frees:
    """What stands for FREE in a table of kinds by number: the instruction takes one tensor of any spec, which ends with it."""

    form = Form(0, 1, (0,))
    result_count, length = 0, form.length
    tensor_positions = dies = form.tensor_positions
    specs: tuple[Any, ...] = (None,)
    results: tuple[Any, ...] = ()
    ops: dict[str, int] = {}
    ways: dict[str, int] = {}
    loads, signal, title = False, "", "a free"

    def stats(self) -> dict[str, float]:
        return {}


FREES = Frees()


def kind_table(entry: Any) -> dict[int, Any]:
    """A table of kinds by number, in which this is the entry of FREE."""
    return {FREE: entry}


def arguments(code: tuple[Any, ...]) -> tuple[Any, ...]:
    """Results and operands of an instruction whose kind nobody knows."""
    return code[1:]


def by_result(code: tuple[Any, ...], made: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """The id of each result of an instruction, and something for each."""
    return zip(code[1:], made)


def walk(code: Iterable[tuple[Any, ...]], kind_of: KindOf) -> Iterator[tuple[int, tuple[Any, ...], Kind, Form]]:
    """Instructions that compute, each with its kind, its form, and where it begins if all are laid end to end."""
    at = 0
    for ins in code:
        kind = kind_of(ins[0])
        if kind is not None:
            yield at, ins, kind, Form.of(kind)
        at += len(ins)
