"""The kinds that a session has defined, by number, with the data that the client's hot path needs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from itertools import count
from typing import Any

from gt.backends.precision import PRODUCTS
from gt.client.native import NATIVE
from gt.ops.table import HIGHEST, Kind
from gt.program.code import first_kind
from gt.program.foreach import ForeachKind
from gt.transport.messages import KindDef, kind_out

Table: type[dict[tuple[Any, ...], Any]] = dict if NATIVE is None else NATIVE.Table
MOST = 1 << 15  # most kinds; above, all are forgotten and defined again at their next use
NO_GRAD = (
    "a view that was made in no_grad mode is being changed in place with grad mode enabled: make the view and change it "
    "both inside of no_grad(), or both outside"
)


class Known:
    """A kind of this session with the data for the hot path."""

    __slots__ = ("number", "kind", "out", "outs", "row", "differentiable", "floats", "pulls", "view", "unseen")

    def __init__(self, number: int, kind: Kind) -> None:
        self.number, self.kind, self.row, self.outs, self.out = number, kind, kind.row, kind.outs, kind.outs[0]
        self.differentiable = kind.row.grad is not None and self.out.dtype.rank >= 2
        self.floats = tuple([spec.dtype.rank >= 2 for spec in kind.outs])  # whether each result may require gradients
        self.pulls: dict[Any, Any] = {}  # gradient plans, by the set of inputs that require gradients
        self.view = kind.row.alias is not None
        self.unseen = Restricted(self, NO_GRAD) if self.view else None


class Restricted:
    """`how` of a view that cannot be changed in place while gradients are enabled, with the reason."""

    __slots__ = ("known", "why")

    def __init__(self, known: Known, why: str) -> None:
        self.known, self.why = known, why


class Kinds:
    """A session's kinds. Its lock is the session's: a batch contains the definitions of all new kinds that it uses."""

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self.lock = lock
        self.precision = ""  # of products that are defined from now on
        self.others: dict[tuple[str, str, str], dict[tuple[Any, ...], Known]] = {}  # products of other precisions
        self.numbers = count(first_kind())
        self.fresh: list[KindDef] = []  # definitions for the next batch
        self.tables: dict[tuple[str, str], dict[tuple[Any, ...], Known]] = {}  # by signal and the dtype of autocast
        self.meaning: dict[int, Kind] = {}  # kinds by number
        self.lists: dict[int, ForeachKind] = {}  # kinds on lists of tensors, by number
        self.forgotten = 0  # numbers below this one were forgotten
        self.grown = False  # whether kinds were added to the tables since `forget` counted them
        self.change_precision(HIGHEST, PRODUCTS.value)
        PRODUCTS.users.add(self)

    def under(self, signal: str, cast: str = "") -> dict[tuple[Any, ...], Known]:
        """The kinds of ops under a signal and the dtype of autocast, by row, operands' specs and statics."""
        return self.tables.setdefault((signal, cast), Table())

    def change_precision(self, before: str, now: str) -> None:
        """Set the products aside, and take up the ones set aside in this precision: they keep their numbers, so that traces
        of each precision are found again."""
        with self.lock:
            self.precision, self.grown = "" if now == HIGHEST else now, True
            for under, table in self.tables.items():
                kinds = dict(table)
                aside = self.others[*under, before] = {key: known for key, known in kinds.items() if known.row.products}
                table.clear()  # a table finds its last kinds without their keys
                table.update({key: known for key, known in kinds.items() if key not in aside})
                table.update(self.others.pop((*under, now), {}))

    def define(self, kind: Kind) -> Known:
        """Give a kind a number."""
        number, self.grown = next(self.numbers), True
        self.meaning[number] = kind
        self.fresh.append(kind_out(number, kind))
        return Known(number, kind)

    def define_list(self, kind: ForeachKind) -> Known:
        """Give a number to a kind on lists. Only this session uses it: the sent instructions are of the items' kinds."""
        number, self.grown = next(self.numbers), True
        self.meaning[number] = self.lists[number] = kind
        return Known(number, kind)

    def take_fresh(self) -> tuple[KindDef, ...]:
        fresh, self.fresh = tuple(self.fresh), []
        return fresh

    def clear(self) -> None:
        """Forget all definitions: each kind is defined again, under a new number, at its next use."""
        for table in self.tables.values():
            table.clear()
        self.others.clear()

    def forget(self) -> int:
        """Above the bound, forget every kind. Returns the number below which dispatcher and workers may forget theirs, or 0."""
        if sum(map(len, self.tables.values())) < MOST:
            self.grown = False
            return 0
        self.clear()
        below = next(self.numbers)
        for number in [n for n in self.meaning if n < self.forgotten]:
            del self.meaning[number]
            self.lists.pop(number, None)
        self.forgotten = below
        return below
