"""Observers of the event stream: their subscriptions, the events each may see, and the level at which workers and clients
report. Nobody waits for an observer: events that a slow one does not take are dropped and counted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from gt.dispatcher.batch_notes import FEW, BatchNotes, counted
from gt.dispatcher.tables import Client, Entry, KindPlans, Tables, WorkerState
from gt.dispatcher.users import OWNER, User, Users
from gt.errors import ProtocolError
from gt.program.code import is_client_kind, numbers_of
from gt.transport.auth import WORKER
from gt.transport.events import (
    EVERY,
    INSIDE,
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
    Seen,
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
from gt.transport.messages import VERSION, Batch, Mail, Note

PENDING = 1 << 12  # most events pending for an observer
BYTES = 16 << 20  # most bytes pending, and most in flight, for an observer; four times as many for an administrator
ALL_BYTES = 256 << 20  # most bytes pending for all observers that are not administrators
OBSERVERS = 64  # most observers
RESERVED = 16  # of these for administrators
EACH = 8  # most observers of one user of a pool
MAX_CLOCK_DIFFERENCE = 3600.0  # most seconds by which a client's clock may differ
NOBODY = User()  # the viewer rights of a client: it sees its own events alone
Watch = Callable[[str, str, Any], None]


@dataclass(slots=True)
class Flight:
    """Event messages in flight to a peer. It outlives a subscription, so that subscribing again does not raise the limit."""

    sent: int = 0
    seen: int = 0
    sizes: deque[int] = field(default_factory=deque)  # bytes of the messages after `seen`
    bytes: int = 0

    def send(self, size: int) -> None:
        self.sent, self.bytes = self.sent + 1, self.bytes + size
        self.sizes.append(size)

    def take_in(self, number: int) -> None:
        while self.seen < min(number, self.sent):
            self.seen, self.bytes = self.seen + 1, self.bytes - self.sizes.popleft()


@dataclass(slots=True)
class Observer:
    """A subscription and its pending events."""

    peer: str
    level: int
    user: User  # whose rights decide which events it may see
    owner: User  # whose limits it counts against; differs from `user` for a client, which sees its own events alone
    flight: Flight
    client: str = ""  # name of the client that it is, or that it watches
    dropped: int = 0
    pending: list[AnyEvent] = field(default_factory=list)
    bytes: int = 0  # of the pending events
    most: int = 0  # bytes of pending events, set from the owner

    def __post_init__(self) -> None:
        self.most = 4 * BYTES if self.owner.administrator else BYTES


def visible(observer: Observer, client: Client | None) -> bool:
    """Whether an observer may see a client's events: an administrator sees all, a user with a key of its own those of its
    clients, anybody else those of the client that it is or whose name, a secret, it knows. Events of no client, such as a
    joining worker, are visible to all."""
    if client is None or observer.user.administrator or observer.client == client.name:
        return True
    return bool(observer.user.name) and observer.user.sees(client.user)


def plausible(at: float, now: float) -> float:
    """A client's time; if its clock is wrong, the current time."""
    return at if abs(at - now) < MAX_CLOCK_DIFFERENCE else now


