"""What the dispatcher knows: clients with their kinds and the layouts of their tensors, workers, and what is asked of them.
`check()` says what must always hold."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, ClassVar

from gt.dispatcher.steps import RESERVED
from gt.errors import ProtocolError
from gt.ops import Kind
from gt.spec import Interned, Layout, Shard, Spec, interned
from gt.transport.messages import FREE, KindDef, Peer, TraceDef


class Entry:
    """A tensor as the dispatcher knows it: what it is and how it lies. Entries are interned and plans are found by them, so
    that operands which are not what a kind says never find one."""

    __slots__ = ("layout", "spec", "solo", "workers", "nbytes", "__weakref__")
    layout: Layout
    spec: Spec
    solo: int | None  # the worker, where there is only one
    workers: tuple[int, ...]
    nbytes: int  # on each of its workers
    _known: ClassVar[dict[tuple, Interned]] = {}

    def __new__(cls, layout: Layout, spec: Spec) -> Entry:
        row = cls._known.get((layout, spec))
        found = row() if row is not None else None
        if found is None:
            found = object.__new__(cls)
            found.layout, found.spec, found.solo, found.workers = layout, spec, layout.solo, layout.workers
            found.nbytes = spec.nbytes
            for n, p in zip(layout.mesh.shape, layout.placements):
                if isinstance(p, Shard):
                    found.nbytes //= n
            found = interned(cls._known, (layout, spec), found)
        return found

    def __repr__(self) -> str:
        return f"{self.spec}: {self.layout}"


@dataclass(slots=True, eq=False)
class Lost:
    """What stands in an entry's place when the tensor is gone: why. In a plan's place, why there is none."""

    why: str
    error: str = "WorkerLost"
    solo: ClassVar[None] = None  # so that an instruction which has no plan is told from others where they are told apart


class Refused:
    """A kind or trace of a client's that cannot be. Instructions of it have no place to go; `outs` is None where nobody knows
    how many results they have."""

    __slots__ = ("number", "lost", "outs", "dies", "length")

    def __init__(self, definition: KindDef | TraceDef, why: str) -> None:
        self.number, self.length = definition.number, -1  # no instruction is of this length
        self.lost = Lost(why, "ProtocolError")
        self.outs: int | None = None
        self.dies: tuple[int, ...] = ()
        if isinstance(definition, TraceDef):
            self.outs = len(definition.outs)
            self.dies = tuple(1 + self.outs + i for i in definition.dies if i >= 0)


class TracePlans:
    """A client's trace: where in a call its inputs stand, what they are, and which of them end with it."""

    __slots__ = ("definition", "outs", "at", "length", "loads", "dies", "kinds", "specs", "results", "signal", "makes")

    def __init__(self, definition: TraceDef, known: dict[int, Any]) -> None:
        specs: dict[int, Spec] = {}  # of registers
        if (wrong := _fault(definition, known, specs)) is not None:
            raise ProtocolError(f"trace {definition.number} cannot be: {wrong}")
        self.definition, self.outs, self.loads, self.signal = definition, len(definition.outs), False, ""
        self.specs = tuple(specs.get(i) for i in range(1, 1 + definition.inputs))  # None: it may be anything
        self.results = tuple(specs[out] for out in definition.outs)
        self.at = tuple(range(1 + self.outs, 1 + self.outs + definition.inputs))
        self.length = 1 + self.outs + definition.inputs + len(definition.holes)
        self.dies = tuple(1 + self.outs + i for i in definition.dies)
        self.kinds = sorted({int(ins[0]) for ins in definition.body if ins[0] != FREE})
        inner = [known[n] for n in self.kinds]
        self.makes = any(not u.at and not u.signal for u in inner)  # tensors that go where there is most room


