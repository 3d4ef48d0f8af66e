"""One op on lists of tensors, as one instruction of a client's stream. Only clients have such instructions: in a batch, and in
the definition of a program, the client sends an instruction for each item."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gt.ops.table import Kind
from gt.program.code import Form, encoded, free, freed, is_free


class ForeachKind(Kind):
    """`columns` is true for each operand of the op that is a list with an item for each of the `kinds`, and false for one
    shared by all. The encoded form has the results of the first item, of the second and so on, then the operands; the items of
    a list are consecutive."""

    __slots__ = ("numbers", "kinds", "columns", "items")

    def __init__(self, numbers: Sequence[int], kinds: Sequence[Kind], columns: tuple[bool, ...]) -> None:
        n, first = len(kinds), kinds[0]
        ins = [s for i, column in enumerate(columns) for s in ([k.ins[i] for k in kinds] if column else [first.ins[i]])]
        outs = tuple(spec for kind in kinds for spec in kind.outs)
        super().__init__(first.row, tuple(ins), first.statics, outs, first.signal)
        self.numbers, self.kinds, self.columns = tuple(numbers), tuple(kinds), columns
        form, begin, begins = Form.of(self), 0, []
        for column in columns:
            begins.append(begin)
            begin += n if column else 1
        each = len(first.outs)
        self.items = [  # the positions of each item's results and operands
            (form.made[i * each : (i + 1) * each], tuple([form.at(b + i * column) for b, column in zip(begins, columns)]))
            for i in range(n)
        ]

    def instructions(self, ins: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The instructions for each item."""
        return [
            encoded(number, [ins[p] for p in made], [ins[p] for p in operands])
            for number, (made, operands) in zip(self.numbers, self.items)
        ]


def parts(number: int, kind: Kind, form: Form) -> Iterator[tuple[int, Kind, Iterable[int], Iterable[int]]]:
    """The kind of each item, with the positions of its results and of its operands."""
    if isinstance(kind, ForeachKind):
        for n, each, (made, operands) in zip(kind.numbers, kind.kinds, kind.items):
            yield n, each, made, operands
    else:
        yield number, kind, form.made, range(*form.operands.indices(form.length))


def spelled_out(code: list[tuple[Any, ...]], known: Mapping[int, ForeachKind]) -> list[tuple[Any, ...]]:
    """The instructions of a batch with those on lists replaced by their items. A tensor that is freed directly after such an
    instruction is freed after the last item that uses it, so that the old and the new values of all parameters are never in
    memory together."""
    out: list[tuple[Any, ...]] = []
    at = 0
    while at < len(code):
        kind = known.get(code[at][0])
        if kind is None:
            out.append(code[at])
            at += 1
            continue
        end = at + 1
        while end < len(code) and is_free(code[end]):
            end += 1
        out += _with_frees(kind, code[at], freed(code[at + 1 : end]))
        at = end
    return out


def _with_frees(kind: ForeachKind, ins: tuple[Any, ...], ended: set[Any]) -> Iterator[tuple[Any, ...]]:
    ids, last = Form.of(kind).ids, {}
    for i, (made, operands) in enumerate(kind.items):
        last.update({ins[p]: i for p in (*made, *operands) if p in ids and ins[p] in ended})
    behind: dict[int, list[Any]] = {}
    for id, i in last.items():
        behind.setdefault(i, []).append(id)
    for i, each in enumerate(kind.instructions(ins)):
        yield each
        yield from map(free, behind.get(i, ()))
    yield from map(free, sorted(ended.difference(last)))