class Observers:
    """`local` is a reader in this process, such as the instruction log, which is called with unencoded events: "batch"
    (client, batch) received, "run" (client, run) sent to a worker, "spans" (client, spans) and "state" (client, state)
    received from one, "event" (event) reported by a client or a worker, or of a worker that joins, "lost" (why) for a worker,
    "gone" for a client."""

    def __init__(self, tables: Tables, local: Watch | None = None, users: Users | None = None) -> None:
        self.tables, self.local, self.users = tables, local, users or Users()
        self.clock: Callable[[], float] = float  # the shell sets a real clock
        self.prompt = False  # whether events are flushed after each message; else the shell flushes them
        self.there: dict[str, Observer] = {}
        self.flights: dict[str, Flight] = {}  # by peer, until its connection ends
        self.listening: dict[str, Listen] = {}  # last level sent to each worker and client, by peer
        self.placed: set[tuple] = set()
        self.left: dict[str, Client] = {}  # recently departed clients, by name: workers' reports arrive later
        self.on = self.sends = local is not None  # whether batches, and parts of them sent to workers, are told
        self.crowded = False  # whether an observer's events should be sent at once, before more of them are dropped
        self.notes = BatchNotes()  # of batches that are not reported yet
        self.every = False  # whether an observer wants to know of every run, not of a sample

    # Subscriptions

    def handle(self, peer: str, message: WorkerReport | Subscribe | Seen, role: str = "") -> list[Mail]:
        """Handle subscriptions, acknowledgements of observers, and reports of workers and clients."""
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
        self.tell_received()  # to the observers that were there
        own = peer if peer in self.tables.clients else asked.client
        flight = self.flights.setdefault(peer, Flight())
        known = self.there[peer] = Observer(peer, asked.level, user, owner, flight, own)
        self.on = True
        self.every = any(o.level >= EVERY for o in self.there.values())
        self.sends = self.every or self.local is not None
        self.placed.clear()
        for worker in self.tables.living():
            self.listening.pop(worker.peer, None)  # a new Listen makes the worker send its meanings again
        now = self.clock()
        for worker in self.tables.living():
            known.pending.append(Joined(worker.name, now, worker.index, f"{worker.backend} on {worker.device}, {worker.host}"))
        for client in self.tables.clients.values():
            if visible(known, client):
                known.pending.append(Joined(client.label, now))
        return [*self.send_levels(), *self._flush(known, first=True)]

    def _check_room(self, owner: User) -> None:
        """Raise if another observer of this user exceeds a limit. Places are reserved for administrators and other users."""
        most = OBSERVERS if owner.administrator else OBSERVERS - RESERVED
        if len(self.there) >= most:
            raise ProtocolError(f"{len(self.there)} observers are subscribed already, the maximum is {most}")
        own = sum(o.owner.name == owner.name for o in self.there.values())
        if owner.name and not owner.administrator and own >= EACH:
            raise ProtocolError(f"{own} observers of {owner.name} are subscribed already, the maximum is {EACH}")

    def seen(self, peer: str, number: int) -> list[Mail]:
        self.flights[peer].take_in(number)
        return []  # pending events are sent with the next ones

    def lose(self, peer: str) -> list[Mail]:
        """An observer, or an observed client or worker, has disconnected."""
        self.listening.pop(peer, None)
        self.flights.pop(peer, None)
        return self._forget(peer)

    def _forget(self, peer: str) -> list[Mail]:
        if self.there.pop(peer, None) is None:
            return []
        if not self.there:
            self.notes.clear()
        self.on = self.local is not None or bool(self.there)
        self.every = any(o.level >= EVERY for o in self.there.values())
        self.sends = self.every or self.local is not None
        return self.send_levels()

    # Levels of workers and clients

    def send_levels(self) -> list[Mail]:
        """Send workers and clients the level at which to report, where it has changed."""
        general = max((o.level for o in self.there.values() if o.user.administrator), default=OFF)
        general = max(general, INSIDE if self.local is not None else OFF)
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

    # Events

    def tell(self, client: Client | None, event: AnyEvent, size: int = 0) -> None:
        """Add an event to every observer that may see it."""
        size = size or nbytes(event)
        for observer in self.there.values():
            if observer.user.administrator or visible(observer, client):
                self._add(observer, event, size)

    def _add(self, observer: Observer, event: AnyEvent, size: int) -> None:
        pending = observer.pending
        if len(pending) >= PENDING or observer.bytes + size > observer.most or not self._has_room(observer, size):
            observer.dropped += 1
            return
        pending.append(event)
        observer.bytes += size
        if len(pending) > PENDING // 4 or observer.bytes > observer.most // 4:
            self.crowded = True

    def _has_room(self, observer: Observer, size: int) -> bool:
        """Whether the pending events of all observers that are not administrators have room for another. Small events always
        fit."""
        if observer.owner.administrator or size < BYTES >> 10:
            return True
        waiting = sum(o.bytes for o in self.there.values() if not o.owner.administrator)
        return waiting + sum(f.bytes for f in self.flights.values()) + size <= ALL_BYTES

    def _state(self, worker: WorkerState, state: State) -> None:
        """A worker's load is visible to all; its current instruction only to observers of the instruction's client."""
        clients = self.tables.clients
        whose = clients.get(state.client) or self.left.get(state.client)
        told = replace(state, worker=worker.name, client=whose.label if whose is not None else "")
        load = replace(told, current="", since=0.0, stack="", client="")
        if self.local is not None and whose is not None:
            self.local("state", worker.name, (whose, told))
        for observer in self.there.values():
            sees = observer.user.administrator or (whose is not None and visible(observer, whose))
            self._add(observer, told if sees else load, nbytes(told))

    def batch(self, client: Client, batch: Batch) -> None:
        """A batch is handled. Where an observer wants to know of every run, it is told with its parts: see `runs`."""
        if self.local is not None:
            self.local("batch", client.label, (client, batch))
        if self.there and not self.every:
            if self.notes.add(client.name, batch) > PENDING:
                self.crowded = True
            if client.signals:
                self._results(client, batch.code, set(numbers_of(batch.code)))

    def tell_received(self) -> None:
        """Report the batches that were only counted or noted."""
        if not self.notes.rows and not self.notes.sample:
            return
        known = {**self.left, **self.tables.clients}
        labels = {name: client.label for name, client in known.items()}
        for name, event in self.notes.take(labels, self.tables.by_peer, self.clock()):
            self.tell(known[name], event)

    def runs(self, client: Client, batch: Batch, runs: list[Mail]) -> None:
        """The parts of a batch are sent to workers, as soon as it is received."""
        if self.local is not None:
            for mail in runs:
                self.local("run", self.tables.by_peer[mail.peer].name, (client, mail.message))
        if self.every:
            rows = self.notes.rows.get(client.name)
            if rows is None:
                rows = self.notes.rows_of(client.name, self.clock)
            rows.add((batch, runs) if len(batch.code) <= FEW else counted(batch, runs))
            if len(rows) > PENDING // 8:
                self.crowded = True
            if client.signals:
                self._results(client, batch.code, set(numbers_of(batch.code)))

    def _results(self, client: Client, code: Iterable[tuple], numbers: Iterable[int]) -> None:
        """Report the layout of results with a signal, once for each signal, spec and layout. `numbers` are those in `code`."""
        known = {number: client.uses.get(number) for number in numbers if is_client_kind(number)}
        uses = {number: use for number, use in known.items() if isinstance(use, KindPlans) and use.signal}
        for ins in code if uses else ():
            use = uses.get(ins[0]) if ins else None
            if use is None:
                continue
            for id in ins[use.form.results]:
                entry = client.entries.get(id)
                key = (client.name, use.signal, entry)
                if isinstance(entry, Entry) and key not in self.placed and len(self.placed) < PENDING:
                    self.placed.add(key)
                    text = f"{entry.spec.dtype.name}{list(entry.spec.shape)}"
                    self.tell(client, Placed(client.label, self.clock(), use.signal, text, str(entry.layout)))

    def report(self, peer: str, report: WorkerReport) -> None:
        """The events that a worker or a client reports."""
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
                    if client is not None:  # else it is unknown who may see it
                        self._pass_on(client, replace(event, client=client.label, worker=worker.name))
                case State() if worker:
                    self._state(worker, event)
                case Waited() | Loaded() | Traced() if peer in clients:
                    at = plausible(event.at, self.clock())
                    self._pass_on(clients[peer], replace(event, client=clients[peer].label, at=at))
                case Lines() if peer in clients:
                    now = self.clock()
                    sent = tuple([(serial, plausible(at, now)) for serial, at in event.sent])
                    self._pass_on(clients[peer], replace(event, client=clients[peer].label, sent=sent))
                case _:
                    raise ProtocolError(f"{peer} may not report {type(event).__name__}")

    def _pass_on(self, client: Client | None, event: AnyEvent) -> None:
        """Tell this process's reader and every observer that may see it."""
        if self.local is not None:
            self.local("event", "", event)
        self.tell(client, event)

    def came(self, name: str, peer: str, index: int = -1, about: str = "") -> list[Mail]:
        if not self.on:
            return []
        self._pass_on(self.tables.clients.get(peer), Joined(name, self.clock(), index, about))
        return self.send_levels()

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
        self.tell_received()
        self.placed = {key for key in self.placed if key[0] != client.name}
        self.left[client.name] = Client(client.name, client.label, client.host, user=client.user)
        if len(self.left) > OBSERVERS:
            del self.left[next(iter(self.left))]
        return self.went(client.label, client.name, why)

    def note(self, worker: WorkerState, client: Client, note: Note) -> None:
        """A worker has reported a stalled collective."""
        if note.tensor:
            self.tell(client, Stalled(client.label, self.clock(), note.text, worker.name, note.tensor))

    # Sending

    def before_answer(self, peer: str) -> list[Mail]:
        """A client that asks for statistics is sent its events before the answer."""
        if peer not in self.there:
            return []
        self.tell_received()
        return self._flush(self.there[peer])

    def flush(self) -> list[Mail]:
        self.tell_received()
        self.crowded = False
        return [mail for observer in self.there.values() for mail in self._flush(observer)] if self.there else []

    def _flush(self, observer: Observer, first: bool = False) -> list[Mail]:
        flight = observer.flight
        if not (observer.pending or first) or flight.sent - flight.seen >= WINDOW or flight.bytes >= observer.most:
            return []
        flight.send(observer.bytes)
        events, observer.pending, observer.bytes = tuple(observer.pending), [], 0
        return [Mail(observer.peer, Watched(flight.sent, events, observer.dropped))]
