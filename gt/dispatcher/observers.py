"""Those who watch: what is told to whom, and how closely workers and clients look for them. An observer never holds anybody up:
what it does not take in is dropped and counted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from gt.dispatcher.tables import Client, Entry, KindPlans, Tables, TracePlans, WorkerState
from gt.dispatcher.users import OWNER, User, Users
from gt.errors import ProtocolError
from gt.program.code import is_client_kind, is_free
from gt.transport.auth import WORKER
from gt.transport.events import (
    EVERY,
    OFF,
    WINDOW,
    AnyEvent,
    Compiled,
    Departed,
    Joined,
    Lines,
    Listen,
    Loaded,
    Placed,
    Received,
    Seen,
    Sent,
    Spans,
    Stalled,
    State,
    Subscribe,
    Traced,
    Waited,
    Watched,
    WorkerReport,
    nbytes,
)  # fmt: skip
from gt.transport.messages import VERSION, Batch, Mail, Note, Run

PENDING = 1 << 12  # events that wait for an observer to take in others
BYTES = 16 << 20  # of those, and as many again that are on their way to it; an administrator has four times as many
ALL_BYTES = 256 << 20  # of the events of all observers that are no administrators
OBSERVERS = 64
RESERVED = 16  # of these for administrators
EACH = 8  # observers of one user of a pool
AWAY = 3600.0  # seconds by which the clock of a client may differ
NOBODY = User()  # a client sees its own events, whoever's it is
Watch = Callable[[str, str, Any], None]


@dataclass(slots=True)
class Flight:
    """What a peer was sent and has not taken in. It outlives a subscription: who ends one and begins another has no more."""

    sent: int = 0
    seen: int = 0
    sizes: deque[int] = field(default_factory=deque)  # of the messages behind `seen`, in bytes
    bytes: int = 0

    def send(self, size: int) -> None:
        self.sent, self.bytes = self.sent + 1, self.bytes + size
        self.sizes.append(size)

    def take_in(self, number: int) -> None:
        while self.seen < min(number, self.sent):
            self.seen, self.bytes = self.seen + 1, self.bytes - self.sizes.popleft()


@dataclass(slots=True)
class Observer:
    """Who watches, and what waits for it."""

    peer: str
    level: int
    user: User  # what it may see, by the key that it has shown
    owner: User  # whose it is: a client sees its own events alone, whoever's it is
    flight: Flight
    client: str = ""  # the one that it is or names
    dropped: int = 0
    pending: list[AnyEvent] = field(default_factory=list)
    bytes: int = 0  # of these

    @property
    def most(self) -> int:
        return 4 * BYTES if self.owner.administrator else BYTES


def visible(observer: Observer, client: Client | None) -> bool:
    """Whose events an observer may see: an administrator all, a user with a key of its own those of its clients, anybody else
    those of the client that it is or can name, as clients' names are secrets. What concerns no client, such as a worker that
    joins, all may see."""
    if client is None or observer.user.administrator or observer.client == client.name:
        return True
    return bool(observer.user.name) and observer.user.sees(client.user)


class Observers:
    """`local` are readers in this process, such as the instruction log: they are called with what passes, as it is: "batch"
    (client, batch) came in, "run" (client, run) goes to a worker, "spans" (client, spans) came from one, "lost" (why) is a
    worker, "gone" a client."""

    def __init__(self, tables: Tables, local: Watch | None = None, users: Users | None = None) -> None:
        self.tables, self.local, self.users = tables, local, users or Users()
        self.clock: Callable[[], float] = float  # the shell gives a real one
        self.prompt = False  # whether observers are told behind each message; else the shell asks for it
        self.there: dict[str, Observer] = {}
        self.flights: dict[str, Flight] = {}  # by peer, until its connection ends
        self.listening: dict[str, Listen] = {}  # what workers and clients were last told, by peer
        self.placed: set[tuple] = set()
        self.left: dict[str, Client] = {}  # by name, the last that went: workers tell what they did a moment later
        self.on = local is not None

    # Who watches

    def handle(self, peer: str, message: WorkerReport | Subscribe | Seen, role: str = "") -> list[Mail]:
        """What observers say, and what those say who are watched."""
        worker, client = peer in self.tables.by_peer, peer in self.tables.clients
        match message:
            case WorkerReport() if client or worker:
                self.report(peer, message)
                return []
            case Subscribe() if not worker:
                if client:
                    return self.subscribe(peer, message, NOBODY, self.tables.clients[peer].user)
                user = OWNER if role == WORKER else self.users.of(role)
                return self.subscribe(peer, message, user, user)
            case Seen(number) if peer in self.flights:
                return self.seen(peer, number)
        raise ProtocolError(f"unexpected {type(message).__name__}{'' if client or worker else f' from {peer}'}")

    def subscribe(self, peer: str, asked: Subscribe, user: User, owner: User) -> list[Mail]:
        if asked.version != VERSION:
            raise ProtocolError(
                f"protocol version {asked.version} is not the dispatcher's, {VERSION}: install the same version of GT"
            )
        if asked.level == OFF:
            return self._forget(peer)
        if peer not in self.there:
            self._check_room(owner)
        own = peer if peer in self.tables.clients else asked.client
        flight = self.flights.setdefault(peer, Flight())
        known = self.there[peer] = Observer(peer, asked.level, user, owner, flight, own)
        self.on = True
        self.placed.clear()
        for worker in self.tables.living():
            self.listening.pop(worker.peer, None)  # it is told again, and tells again what its numbers mean
        now = self.clock()
        for worker in self.tables.living():
            known.pending.append(Joined(worker.name, now, worker.index, f"{worker.backend} on {worker.device}, {worker.host}"))
        for client in self.tables.clients.values():
            if visible(known, client):
                known.pending.append(Joined(client.label, now))
        return [*self.look(), *self._flush(known, first=True)]

    def _check_room(self, owner: User) -> None:
        """Raise where another observer of this user is one too many. Users leave room for administrators and for each other."""
        most = OBSERVERS if owner.administrator else OBSERVERS - RESERVED
        if len(self.there) >= most:
            raise ProtocolError(f"{len(self.there)} observers watch already, the most are {most}")
        own = sum(o.owner.name == owner.name for o in self.there.values())
        if owner.name and not owner.administrator and own >= EACH:
            raise ProtocolError(f"{own} observers of {owner.name} watch already, the most are {EACH}")

    def seen(self, peer: str, number: int) -> list[Mail]:
        self.flights[peer].take_in(number)
        return self._flush(self.there[peer]) if peer in self.there else []

    def lose(self, peer: str) -> list[Mail]:
        """An observer is gone, or a client or worker that was listened to."""
        self.listening.pop(peer, None)
        self.flights.pop(peer, None)
        return self._forget(peer)

    def _forget(self, peer: str) -> list[Mail]:
        if self.there.pop(peer, None) is None:
            return []
        self.on = self.local is not None or bool(self.there)
        return self.look()

    # How closely others look

    def look(self) -> list[Mail]:
        """Tell workers and clients how closely to look, where that has changed."""
        general = max((o.level for o in self.there.values() if o.user.administrator), default=OFF)
        general = max(general, EVERY if self.local is not None else OFF)
        own: dict[str, int] = {}
        for observer in self.there.values():
            for name, client in self.tables.clients.items() if observer.level > general else ():
                if visible(observer, client):
                    own[name] = max(own.get(name, OFF), observer.level)
        asked = {w.peer: Listen(general, tuple(sorted(own.items()))) for w in self.tables.living()}
        asked |= {name: Listen(own.get(name, general)) for name in self.tables.clients}
        out = []
        for peer, listen in asked.items():
            if self.listening.get(peer, Listen(OFF)) != listen:
                self.listening[peer] = listen
                out.append(Mail(peer, listen))
        return out

    # What happens

    def tell(self, client: Client | None, event: AnyEvent) -> None:
        """Note an event for all who may see it."""
        size = nbytes(event)
        for observer in self.there.values():
            if visible(observer, client):
                self._add(observer, event, size)

    def _add(self, observer: Observer, event: AnyEvent, size: int) -> None:
        if len(observer.pending) >= PENDING or observer.bytes + size > observer.most or not self._has_room(observer, size):
            observer.dropped += 1
            return
        observer.pending.append(event)
        observer.bytes += size

    def _has_room(self, observer: Observer, size: int) -> bool:
        """Whether the observers that are no administrators have room for an event together. Small events fill nothing."""
        if observer.owner.administrator or size < BYTES >> 10:
            return True
        waiting = sum(o.bytes for o in self.there.values() if not o.owner.administrator)
        return waiting + sum(f.bytes for f in self.flights.values()) + size <= ALL_BYTES

    def _state(self, worker: WorkerState, state: State) -> None:
        """A worker's load is for all to see; what it executes, for those who may see whose that is."""
        clients = self.tables.clients
        whose = clients.get(state.client) or self.left.get(state.client)
        told = replace(state, worker=worker.name, client=whose.label if whose is not None else "")
        load = replace(told, current="", since=0.0, stack="", client="")
        for observer in self.there.values():
            sees = observer.user.administrator or (whose is not None and visible(observer, whose))
            self._add(observer, told if sees else load, nbytes(told))

    def batch(self, client: Client, batch: Batch) -> None:
        if self.local is not None:
            self.local("batch", client.label, (client, batch))
        if self.there:
            frees = sum(map(is_free, batch.code))
            calls = sum(isinstance(client.uses.get(int(ins[0])), TracePlans) for ins in batch.code if ins)
            n = len(batch.code) - frees
            self.tell(
                client, Received(client.label, batch.serial, self.clock(), n, calls, frees, len(batch.gets))
            )  # fmt: skip

    def runs(self, client: Client, runs: Iterable[tuple[WorkerState, Run]]) -> None:
        now = self.clock()
        for worker, run in runs:
            if self.local is not None:
                self.local("run", worker.name, (client, run))
            if self.there:
                self.tell(client, Sent(client.label, run.serial, worker.name, now, len(run.code)))

    def results(self, client: Client, code: Iterable[tuple]) -> None:
        """Where results that have a signal lie, told once for each signal, spec and layout."""
        if not client.signals or not self.there:
            return
        for ins in code:
            use = client.uses.get(ins[0]) if ins and is_client_kind(ins[0]) else None
            if not isinstance(use, KindPlans) or not use.signal:
                continue
            for id in ins[use.form.results]:
                entry = client.entries.get(id)
                key = (client.name, use.signal, entry)
                if isinstance(entry, Entry) and key not in self.placed and len(self.placed) < PENDING:
                    self.placed.add(key)
                    text = f"{entry.spec.dtype.name}{list(entry.spec.shape)}"
                    self.tell(client, Placed(client.label, self.clock(), use.signal, text, str(entry.layout)))

    def report(self, peer: str, report: WorkerReport) -> None:
        """What a worker or a client has to tell."""
        worker, clients = self.tables.by_peer.get(peer), self.tables.clients
        for event in report.events:
            match event:
                case Spans() if worker:
                    client = clients.get(event.client) or self.left.get(event.client)
                    if client is not None:
                        told = replace(event, client=client.label, worker=worker.name)
                        if self.local is not None:
                            self.local("spans", worker.name, (client, told))
                        self.tell(client, told)
                case Compiled() if worker:
                    client = clients.get(event.client) or self.left.get(event.client)
                    if client is not None:  # else nobody knows who may see it
                        self.tell(client, replace(event, client=client.label, worker=worker.name))
                case State() if worker:
                    self._state(worker, event)
                case Waited() | Loaded() | Traced() | Lines() if peer in clients:
                    now = self.clock()
                    at = event.at if abs(event.at - now) < AWAY else now  # of a clock that is of no use to those who watch
                    self.tell(clients[peer], replace(event, client=clients[peer].label, at=at))
                case _:
                    raise ProtocolError(f"{peer} may not report {type(event).__name__}")

    def came(self, name: str, peer: str, index: int = -1, about: str = "") -> list[Mail]:
        if not self.on:
            return []
        self.tell(self.tables.clients.get(peer), Joined(name, self.clock(), index, about))
        return self.look()

    def went(self, name: str, peer: str, why: str, index: int = -1) -> list[Mail]:
        if self.local is not None and index >= 0:
            self.local("lost", name, why)
        self.tell(self.left.get(peer), Departed(name, self.clock(), why, index))
        return self.lose(peer)

    def client_gone(self, client: Client, why: str) -> list[Mail]:
        self.flights.pop(client.name, None)
        if not self.on:
            return []
        if self.local is not None:
            self.local("gone", client.label, client)
        self.placed = {key for key in self.placed if key[0] != client.name}
        self.left[client.name] = Client(client.name, client.label, client.host, user=client.user)
        if len(self.left) > OBSERVERS:
            del self.left[next(iter(self.left))]
        return self.went(client.label, client.name, why)

    def note(self, worker: WorkerState, client: Client, note: Note) -> None:
        """A worker has said that a collective does not end."""
        if note.tensor:
            self.tell(client, Stalled(client.label, self.clock(), note.text, worker.name, note.tensor))

    # Sending

    def flush(self) -> list[Mail]:
        return [mail for observer in self.there.values() for mail in self._flush(observer)] if self.there else []

    def _flush(self, observer: Observer, first: bool = False) -> list[Mail]:
        flight = observer.flight
        if not (observer.pending or first) or flight.sent - flight.seen >= WINDOW or flight.bytes >= observer.most:
            return []
        flight.send(observer.bytes)
        events, observer.pending, observer.bytes = tuple(observer.pending), [], 0
        return [Mail(observer.peer, Watched(flight.sent, events, observer.dropped))]