def _fault(trace: TraceDef, known: dict[int, Any], specs: dict[int, Spec]) -> str | None:
    """What is wrong with a trace, if anything is: workers make code of it and trust that it was looked at here. `specs` is
    filled with what its registers hold; an input is what its first use says."""
    if not 0 <= trace.inputs <= sum(map(len, trace.body)):
        return f"{trace.inputs} inputs"
    live = set(range(1, trace.inputs + 1))  # registers that hold something
    used = trace.inputs
    numbers: set[tuple[int, int]] = set()  # where plain numbers stand
    for index, ins in enumerate(trace.body):
        if ins and ins[0] == FREE:
            if len(ins) != 2 or type(ins[1]) is not int or ins[1] not in live:
                return f"{ins} frees what is not there"
            live.remove(ins[1])
            continue
        use = known.get(ins[0]) if ins and type(ins[0]) is int else None
        if not isinstance(use, KindPlans) or use.loads or len(ins) != use.length:
            return f"{ins} is of no kind"
        if not all(type(ins[i]) is int and ins[i] in live for i in use.at):
            return f"{ins} names what is not there"
        for i, spec in zip(use.at, use.specs):
            if specs.setdefault(ins[i], spec) is not spec:  # type: ignore[arg-type]
                return f"{ins} takes {spec}, but {ins[i]} is {specs[ins[i]]}"  # type: ignore[index]
        for register, spec in zip(ins[1 : 1 + use.outs], use.kind.outs):
            if type(register) is not int or register <= used:
                return f"{ins} names its results out of order"
            live.add(register)
            specs[register] = spec
            used = register
        numbers.update((index, i) for i in range(1 + use.outs, len(ins)) if i not in use.at)
    if not live.issuperset(trace.outs) or len(set(trace.outs)) != len(trace.outs) or any(r <= trace.inputs for r in trace.outs):
        return f"results {trace.outs}"
    places = [place for hole in trace.holes for place in hole]
    if not numbers.issuperset(places) or len(set(places)) != len(places):
        return f"holes {trace.holes}"
    if not all(0 <= i < trace.inputs for i in trace.dies) or len(set(trace.dies)) != len(trace.dies):
        return f"ends of inputs {trace.dies}"
    return None


class KindPlans:
    """A client's kind: its number, its meaning, and where in an instruction the tensors stand."""

    __slots__ = ("definition", "kind", "outs", "at", "length", "loads", "dies", "specs", "results", "signal")

    def __init__(self, definition: KindDef, kind: Kind) -> None:
        self.definition, self.kind, self.signal = definition, kind, kind.signal
        self.outs = len(kind.outs)
        self.dies: tuple[int, ...] = ()
        self.loads = kind.row.loads
        self.at = tuple(1 + self.outs + i for i in kind.tensors)
        self.length = 1 + self.outs + len(kind.ins)
        self.specs: tuple[Spec, ...] = tuple(kind.ins[i] for i in kind.tensors)
        self.results = kind.outs


def results_of(client: Client, ins: tuple) -> tuple:
    """The results that an instruction which cannot be carried out was to have. Where its kind is not known, they are what
    stands before the first tensor that is there."""
    use = client.uses.get(ins[0]) if ins else None
    if use is not None and use.outs is not None:
        return ins[1 : 1 + use.outs]
    return tuple(takewhile(lambda id: type(id) is int and id not in client.entries, ins[1:]))


