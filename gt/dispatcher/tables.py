"""The dispatcher's state: clients with their kinds and the layouts of their tensors, workers, and open questions. `check()`
asserts its invariants."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any, ClassVar

from gt.dispatcher.held import HeldMessages
from gt.dispatcher.hosts import Hosts
from gt.dispatcher.plan import forget_kept
from gt.dispatcher.steps import RESERVED
from gt.dispatcher.users import OWNER, User
from gt.errors import ProtocolError
from gt.ops import Kind
from gt.program import wire
from gt.program.code import FREES, Form, KindOf, arguments, kind_table
from gt.program.wire import TraceDef
from gt.spec import Interned, Layout, Shard, Spec, interned
from gt.transport import checks
from gt.transport.addresses import host_key
from gt.transport.messages import Came, Join, KindDef, Peer, Reached

PIDS = 256  # processes of workers that are kept after their end


class Entry:
    """A tensor as the dispatcher knows it: its spec and its layout. Entries are interned, and plans are cached by them, so that
    operands of another spec than the kind's never find a plan."""

    __slots__ = ("layout", "spec", "solo", "workers", "nbytes", "__weakref__")
    layout: Layout
    spec: Spec
    solo: int | None  # the worker, if there is only one
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
    """The reason why a tensor is lost or a plan is impossible, in place of its entry or plan."""

    why: str
    error: str = "WorkerLost"
    solo: ClassVar[None] = None  # as in plans for several workers, so that its instructions leave the fast path


class Refused:
    """An invalid kind or trace of a client: its instructions are refused. `result_count` is None if the number of their
    results is unknown."""

    __slots__ = ("number", "lost", "result_count", "dies", "length", "form")
    size = 1  # as `KindPlans.size`

    def __init__(self, definition: KindDef | TraceDef, why: str) -> None:
        self.number, self.length = definition.number, -1  # no instruction has this length
        self.lost = Lost(why, "ProtocolError")
        self.result_count: int | None = None
        self.dies: tuple[int, ...] = ()
        if isinstance(definition, TraceDef):
            self.result_count = len(definition.results)
            self.form = Form(self.result_count, 0, ())
            self.dies = tuple(self.form.at(i) for i in definition.dies if i >= 0)


class TracePlans:
    """A client's trace: its program, the positions and specs of the inputs in its calls, and the inputs that it frees."""

    __slots__ = (
        "definition", "program", "form", "result_count", "tensor_positions", "tensor_count", "length", "loads", "dies", "kinds",
        "specs", "results", "signal", "makes", "instructions",
    )  # fmt: skip
    size = 1  # as `KindPlans.size`

    def __init__(self, reader: wire.TraceReader, known: dict[int, Any]) -> None:
        definition, program, specs = reader.definition, reader.program(), reader.specs
        self.program, self.instructions = program, checks.length(definition)
        form = self.form = Form.of_call(len(program.results), program.inputs, program.holes)
        self.definition, self.result_count, self.loads, self.signal = definition, form.result_count, False, ""
        self.specs = tuple(specs.get(i) for i in range(1, 1 + program.inputs))  # None: any spec
        self.results = tuple(specs[r] for r in program.results)
        self.tensor_positions, self.tensor_count, self.length = form.tensor_positions, program.inputs, form.length
        self.dies = tuple(form.at(i) for i in program.dying)
        self.kinds = sorted(reader.kinds)
        inner = [known[n] for n in self.kinds]
        self.makes = any(
            not u.tensor_positions and not u.signal for u in inner
        )  # whether it creates tensors, which are placed on the worker with most room


def computed(known: dict[int, Any]) -> KindOf:
    """A client's kinds by number that programs may use."""

    def kind_of(number: int) -> Kind | None:
        use = known.get(number)
        return use.kind if isinstance(use, KindPlans) and not use.loads else None

    return kind_of


