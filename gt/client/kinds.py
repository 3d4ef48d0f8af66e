"""The kinds of ops that a session has defined, by number, and what the client's hot path needs of each."""

from __future__ import annotations

from itertools import count
from typing import Any

from gt.ops.table import Kind
from gt.program.code import first_kind
from gt.program.foreach import ForeachKind
from gt.transport.messages import KindDef, kind_out

MOST = 1 << 15  # kinds remembered; past it all are forgotten and defined again as they are met
NO_GRAD = (
    "a view that was made in no_grad mode is being changed in place with grad mode enabled: make the view and change it "
    "both inside of no_grad(), or both outside"
)


class Known:
    """A kind this session has defined, and what the client's hot path wants of it."""

    __slots__ = ("number", "kind", "out", "outs", "row", "differentiable", "floats", "pulls", "view", "unseen")

    def __init__(self, number: int, kind: Kind) -> None:
        self.number, self.kind, self.row, self.outs, self.out = number, kind, kind.row, kind.outs, kind.outs[0]
        self.differentiable = kind.row.grad is not None and self.out.dtype.rank >= 2
        self.floats = tuple([spec.dtype.rank >= 2 for spec in kind.outs])  # the results that may want gradients
        self.pulls: dict[Any, Any] = {}  # the tape's plans, by which inputs want gradients
        self.view = kind.row.alias is not None
        self.unseen = Restricted(self, NO_GRAD) if self.view else None


class Restricted:
    """How a view was made that cannot be changed in place where gradients are wanted, and why."""

    __slots__ = ("known", "why")

    def __init__(self, known: Known, why: str) -> None:
        self.known, self.why = known, why


class Kinds:
    """A session's kinds. Its lock is the session's: a batch carries the definitions of all kinds that it names."""

    def __init__(self) -> None:
        self.numbers = count(first_kind())
        self.fresh: list[KindDef] = []  # definitions that the next batch carries
        self.tables: dict[tuple[str, str], dict[tuple[Any, ...], Known]] = {}  # by signal and the dtype of autocast
        self.meaning: dict[int, Kind] = {}  # by number
        self.lists: dict[int, ForeachKind] = {}  # of those, ops on lists of tensors
        self.forgotten = 0  # numbers below this one were forgotten

    def under(self, signal: str, cast: str = "") -> dict[tuple[Any, ...], Known]:
        """The kinds of ops under a signal and the dtype of autocast, by row, operands' specs and statics."""
        return self.tables.setdefault((signal, cast), {})

    def define(self, kind: Kind) -> Known:
        """Give a kind a number."""
        number = next(self.numbers)
        self.meaning[number] = kind
        self.fresh.append(kind_out(number, kind))
        return Known(number, kind)

    def define_list(self, kind: ForeachKind) -> Known:
        """Give a number to an op on lists. It is this session's alone: what is sent are instructions of the items' kinds."""
        number = next(self.numbers)
        self.meaning[number] = self.lists[number] = kind
        return Known(number, kind)

    def take_fresh(self) -> tuple[KindDef, ...]:
        fresh, self.fresh = tuple(self.fresh), []
        return fresh

    def clear(self) -> None:
        """Forget which kinds are defined: each is defined again, under a new number, when it is met next."""
        for table in self.tables.values():
            table.clear()

    def forget(self) -> int:
        """Past the bound, forget every kind; the number below which the others may forget them too, or 0."""
        if sum(map(len, self.tables.values())) < MOST:
            return 0
        self.clear()
        below = next(self.numbers)
        for number in [n for n in self.meaning if n < self.forgotten]:
            del self.meaning[number]
            self.lists.pop(number, None)
        self.forgotten = below
        return below
