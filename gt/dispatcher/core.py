"""The dispatcher's decisions: `handle(mail) -> [mail]`. It reads no clock, opens no socket and touches no tensor bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from gt.dispatcher import loads, patience, policy, signals
from gt.dispatcher.admission import Admission, check_version
from gt.dispatcher.drain import Drains
from gt.dispatcher.observers import Observers, Watch
from gt.dispatcher.questions import Questions
from gt.dispatcher.reports import Reports
from gt.dispatcher.rewrite import REASON, SLICE, Rewriter
from gt.dispatcher.stream import Stream
from gt.dispatcher.tables import Client, Entry, Leaving, Lost, Tables, WorkerState
from gt.dispatcher.users import Users
from gt.errors import ProtocolError
from gt.program.code import free
from gt.transport import checks
from gt.transport.checks import TooMuch
from gt.transport.events import Seen, Subscribe, WorkerReport
from gt.transport.messages import (
    Ack,
    Answer,
    Arrived,
    Ask,
    Attached,
    Batch,
    Begun,
    Bye,
    Configure,
    Done,
    Drain,
    Drop,
    Failed,
    Hello,
    Join,
    Mail,
    Note,
    Peers,
    Progress,
    Refuse,
    Run,
    Skip,
    Store,
    Welcome,
)  # fmt: skip

OBSERVERS = (WorkerReport, Subscribe, Seen)  # messages about observation
LEFT = "it left"  # the reason, where the peer announced it


class Dispatcher:
    """`watch(event, who, what)` is called for each message if this process has an observer (`Observers`), `tell(line)` when a
    client or worker joins or leaves."""

    def __init__(
        self, watch: Watch | None = None, tell: Callable[[str], None] | None = None, auto_shard: bool = False,
        users: Users | None = None,
    ) -> None:  # fmt: skip
        self.tables, self.users = Tables(), users or Users()
        self.observers = Observers(self.tables, watch, self.users)
        self.reports = Reports(self.tables, tell)
        self.rewriter = Rewriter(self.tables, auto_shard)
        self.stream = Stream(self.tables, self.rewriter, self.reports, self.observers)
        self.questions = Questions(self.tables, self._let_go)
        self.drains = Drains(self.tables, self.reports)
        self.labels = count(1)
        self.drops = count(1)
        self.admission = Admission(self.tables, self.users, self.reports)
        self.unannounced: list[WorkerState] = []  # workers that joined and were not announced yet

    def handle(self, mail: Mail) -> list[Mail]:
        """The messages that answer one message. An error in it affects only its sender, who receives the error."""
        message = mail.message
        if type(message) is Batch:
            return self.handle_batch(mail.peer, message)
        self.rewriter.left = SLICE
        try:
            checks.message(message)
            if isinstance(message, OBSERVERS):
                out = self.observers.handle(mail.peer, message, mail.role)
            else:
                out = self.observers.before_answer(mail.peer) if type(message) is Ask else []
                out += self._handle(mail.peer, message, mail.role)
            return out + self.observers.flush() if self.observers.prompt else out
        except Exception as wrong:  # no message may end the dispatcher, which all clients share
            return self._refusal(mail.peer, mail.message, wrong)

    def handle_batch(self, peer: str, batch: Batch) -> list[Mail]:
        """`handle` of a batch, of which there are more than of all other messages."""
        self.rewriter.left = SLICE
        try:
            checks.batch(batch)
            client = self.tables.clients.get(peer)
            if client is None:
                raise ProtocolError(f"unexpected Batch{'' if peer in self.tables.by_peer else f' from {peer}'}")
            out = [*self.stream.batch(client, batch)]
            return out + self.observers.flush() if self.observers.prompt else out
        except Exception as wrong:  # no message may end the dispatcher, which all clients share
            return self._refusal(peer, batch, wrong)

    def unreadable(self, peer: str, wrong: ProtocolError) -> list[Mail]:
        """A message of this peer could not be decoded. A client may wait for the answer to it, so the client is removed."""
        self.reports.dropped(peer, str(wrong))
        return self._let_go(peer, f"sent an invalid message: {wrong}") if peer in self.tables.clients else []

    def _refusal(self, peer: str, message: Any, wrong: Exception) -> list[Mail]:
        """Refuse a message: count it, report it, and answer each read in it with an error."""
        why = str(wrong) if isinstance(wrong, ProtocolError) else f"{type(wrong).__name__}: {wrong}"
        self.reports.dropped(peer, why, cause=None if isinstance(wrong, ProtocolError) else wrong)
        why = f"{type(message).__name__} refused: {why}"[:REASON]
        client = self.tables.clients.get(peer)
        if isinstance(message, (Hello, Join, Subscribe)) and client is None and peer not in self.tables.by_peer:
            return [Mail(peer, Bye(why))]
        if client is None:
            return []
        if isinstance(wrong, TooMuch):
            return self._let_go(peer, why)
        match message:
            case Batch():
                return list(self.stream.refuse(client, message, why))
            case Ask(ticket):
                return [Mail(peer, Failed(ticket, "ProtocolError", why))]
            case Configure():
                return [Mail(peer, Note(why))]
        return []

    def _let_go(self, peer: str, why: str) -> list[Mail]:
        """End a client's membership, and tell the client why."""
        return [Mail(peer, Bye(why)), *self.lose(peer, why)]

    def _handle(self, peer: str, message: Any, role: str = "") -> Iterable[Mail]:
        client = self.tables.clients.get(peer)
        worker = self.tables.by_peer.get(peer)
        match message:
            case Done() if worker:
                return self.stream.done(worker, message)
            case Hello() if not client and not worker:
                return self._hello(peer, message, role)
            case Join() if not client and not worker:
                return self._join(peer, message)
            case Ask(_, "placement" | "programs") | Configure() if client and client.held:
                return self.stream.hold(client, message)  # it applies after the batches that are held
            case Ask(_, "stats" | "clients") if client and self.tables.joined < self.tables.expected:
                return self.stream.hold(client, message)  # the question includes workers that are still starting
            case Ask(ticket, "joined", name) if not client and not worker:  # a health check: it takes no client's place
                return [Mail(peer, Answer(ticket, any(w.name == name for w in self.tables.living())))]
            case Ask() | Configure() if client:
                return self._told(client, message)
            case Answer(ticket, value) if worker:
                return self.questions.answer(worker, ticket, value)
            case Arrived(name) | Attached(_, _, name) if worker:
                return self._came(worker, name, message)
            case Store(reached) if worker:
                self.tables.note_reached(worker, reached)
                return self._tell_workers()
            case Progress(name, done) if worker:
                return self._progress(worker, name, done)
            case Begun(number, counts) if worker:
                return self._begun(worker, number, counts)
            case Refuse(name, why) if worker:
                return self._let_go(name, f"was refused by worker {worker.name}: {why}") if name in self.tables.clients else []
            case Note() if worker and message.client in self.tables.clients:
                return self._note(worker, self.tables.clients[message.client], message)
            case Drain() if worker:
                return self._drain(worker)
            case Bye(why) if client or worker:
                return self.lose(peer, why if worker and why else LEFT)
        raise ProtocolError(f"unexpected {type(message).__name__}{'' if client or worker else f' from {peer}'}")

    def _note(self, worker: WorkerState, client: Client, note: Note) -> list[Mail]:
        """Pass a worker's note on to a client; a note about no tensor is passed on once, whichever worker sends it first."""
        self.observers.note(worker, client, note)
        if not note.tensor:
            if note.text in client.noted:
                return []
            client.noted.add(note.text)
        return [Mail(client.name, note)]

    def _told(self, client: Client, message: Ask | Configure) -> Iterable[Mail]:
        if isinstance(message, Ask):
            return self.questions.ask(client, message)
        client.signals = signals.check(message.signals)
        self._replan(client)
        return []

    def _resume(self, client: Client) -> Iterable[Mail]:
        """Handle the messages held until a worker joined, an upload arrived or a worker caught up."""
        while client.held and client.home is not None and client.loading is None and not client.ahead and not client.cut:
            if self.rewriter.left <= 0:
                self.tables.cut_short(client)
                return
            message = client.held.popleft()
            try:
                yield from self.stream.run(client, message) if isinstance(message, Batch) else self._told(client, message)
            except Exception as wrong:  # a client's held message costs that client alone, not the one whose arrival released it
                yield from self._refusal(client.name, message, wrong)

    def _came(self, worker: WorkerState, name: str, came: Arrived | Attached) -> Iterable[Mail]:
        """A client has attached to a worker, or sent it bytes, for which a load may have waited."""
        client = self.tables.clients.get(name)
        if client is None or not client.user.may_use(worker.index, worker.name):
            yield Mail(worker.peer, Drop(name))  # anybody who can connect to a worker can send it bytes, under any name
            return
        waited = client.loading is not None
        yield from loads.arrived(worker, client, came.id) if isinstance(came, Arrived) else loads.attached(worker, client)
        if waited and client.loading is None:
            yield from self.drains.advance()
            yield from self._resume(client)

    def _drain(self, worker: WorkerState) -> Iterable[Mail]:
        """Start draining a worker: signals and clients' homes move to the staying workers."""
        began = not worker.draining
        yield from self.drains.begin(worker)
        for client in self.tables.clients.values() if began else ():
            self._replan(client)
            if client.home == worker.index:
                client.home = policy.home(self.tables, client)

    def _progress(self, worker: WorkerState, name: str, done: int) -> Iterable[Mail]:
        client = self.tables.clients.get(name)
        return self._resume(client) if client and self.stream.progress(client, worker.index, done) else []

    # Clients and workers that join and leave

    def _hello(self, peer: str, hello: Hello, role: str) -> Iterable[Mail]:
        yield from self.admission.hello(peer, hello, role)
        if peer in self.tables.clients:
            yield from self.observers.came(self.tables.clients[peer].label, peer)

    def _join(self, peer: str, join: Join) -> Iterable[Mail]:
        try:
            check_version(join.version, join.release)
            if not join.address.startswith(("ipc://", "tcp://")) or join.remote and not join.remote.startswith("tcp://"):
                raise ProtocolError(f"invalid addresses of a worker: {join.address!r} and {join.remote!r}")
            self.tables.check_address(join.address)
        except ProtocolError as refused:
            self.tables.dropped += 1
            self.reports.tell(f"a worker was refused: {refused}")
            yield Mail(peer, Bye(f"refused: {refused}"))
            return
        taken = {w.name for w in self.tables.living()}
        name = join.name
        while name in taken:  # two workers of one name would write over each other's tensors
            name = f"{join.name}-{next(self.labels)}"
        logged = self.observers.local is not None  # an instruction log shows all instructions
        worker = WorkerState.of(peer, self.tables.joined, name, join, small=join.small and not logged)
        self.tables.add(worker)
        self.reports.tell(f"worker {name} joined with index {worker.index}: {join.backend} on {join.device}, {join.host}")
        self.unannounced.append(worker)
        yield Mail(peer, Welcome(name, worker.index, users=dict(self.users.public)))
        yield from self.observers.came(name, peer, worker.index, f"{join.backend} on {join.device}, {join.host}")
        for client in self.tables.clients.values():
            if client.user.may_use(worker.index, worker.name) and (introduction := client.introduction()) is not None:
                yield Mail(peer, introduction)
        if self.tables.joined >= self.tables.expected:  # before that no tensor is placed, so no client needs to know the worker
            yield from self._tell_all()
            yield from self._settle_in()

    def _tell_all(self) -> Iterable[Mail]:
        """A worker joined, or the last of several expected ones."""
        came, self.unannounced = self.unannounced, []
        yield from self._tell_workers()
        for client in self.tables.clients.values():
            if not any(client.user.may_use(worker.index, worker.name) for worker in came):
                continue
            self._replan(client)
            yield Mail(client.name, Peers(self.tables.peers_of(client)))

    def expect(self, workers: int) -> list[Mail]:
        """Expect this many workers; clients that waited for more of them continue."""
        waited = 0 < self.tables.joined < self.tables.expected
        self.tables.expected = workers
        told = self._tell_all() if waited and self.tables.joined >= workers else ()
        return [*told, *self._settle_in(), *self._answer_without_workers()]

    def _answer_without_workers(self) -> Iterable[Mail]:
        """Answer the questions that waited for workers that never joined."""
        if self.tables.living() or self.tables.expected:
            return
        for client in self.tables.clients.values():
            asked = [m for m in client.held if isinstance(m, Ask) and m.about in ("stats", "clients")]
            client.held = client.held.without(asked)
            for message in asked:
                yield from self._told(client, message)

    def _settle_in(self) -> Iterable[Mail]:
        for client in self.tables.clients.values():
            if client.home is None:
                client.home = policy.home(self.tables, client)
                yield from self._resume(client)

    def tick(self, now: float) -> list[Mail]:
        """The messages that follow from the time alone."""
        return patience.tick(self.tables, now)

    def advance(self) -> list[Mail]:
        """Continue with the messages of the client that has waited longest since they were cut, within one slice."""
        self.rewriter.left = SLICE
        client = self.tables.clients.get(self.tables.cut.popleft())
        if client is None:
            return []
        client.cut = False
        return list(self._resume(client))

    def _tell_workers(self, lost: str = "") -> Iterable[Mail]:
        """Send each worker the addresses of its peers; a single worker needs none."""
        living = self.tables.living()
        if len(living) > 1 or lost:
            there = Peers(tuple(w.peer_for_workers() for w in living), lost)
            for worker in living:
                yield Mail(worker.peer, there)

    def _replan(self, client: Client) -> None:
        """Forget a client's plans after its signals were resolved to other workers."""
        client.targets.clear()
        client.plans.clear()
        client.replans += 1

    def lose(self, peer: str, why: str) -> list[Mail]:
        """A client or worker has disconnected: free the tensors it owned and answer the clients that wait for it."""
        if peer in self.tables.clients:
            return list(self._lose_client(self.tables.clients.pop(peer), why))
        worker = self.tables.by_peer.get(peer)
        return list(self._lose_worker(worker, why)) if worker else self.observers.lose(peer)

    def _lose_client(self, client: Client, why: str) -> Iterable[Mail]:
        self.reports.tell(f"client {client.label} left" + (f": {why}" if why != LEFT else ""))
        yield from self.observers.client_gone(client, why)
        self.questions.lose_client(client)
        self.tables.waiting.pop(client.name, None)
        policy.uncount_all(self.tables, client)
        number = next(self.drops) if self.tables.joined > 1 else 0  # a lone worker has no collectives to skip
        if number and (living := {w.index for w in self.tables.living()}):
            self.tables.leaving[number] = Leaving(living)
        for worker in self.tables.living():
            yield Mail(worker.peer, Drop(client.name, number))

    def _begun(self, worker: WorkerState, number: int, counts: Iterable[tuple[tuple[int, ...], int]]) -> Iterable[Mail]:
        """A worker's report of how many of a departed client's collectives it has begun."""
        leaving = self.tables.leaving.get(number)
        if leaving is None or worker.index not in leaving.waiting:
            return
        leaving.waiting.discard(worker.index)
        for group, begun in counts:
            leaving.counts[group] = max(begun, leaving.counts.get(group, 0))
        yield from self._decided(number, leaving)

    def _decided(self, number: int, leaving: Leaving) -> Iterable[Mail]:
        """Once all workers have reported their counts, tell them which of the client's collectives to skip."""
        if not leaving.waiting:
            del self.tables.leaving[number]
            for worker in self.tables.living():
                yield Mail(worker.peer, Skip(number, tuple(leaving.counts.items())))

    def _lose_worker(self, worker: WorkerState, why: str) -> Iterable[Mail]:
        gone = Lost(f"worker {worker.name} (index {worker.index}) was lost: {why}")
        frees = {name: list(self._mark_lost(client, worker.index, gone)) for name, client in self.tables.clients.items()}
        self.observers.tell_received()  # of batches that were sent to it
        self.tables.remove(worker)
        yield from self.observers.went(worker.name, worker.peer, why, worker.index)
        self.reports.tell(gone.why)
        yield from self._tell_workers(gone.why)
        for client in self.tables.clients.values():
            yield from frees[client.name]
            self._replan(client)
            client.told.clear()  # the remaining workers get the definitions again, which is harmless
            if client.home == worker.index:
                client.home = policy.home(self.tables, client)
            if client.user.may_use(worker.index, worker.name):
                yield Mail(client.name, Peers(self.tables.peers_of(client), gone.why))
            for serial, waiting in list(client.acks.items()):
                waiting.discard(worker.index)
                if not waiting:
                    del client.acks[serial]
                    yield Mail(client.name, Ack(serial))
            if any((loads.lost(client, worker.index), self.stream.lost(client, worker.index))):
                yield from self._resume(client)
        for number, leaving in list(self.tables.leaving.items()):
            leaving.waiting.discard(worker.index)
            yield from self._decided(number, leaving)
        yield from self.questions.lose_worker(worker)

    def _mark_lost(self, client: Client, index: int, gone: Lost) -> Iterable[Mail]:
        """Mark the tensors of a lost worker as lost; free the pieces of them on other workers."""
        frees: dict[int, list[Any]] = {}
        for id, entry in client.entries.items():
            if isinstance(entry, Entry) and index in entry.workers:
                policy.uncount(self.tables, client, id, entry)
                client.entries[id] = gone
                for other in entry.workers:
                    frees.setdefault(other, []).append(free(id))
        for other, code in frees.items():
            if other != index:
                yield Mail(self.tables.workers[other].peer, Run(client.name, 0, (), code))