class KindPlans:
    """A client's kind: its definition, its meaning, and the positions of tensors in its instructions. `size` is its weight
    against the most that a client may have."""

    __slots__ = (
        "definition", "kind", "form", "result_count", "tensor_positions", "tensor_count", "length", "loads", "dies", "specs",
        "results", "signal", "size",
    )  # fmt: skip

    def __init__(self, definition: KindDef, kind: Kind, size: int = 1) -> None:
        self.definition, self.kind, self.signal, self.size = definition, kind, kind.signal, size
        form = self.form = Form.of(kind)
        self.result_count, self.length = form.result_count, form.length
        self.tensor_positions, self.tensor_count = form.tensor_positions, len(form.tensor_positions)
        self.dies: tuple[int, ...] = ()
        self.loads = kind.row.loads
        self.specs: tuple[Spec, ...] = tuple(kind.ins[i] for i in kind.tensor_operands)
        self.results = kind.outs


def results_of(client: Client, ins: tuple) -> tuple:
    """The result ids of a refused instruction. If its kind is unknown, the ids before the first existing tensor's."""
    use = client.uses.get(ins[0]) if ins else None
    if use is not None and use.result_count is not None:
        return ins[use.form.results]
    return tuple(takewhile(lambda id: type(id) is int and id not in client.entries, arguments(ins)))


@dataclass(slots=True)
class Client:
    name: str
    label: str
    host: str
    uses: dict[int, Any] = field(default_factory=partial(kind_table, FREES))  # KindPlans, TracePlans or Refused, by number
    entries: dict[int, Entry | Lost] = field(default_factory=dict)  # its tensors, by id
    plans: dict[tuple, Any] = field(default_factory=dict)
    told: dict[int, set[int]] = field(default_factory=dict)  # numbers of the kinds whose definition each worker has
    home: int | None = None  # the worker for this client's new tensors without a signal
    held: HeldMessages = field(default_factory=HeldMessages)  # batches and later messages that wait for a worker or an upload
    attached: set[int] = field(default_factory=set)  # workers that it has connected to
    unheard: dict[int, float] = field(default_factory=dict)  # others that have work of its: since when; inf where it was told
    loading: int | None = None  # the tensor whose load waits for the client
    uploads: bool = False  # for its bytes; else for it to connect
    arriving: dict[int, list] = field(default_factory=dict)  # by worker, the instructions of that load
    late: dict[tuple[int, int], list] = field(default_factory=dict)  # the same for abandoned uploads
    acks: dict[int, set[int]] = field(default_factory=dict)  # by serial, the workers whose Done is missing
    sent: dict[int, int] = field(default_factory=dict)  # work sent to each worker, by `size_of`
    executed: dict[int, int] = field(default_factory=dict)  # the executed part of it
    cut: bool = False  # the rest of its last message is held until other clients have had their turns
    unfinished: Any = None  # PendingDefinitions, or the Planning of a call, of its last message
    replans: int = 0  # how often its plans were dropped as workers or signals changed
    ahead: bool = False  # a worker has more of its work in flight than the bound
    traced: int = 0  # instructions in its traces
    known: int = 0  # kinds and traces; one with many operands counts as several
    forget: int = 0
    since: float | None = None  # start of its wait for a worker to join
    signals: dict[str, Any] = field(default_factory=dict)
    targets: dict[str, Any] = field(default_factory=dict)  # by signal, the target with the present workers
    noted: set[str] = field(default_factory=set)  # warnings already sent: signals with missing workers, notes of workers
    sizes: dict[int, int] = field(default_factory=dict)  # bytes of each tensor per worker, if there are several workers
    locals: dict[tuple, int] = field(default_factory=dict)  # numbers of the dispatcher's own kinds, negative
    kinds: dict[int, Kind] = field(default_factory=dict)  # the dispatcher's own kinds, by number
    last_local: int = 0
    instructions: int = 0
    temporaries: int = RESERVED  # count of negative ids that the dispatcher has used
    number: int = 0  # as `gt ps` shows it
    user: User = OWNER
    weight: float = 1.0  # weight of its share of a worker's time
    interactive: bool = False  # its kernels go first on a device
    memory: int = 0  # quota of bytes on each worker; 0: none
    seconds: float = 0.0  # largest device time on one worker

    def introduction(self) -> Came | None:
        """The message with its share and limits for workers; None for the default share without limits."""
        user = self.user
        if self.weight == 1.0 and not self.memory and not user.name and not self.interactive:
            return None
        return Came(self.name, self.weight, self.memory, user.name, user.weight, user.memory, self.interactive)


