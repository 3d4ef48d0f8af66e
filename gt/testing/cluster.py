"""A whole GT in one thread, for tests: the real session, dispatcher and workers over the in-process transport."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from gt import environment
from gt.client.scope import HERE, Scope
from gt.client.session import Session
from gt.dispatcher.core import Dispatcher
from gt.dispatcher.users import Users
from gt.errors import ProtocolError
from gt.transport.auth import USER
from gt.transport.in_process import Hub, MemoryLink
from gt.transport.messages import VERSION, Attached, Bye, Drain, Hello, Join, Mail, Run, Start, Welcome
from gt.worker.core import Worker
from gt.worker.deferred_runs import DeferredRuns
from gt.worker.engine.choose import has_small_kernels, make
from gt.worker.peer_names import DISPATCHER, worker_peer
from gt.worker.programs.units import Units
from gt.worker.segments import Memory


class _SharedMemory(Memory):
    """The shared memory of a cluster's sessions."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def load(self, client: str, place: tuple[int, int, int], nbytes: int) -> tuple[Any, bool]:
        return self.cluster.links[client].segments[place[0]].data, True


class Cluster:
    """A dispatcher and some workers; `session()` adds a client. All of them read `clock`. `local`: clients answer small
    questions themselves if the engine's kernels are theirs, too."""

    def __init__(
        self, workers: int = 1, engine: str = "numpy", shares: bool = True, users: Users | None = None,
        clock: Callable[[], float] | None = None, local: bool = False,
    ) -> None:  # fmt: skip
        self.hub, self.dispatcher, self.shares, self.clock = Hub(), Dispatcher(users=users), shares, clock or time.time
        self.local = local
        self.roles: dict[str, str] = {}  # the roles of peers, as keys would prove them
        self.links: dict[str, MemoryLink] = {}
        self.sessions: list[Session] = []
        self.names = [f"w{i}" for i in range(workers)]
        self.workers: list[Worker] = []
        self.dispatcher.observers.clock, self.dispatcher.observers.prompt = self.clock, True
        self.hub.parties["dispatcher"] = self._to_dispatcher
        for name in self.names:
            self._add(name, engine)
        self.hub.deliver()

    def _add(self, name: str, engine: str) -> None:
        worker = Worker(make(engine), _SharedMemory(self))
        if (batch := environment.WORKER_BATCH_SIZE.value()) > 1:
            worker.units = Units(batch)
        worker.clock, worker.prompt = self.clock, True
        deferred = DeferredRuns(worker.spaces)
        worker.left = deferred.forget
        self.workers.append(worker)

        def party(mail: Mail) -> list[Mail]:
            sender = DISPATCHER if mail.peer == "dispatcher" else mail.peer
            if isinstance(mail.message, Bye):
                return []  # `drain` makes it leave
            if sender in self.names:
                sender = worker_peer(self.names.index(sender))
            if worker.streams is not None:
                worker.streams.current = ""  # PyTorch's current stream is the thread's: another worker has set its own
            runs, answers = [mail.message], list[Mail]()
            match mail.message:
                case Run() as run if sender == DISPATCHER:
                    runs, answers = deferred.arrived(run)
                case Start() as start:
                    try:
                        sender, (runs, answers) = DISPATCHER, deferred.start(mail.peer, start)
                    except ProtocolError as wrong:
                        worker.drop(str(wrong))
                        return []
            for message in runs:
                answers = answers + worker.handle(Mail(sender, message, mail.frames))
            return [Mail(self._name(m.peer), m.message, m.frames) for m in answers]

        self.hub.parties[name] = party
        small = self.local and has_small_kernels(worker.engine)
        join = Join(VERSION, "", name, worker.engine.name, worker.engine.device, "here", 0, f"ipc://{name}", small=small)
        self.hub.post(name, Mail("dispatcher", join))

    def _to_dispatcher(self, mail: Mail) -> list[Mail]:
        role = self.roles.get(mail.peer, "")
        answers = self.dispatcher.handle(replace(mail, role=role) if role else mail)
        if isinstance(mail.message, (Hello, Join)):
            answers += self._attached()
        while self.dispatcher.tables.cut:
            answers += self.dispatcher.advance()
        return answers

    def _attached(self) -> list[Mail]:
        """Workers say that clients have connected to them."""
        tables = self.dispatcher.tables
        new = [(w, c) for c in tables.clients.values() for w in tables.usable(c) if w.index not in c.attached]
        return [mail for w, c in new for mail in self.dispatcher.handle(Mail(w.peer, Attached(w.index, self.shares, c.name)))]

    def _name(self, peer: str) -> str:
        return self.names[int(peer[1:])] if peer.startswith("#") else peer or "dispatcher"

    def session(self, user: str = "", memory: int = 0) -> Session:
        """A client, of this user if the cluster has users with keys of their own."""
        name = f"c{len(self.sessions)}"
        self.roles[name] = f"{USER} {user}" if user else ""
        link = self.links[name] = MemoryLink(self.hub, name, "dispatcher", self.names, self.shares, self.clock)
        session = Session(link, name, tracing=environment.TRACE.value())
        self.sessions.append(session)

        def party(mail: Mail) -> list[Mail]:
            if isinstance(mail.message, Welcome):
                session.workers = mail.message.workers
            elif not isinstance(mail.message, Attached):
                session.handle(mail)
            return []

        self.hub.parties[name] = party
        self.hub.post(name, Mail("dispatcher", Hello(VERSION, "", "here", len(self.sessions), memory=memory)))
        self.hub.deliver()
        return session

    def settle(self) -> None:
        """Send and execute all instructions."""
        for session in self.sessions:
            session.flush()
        self.hub.deliver()

    def drain(self, worker: int) -> None:
        """Make a worker leave as on SIGTERM."""
        self.settle()
        for message in (Drain(), Bye("it was asked to end")):
            self.hub.post(self.names[worker], Mail("dispatcher", message))
            self.hub.deliver()

    def leave(self, client: str) -> None:
        """Make a client leave, as one whose process has ended."""
        for mail in self.dispatcher.lose(client, "it left"):
            self.hub.post("dispatcher", mail)
        self.hub.deliver()

    def check(self) -> None:
        """Assert the dispatcher's invariants, and that workers have exactly the tensors of the dispatcher's tables."""
        self.settle()
        tables = self.dispatcher.tables
        tables.check()
        for name, client in tables.clients.items():
            for i, worker in enumerate(self.workers):
                space = worker.spaces.get(name)
                held = set(space.table) if space else set()
                said = {id for id, entry in client.entries.items() if i in getattr(entry, "workers", ())}
                assert held == said, f"worker {i} has the unexpected tensors {held - said} and lacks {said - held}"
        for i, worker in enumerate(self.workers):
            assert worker.parked is None, f"worker {i} waits"


@contextmanager
def cluster(
    workers: int = 1, engine: str = "numpy", shares: bool = True, users: Users | None = None, user: str = "", memory: int = 0,
    clock: Callable[[], float] | None = None, local: bool = False,
) -> Iterator[Cluster]:  # fmt: skip
    """`with gt.testing.cluster(2):` every op of this thread runs in it; its invariants are checked at the end. With `users`,
    the thread's client belongs to `user`; `memory` is its quota."""
    made = Cluster(workers, engine, shares, users, clock, local)
    before = HERE.scope
    HERE.scope = Scope(made.session(user, memory))
    try:
        yield made
        made.check()
        for name in made.links:
            made.leave(name)
    finally:
        HERE.scope = before
        for session in made.sessions:
            session.close()