@dataclass(slots=True)
class Client:
    name: str
    label: str
    host: str
    uses: dict[int, Any] = field(default_factory=dict)  # Use, TracePlans or Refused, by number
    entries: dict[int, Entry | Lost] = field(default_factory=dict)  # its tensors, by id
    plans: dict[tuple, Any] = field(default_factory=dict)
    told: dict[int, set[int]] = field(default_factory=dict)  # kinds each worker has been told
    home: int | None = None  # the worker where this client's tensors are made outside any signal
    held: deque[Any] = field(default_factory=deque)  # batches, and what follows them, that wait for a worker or an upload
    uploading: int | None = None
    arriving: dict[int, list] = field(
        default_factory=dict
    )  # by worker, what it does with its piece of the upload when it comes
    late: dict[tuple[int, int], list] = field(default_factory=dict)  # the same of uploads that nobody waits for any more
    acks: dict[int, set[int]] = field(default_factory=dict)  # serial -> workers still to say Done
    forget: int = 0
    since: float | None = None  # when it was first seen to wait for a worker to come
    signals: dict[str, Any] = field(default_factory=dict)
    targets: dict[str, Any] = field(default_factory=dict)  # what its signals mean with the workers there are
    noted: set[str] = field(default_factory=set)  # told once: signals whose workers are missing, notes of workers
    sizes: dict[int, int] = field(default_factory=dict)  # bytes of a tensor on each of its workers, where there are several
    locals: dict[tuple, int] = field(default_factory=dict)  # kinds of the dispatcher's own making, numbered below zero
    kinds: dict[int, Kind] = field(default_factory=dict)  # what those mean
    last_local: int = 0
    instructions: int = 0
    temporaries: int = RESERVED  # ids below zero that the dispatcher has used
    weight: float = 1.0  # of its share of a worker's time


@dataclass(slots=True)
class WorkerState:
    peer: str
    index: int
    name: str
    backend: str
    device: str
    host: str
    pid: int
    address: str
    alive: bool = True

    store: str = ""  # where it keeps what its groups are made with
    bytes: int = 0  # of tensors that lie on it

    def as_peer_of_clients(self) -> Peer:
        """As clients know it."""
        return Peer(self.index, self.name, self.address, self.host)

    def as_peer_of_workers(self) -> Peer:
        """As other workers know it."""
        return Peer(self.index, self.name, self.address, self.host, self.device, self.peer, self.store)


@dataclass(slots=True)
class Question:
    """An Ask that several workers answer."""

    client: str
    ticket: int
    waiting: set[int]
    answers: dict[int, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Leaving:
    """A client that is gone: who still has to say how many collectives it has begun, and the most that anybody has."""

    waiting: set[int]
    counts: dict[tuple[int, ...], int] = field(default_factory=dict)


@dataclass(slots=True)
class Tables:
    clients: dict[str, Client] = field(default_factory=dict)
    workers: list[WorkerState] = field(default_factory=list)  # by index, the lost ones too
    by_peer: dict[str, WorkerState] = field(default_factory=dict)
    questions: dict[int, Question] = field(default_factory=dict)
    leaving: dict[int, Leaving] = field(default_factory=dict)  # by the number of its Drop
    expected: int = 0  # workers that were started with this dispatcher: nothing is placed before they are there
    dropped: int = 0  # messages that could not be read or did not belong

    @property
    def many(self) -> bool:
        """Whether it is worth counting what lies where."""
        return len(self.by_peer) > 1

    def living(self) -> list[WorkerState]:
        return [w for w in self.workers if w.alive]

    def check(self) -> None:
        """The invariants; a test's fixture calls this after each conversation."""
        living = {w.index for w in self.living()}
        for i, worker in enumerate(self.workers):
            assert worker.index == i, f"worker {worker.name} stands at {i} but says {worker.index}"
        assert {w.peer for w in self.living()} == set(self.by_peer)
        for client in self.clients.values():
            for id, entry in client.entries.items():
                assert isinstance(entry, Lost) or set(entry.workers) <= living, f"{id} lies on a worker that is gone"
            for waiting in client.acks.values():
                assert waiting <= living, "an Ack waits for a worker that is gone"
            for at, numbers in client.told.items():
                known = {*client.uses, *client.locals.values()}
                assert at in living and numbers <= known, "a worker was told a kind that is not there"
        assert all(leaving.waiting and leaving.waiting <= living for leaving in self.leaving.values())
        for question in self.questions.values():
            assert question.client in self.clients and question.waiting <= living