def check_results(client: Client, ids: tuple[Any, ...], whole: bool = False) -> None:
    """Raise unless results may have these ids: positive, or those of an expanded trace's temporaries, which are never given
    again. The other ones are used inside of plans, where a client's tensor would be overwritten. `whole`: and integers, as
    workers use them as tags of messages to their peers."""
    for id in ids:
        if not (id > 0 or -client.temporaries <= id < -RESERVED) or whole and type(id) is not int:
            raise ProtocolError(f"invalid tensor id {id}: expected a positive integer")


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
    remote: str = ""
    small: bool = False  # clients on its host may answer small questions themselves
    reached: Reached | None = None  # how peers reach it in process groups
    bytes: int = 0  # of the tensors on it
    draining: bool = False  # it leaves soon: no tensor is placed on it
    released: bool = False  # all its tensors are moving to other workers

    @classmethod
    def of(cls, peer: str, index: int, name: str, join: Join, small: bool) -> WorkerState:
        """A worker that joins."""
        remote = join.remote
        return cls(peer, index, name, join.backend, join.device, join.host, join.pid, join.address, remote, small)

    def peer_for_clients(self) -> Peer:
        """The worker's addresses for clients, and its device."""
        return Peer(self.index, self.name, self.address, self.host, self.device, remote=self.remote, small=self.small)

    def peer_for_workers(self) -> Peer:
        """The worker's addresses for its peers."""
        return Peer(self.index, self.name, self.address, self.host, self.device, self.peer, self.reached, self.remote)


