"""The steps of a plan: a program without ids. A step is a tuple of slots, the first ones being the elements of the client's
instruction, the rest kinds, temporaries and constants of the plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from gt.errors import ProtocolError
from gt.ops import Kind
from gt.program.code import free
from gt.spec import Layout, Spec

Slot = int
OWN = 0  # slot of the client's instruction's kind
STEPS = 1 << 16  # most steps of a plan: no other client has a turn while it is made
RESERVED = 1 << 12  # the ids from -1 to -RESERVED are temporaries of plans


@dataclass(frozen=True, slots=True)
class Temporary:
    """A tensor that is local to a plan. Plans run one after another, so that all use the same ids."""

    id: int


Extra = Kind | Temporary | int


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The execution of an instruction. With `solo`, this one worker gets it unchanged. Otherwise each worker has steps, `extra`
    fills the slots after the instruction's, and the operands in `relaid` have another layout afterwards, as their partial
    sums were reduced in place. `layouts` are those of the results."""

    solo: int | None
    layouts: tuple[Layout, ...]
    extra: tuple[Extra, ...] = ()
    steps: tuple[tuple[int, tuple[tuple[Slot, ...], ...]], ...] = ()
    relaid: tuple[tuple[Slot, Layout], ...] = ()

    @property
    def layout(self) -> Layout:
        return self.layouts[0]


@dataclass(frozen=True, slots=True)
class ExchangePart:
    """A worker's part in an all-to-all: its kind, if it sends or takes anything; whether anything of the piece that it wants
    was found, and all of it in its own piece."""

    worker: int
    kind: Kind | None
    found: bool
    whole: bool
    sends: bool
    takes: bool


class Draft:
    """Writes the steps of a plan, for an instruction of `width` elements."""

    def __init__(self, width: int, own: Kind | None = None) -> None:
        self.width, self.own = width, own
        self.extra: list[Extra] = []
        self.kinds: dict[tuple, Slot] = {} if own is None else {own.key: OWN}
        self.constants: dict[Any, Slot] = {}
        self.steps: dict[int, list[tuple[Slot, ...]]] = {}
        self.made: dict[int, list[Slot]] = {}  # temporaries of each worker
        self.relaid: dict[Slot, Layout] = {}
        self.exchanges: dict[tuple[Spec, Layout, Layout], tuple[ExchangePart, ...]] = {}  # by the layouts before and after
        self.temporaries = self.count = 0

    def _slot(self, extra: Extra) -> Slot:
        self.extra.append(extra)
        return self.width + len(self.extra) - 1

    def temporary(self) -> Slot:
        self.temporaries += 1
        if self.temporaries > RESERVED:  # the ids after these are of expanded traces
            raise ProtocolError(f"one op moves more than {RESERVED} pieces of tensors: use it on fewer operands at a time")
        return self._slot(Temporary(-self.temporaries))

    def constant(self, value: int) -> Slot:
        if value not in self.constants:
            self.constants[value] = self._slot(value)
        return self.constants[value]

    def step(self, worker: int, kind: Kind, results: tuple[Slot, ...], operands: tuple[Slot, ...]) -> None:
        self.count += 1
        if self.count > STEPS:
            raise ProtocolError(f"one op becomes more than {STEPS} steps of workers: use it on fewer operands at a time")
        number = self.kinds.get(kind.key)
        if number is None:
            number = self.kinds[kind.key] = self._slot(kind)
        self.steps.setdefault(worker, []).append((number, *results, *operands))
        for slot in results:
            if slot >= self.width:
                self.made.setdefault(worker, []).append(slot)

    def rename(self, worker: int, old: Slot, new: Slot) -> None:
        """Replace a worker's temporary by the result's slot."""
        self.steps[worker] = [tuple(new if s == old else s for s in step) for step in self.steps[worker]]
        self.made[worker] = [s for s in self.made.get(worker, ()) if s != old]

    def plan(self, layouts: tuple[Layout, ...]) -> Plan:
        for worker, slots in self.made.items():
            for slot in dict.fromkeys(slots):
                number, freed = free(slot)
                self.steps[worker].append((self.constant(number), freed))
        steps = tuple((w, tuple(s)) for w, s in sorted(self.steps.items()))
        relaid = tuple((slot, layout) for slot, layout in self.relaid.items() if slot < self.width)
        return Plan(None, layouts, tuple(self.extra), steps, relaid)


class SoloPlan:
    """The plan of an instruction that one worker gets unchanged; `entries` are those of its results."""

    __slots__ = ("solo", "entry", "entries")

    def __init__(self, solo: int, entries: tuple) -> None:
        self.solo, self.entries = solo, entries
        self.entry = entries[0] if entries else None


class Bound:
    """A plan with a client's numbers for its kinds, which can write instructions. `entries` are those of the results, `relaid`
    the new entries of operands whose layout changes, by slot."""

    __slots__ = ("solo", "entries", "relaid", "tail", "programs")

    def __init__(self, plan: Plan, number: Callable[[Kind], int], entries: tuple, relaid: tuple) -> None:
        self.solo, self.entries, self.relaid = None, entries, relaid
        self.tail = tuple(number(e) if isinstance(e, Kind) else e.id if isinstance(e, Temporary) else e for e in plan.extra)
        self.programs = [(worker, [itemgetter(*step) for step in steps]) for worker, steps in plan.steps]

    def write(self, instruction: tuple, queues: dict[int, list]) -> None:
        """Append each worker's instructions for one of the client's to its queue."""
        slots = (*instruction, *self.tail)
        for worker, steps in self.programs:
            queue = queues.get(worker)
            if queue is None:
                queue = queues[worker] = []
            for step in steps:
                queue.append(step(slots))
