"""An encoded instruction: `(kind, *results, *operands)`, a tuple of numbers, as it is sent and run. An operand is the id of a
tensor, or a number where the kind has a number's type. `(FREE, id)` frees a tensor. A call of a program has the same form: its
results, its inputs and the numbers for its holes. No other file computes positions in such a tuple, or tests for FREE."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from struct import Struct
from typing import Any

from gt.ops.table import Kind

FREE = 0  # the kind of the instruction (FREE, id)
FEW = 8  # most operands of kinds that share their form with other kinds

Number = int | float | bool
Encoded = tuple[Number, ...]
KindOf = Callable[[Any], Kind | None]  # the kind of a number, or None

number_of: Callable[[Any], Any] = itemgetter(0)  # the number of an instruction's kind
FIRST_RESULT = 1  # the position of the first result; that of the id in (FREE, id) is the same
first_result: Callable[[Any], Any] = itemgetter(FIRST_RESULT)
freed_id: Callable[[Any], Any] = itemgetter(FIRST_RESULT)
tag_of: Callable[[Any], Any] = itemgetter(-1)  # the tag of a collective, its last number


class Form:
    """The positions of results, tensors and numbers in an encoded instruction. `inputs` is the number of tensors of a program's
    call, in which all tensors precede all numbers."""

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
        """The form of a kind's instructions. Kinds of few operands share forms; any other form lives as long as its kind."""
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
        """The position of an operand, by its index among the operands."""
        return int(self.operands.start) + operand

    def operand(self, position: int) -> int:
        """The index of the operand at a position."""
        return position - int(self.operands.start)


@lru_cache(1 << 8)
def _shared(result_count: int, operands: int, tensor_operands: tuple[int, ...]) -> Form:
    return Form(result_count, operands, tensor_operands)


def result_at(i: int) -> int:
    """The position of a result, by its index among the results."""
    return 1 + i


def encoded(number: int, results: Iterable[Any], operands: Iterable[Any]) -> tuple[Any, ...]:
    return (number, *results, *operands)


def free(id: Any) -> tuple[int, Any]:
    """The instruction that frees a tensor."""
    return (FREE, id)


def frees_of(ids: Iterable[Any]) -> list[tuple[int, Any]]:
    """The instructions that free these tensors."""
    return [(FREE, id) for id in ids]


def is_free(code: Sequence[Any]) -> bool:
    return bool(code) and code[0] == FREE


def makes_one_of(ins: Sequence[Any], ids: Container[Any]) -> bool:
    """Whether the first result of an instruction is one of these ids."""
    return len(ins) > FIRST_RESULT and ins[FIRST_RESULT] in ids and ins[0] != FREE


def place_of(load: tuple[Any, ...]) -> tuple[Any, ...]:
    """The place of a load's bytes: segment, offset and length."""
    return load[-3:]


def with_place(load: tuple[Any, ...], place: tuple[int, int, int]) -> tuple[Any, ...]:
    return (*load[:-3], *place)


def is_client_kind(number: Any) -> bool:
    """Whether a client may give a kind this number; lower numbers are reserved for the dispatcher and the tracer."""
    return bool(number > FREE)


def numbers_of(code: Iterable[Sequence[Any]]) -> list[Any]:
    """The number of each instruction."""
    return [ins[0] for ins in code if ins]


def count_work(code: Iterable[Sequence[Any]]) -> int:
    """The number of instructions that are no frees."""
    numbers = [ins[0] for ins in code if ins]
    return len(numbers) - numbers.count(FREE)


def first_kind() -> int:
    """The first number that a client gives to a kind."""
    return FREE + 1


def freed(code: Iterable[Sequence[Any]]) -> set[Any]:
    """The ids that these instructions free."""
    return {ins[1] for ins in code if ins[0] == FREE}


def frees(code: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The FREE instructions among these."""
    return [ins for ins in code if ins[0] == FREE]


def parted(code: Sequence[tuple[Any, ...]]) -> tuple[list[tuple[Any, ...]], list[Any]]:
    """The other instructions than FREE, and the ids that those free."""
    return [ins for ins in code if ins[0] != FREE], [ins[1] for ins in code if ins[0] == FREE]


def ops(code: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """A client's instructions without frees and marks."""
    return [ins for ins in code if ins[0] > FREE]


def op_numbers(numbers: Iterable[int]) -> list[int]:
    """The kinds of a client's instructions without those of frees and marks."""
    return [n for n in numbers if n > FREE]


def op_places(numbers: Sequence[int], begin: int = 0) -> list[int]:
    """The indices of a client's instructions that are neither frees nor marks."""
    return [i for i in range(begin, len(numbers)) if numbers[i] > FREE]


def next_op(numbers: Sequence[int], begin: int) -> int:
    """The index of the next instruction that is neither a free nor a mark; the number of instructions if there is none."""
    return next((i for i in range(begin, len(numbers)) if numbers[i] > FREE), len(numbers))


class Frees:
    """The entry of FREE in a table of kinds by number: the instruction has one operand, a tensor of any spec, and frees it."""

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
    """A table of kinds by number with this entry for FREE."""
    return {FREE: entry}


_double = Struct("=d").pack


def bits(number: Number) -> tuple[type, Any]:
    """The key of a number: 0.0, -0.0 and False, or 1 and True, are equal for Python, and a nan differs from itself."""
    return type(number), _double(number) if type(number) is float else number


def same_bits(some: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """Whether these ids and numbers are the same ones, bit for bit; both are of the same types."""
    return some == others and 0 not in some or list(map(bits, some)) == list(map(bits, others))


def arguments(code: tuple[Any, ...]) -> tuple[Any, ...]:
    """Results and operands of an instruction of unknown kind."""
    return code[1:]


def by_result(code: tuple[Any, ...], made: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Pairs of the id of each result of an instruction and an item."""
    return zip(code[1:], made)


def walk(code: Iterable[tuple[Any, ...]], kind_of: KindOf) -> Iterator[tuple[int, tuple[Any, ...], Kind, Form]]:
    """Each instruction that is neither a free nor a mark, with its kind, its form, and its position in the concatenated
    stream."""
    at = 0
    for ins in code:
        kind = kind_of(ins[0])
        if kind is not None:
            yield at, ins, kind, Form.of(kind)
        at += len(ins)