@dataclass(slots=True)
class PendingQuestion:
    """An Ask that several workers answer."""

    client: str
    ticket: int
    waiting: set[int]
    about: str = "stats"
    answers: dict[int, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Leaving:
    """A departed client: the workers that have not reported how many collectives they began, and the largest count."""

    waiting: set[int]
    counts: dict[tuple[int, ...], int] = field(default_factory=dict)


@dataclass(slots=True)
class Tables:
    clients: dict[str, Client] = field(default_factory=dict)
    workers: dict[int, WorkerState] = field(default_factory=dict)  # the connected ones, by index
    by_peer: dict[str, WorkerState] = field(default_factory=dict)
    questions: dict[int, PendingQuestion] = field(default_factory=dict)
    leaving: dict[int, Leaving] = field(default_factory=dict)  # by the number of its Drop
    cut: deque[str] = field(default_factory=deque)  # clients whose messages were cut, in the order of their turns
    waiting: dict[str, None] = field(default_factory=dict)  # clients that wait for a worker, or a worker for them (`patience`)
    hosts: Hosts = field(default_factory=Hosts)  # of the connected workers
    joined: int = 0  # workers that ever joined, and the index of the next: an index is never given again
    pids: dict[int, None] = field(default_factory=dict)  # processes of the last workers that joined
    expected: int = 0  # workers started with this dispatcher: no tensor is placed before they have joined
    joins_within: float = 60.0  # seconds that a read waits for a first worker to join
    most_clients: int = 1000
    most_because: str = "GT_MAX_CLIENTS, where it was started"  # the bound on the number of clients, for messages
    there: tuple[Peer, ...] | None = None  # the connected workers, for clients that may use all; None: outdated
    drained: int = 0  # workers that asked to leave
    moved: int = 0  # tensors that were moved off them
    dropped: int = 0  # messages that could not be decoded or were refused
    lane_messages: int = 0  # messages of clients that came over lanes
    trims: int = 0  # returns of free memory to the system
    short_slices: bool = False  # the system wakes the dispatcher before the end of another program's time slice

    @property
    def many(self) -> bool:
        """Whether there are several workers, whose bytes are then counted."""
        return len(self.by_peer) > 1

    def add(self, worker: WorkerState) -> None:
        self.joined += 1
        self.workers[worker.index] = self.by_peer[worker.peer] = worker
        self.pids[worker.pid] = None
        if len(self.pids) > PIDS:
            del self.pids[next(iter(self.pids))]
        self.hosts.add(worker.index, host_key(worker.host, worker.remote))
        self.there = None

    def remove(self, worker: WorkerState) -> None:
        """A worker has left, and no tensor lies on it any more."""
        del self.workers[worker.index]
        self.by_peer.pop(worker.peer, None)
        self.hosts.remove(worker.index)
        self.there = None
        Layout.on.cache_clear()  # else it would keep a layout for every worker that ever joined
        forget_kept()

    def has_joined(self, pid: int) -> bool:
        """Whether a process that has ended just now was a worker here. Threads may call it."""
        return pid in self.pids

    def living(self) -> list[WorkerState]:
        return list(self.workers.values())

    def staying(self, client: Client) -> list[WorkerState]:
        """Workers that a client's tensors may be placed on."""
        return [w for w in self.usable(client) if not w.draining]

    def usable(self, client: Client) -> list[WorkerState]:
        """The connected workers that a client may use."""
        return [w for w in self.workers.values() if client.user.may_use(w.index, w.name)]

    def peers_of(self, client: Client) -> tuple[Peer, ...]:
        """The addresses of the workers that a client may use."""
        if client.user.workers is not None:
            return tuple(w.peer_for_clients() for w in self.usable(client))
        if self.there is None:
            self.there = tuple(w.peer_for_clients() for w in self.living())
        return self.there

    def seen_by(self, client: Client) -> list[Client]:
        """The clients whose statistics a client may see."""
        return [c for c in self.clients.values() if client.user.sees(c.user)]

    def check_address(self, address: str) -> None:
        """Raise if another worker has this address."""
        if other := next((w.name for w in self.living() if w.address == address), ""):
            raise ProtocolError(f"address {address} belongs to worker {other} already")

    def note_reached(self, worker: WorkerState, reached: Reached) -> None:
        """Note how a worker is reached in process groups; raise if it offers another worker's memory."""
        offers = {w.reached.memory for w in self.living() if w is not worker and w.reached is not None}
        if reached.memory and reached.memory in offers:
            raise ProtocolError(f"worker {worker.name} offers another worker's memory")
        worker.reached = reached

    def cut_short(self, client: Client) -> None:
        """The rest of a client's messages waits for its next turn."""
        client.cut = True
        self.cut.append(client.name)

    def check(self) -> None:
        """Assert the invariants; a test's fixture calls this after each conversation."""
        living = {w.index for w in self.living()}
        for i, worker in self.workers.items():
            assert worker.index == i < self.joined, f"worker {worker.name} is at {i}, not at its index {worker.index}"
        assert {w.peer for w in self.living()} == set(self.by_peer) and living == self.hosts.of.keys()
        assert self.waiting.keys() <= self.clients.keys()
        for client in self.clients.values():
            assert not client.held or client.name in self.waiting
            for id, entry in client.entries.items():
                assert isinstance(entry, Lost) or set(entry.workers) <= living, f"tensor {id} lies on a lost worker"
            for waiting in client.acks.values():
                assert waiting <= living, "an Ack waits for a lost worker"
            for at, numbers in client.told.items():
                known = {*client.uses, *client.locals.values()}
                assert at in living and numbers <= known, "an unknown kind is defined on a worker"
        assert all(leaving.waiting and leaving.waiting <= living for leaving in self.leaving.values())
        for question in self.questions.values():
            assert question.client in self.clients and question.waiting <= living
