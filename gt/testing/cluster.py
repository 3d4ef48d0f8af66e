"""A whole GT in one thread, for tests: the real session, dispatcher and workers over the in-process transport."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gt import environment
from gt.client.scope import HERE, Scope
from gt.client.session import Session
from gt.dispatcher.core import Dispatcher
from gt.transport.in_process import Hub, MemoryLink
from gt.transport.messages import VERSION, Attached, Hello, Join, Mail, Welcome
from gt.worker.collectives.mail import worker_peer
from gt.worker.core import DISPATCHER, Memory, Worker
from gt.worker.engine import make
from gt.worker.programs.units import Units


class _Shared(Memory):
    """What the sessions of a cluster placed."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def load(self, client: str, place: tuple[int, int, int], nbytes: int) -> tuple[Any, bool]:
        return self.cluster.links[client].segments[place[0]].data, True


class Cluster:
    """A dispatcher and some workers; `session()` adds a client."""

    def __init__(self, workers: int = 1, engine: str = "numpy", shares: bool = True) -> None:
        self.hub, self.dispatcher, self.shares = Hub(), Dispatcher(), shares
        self.links: dict[str, MemoryLink] = {}
        self.sessions: list[Session] = []
        self.names = [f"w{i}" for i in range(workers)]
        self.workers: list[Worker] = []
        self.hub.parties["dispatcher"] = self.dispatcher.handle
        for name in self.names:
            self._add(name, engine)
        self.hub.deliver()

    def _add(self, name: str, engine: str) -> None:
        worker = Worker(make(engine), _Shared(self))
        if (batch := environment.WORKER_BATCH_SIZE.value()) > 1:
            worker.units = Units(batch)
        worker.clock = time.time
        self.workers.append(worker)

        def party(mail: Mail) -> list[Mail]:
            sender = DISPATCHER if mail.peer == "dispatcher" else mail.peer
            if sender in self.names:
                sender = worker_peer(self.names.index(sender))
            answers = worker.handle(Mail(sender, mail.message, mail.frames))
            return [Mail(self._name(m.peer), m.message, m.frames) for m in answers]

        self.hub.parties[name] = party
        join = Join(VERSION, "", name, worker.engine.name, worker.engine.device, "here", 0, f"ipc://{name}")
        self.hub.post(name, Mail("dispatcher", join))

    def _name(self, peer: str) -> str:
        return self.names[int(peer[1:])] if peer.startswith("#") else peer or "dispatcher"

    def session(self) -> Session:
        name = f"c{len(self.sessions)}"
        link = self.links[name] = MemoryLink(self.hub, name, "dispatcher", self.names, self.shares)
        session = Session(link, name, tracing=environment.TRACE.value())
        self.sessions.append(session)

        def party(mail: Mail) -> list[Mail]:
            if not isinstance(mail.message, (Welcome, Attached)):
                session.handle(mail)
            return []

        self.hub.parties[name] = party
        self.hub.post(name, Mail("dispatcher", Hello(VERSION, "", "here", len(self.sessions))))
        self.hub.deliver()
        return session

    def settle(self) -> None:
        """Send and execute all there is."""
        for session in self.sessions:
            session.flush()
        self.hub.deliver()

    def check(self) -> None:
        """The dispatcher's invariants hold, and workers hold just what it says they hold."""
        self.settle()
        tables = self.dispatcher.tables
        tables.check()
        for name, client in tables.clients.items():
            for i, worker in enumerate(self.workers):
                space = worker.spaces.get(name)
                held = set(space.table) if space else set()
                said = {id for id, entry in client.entries.items() if i in getattr(entry, "workers", ())}
                assert held == said, f"worker {i} holds {held - said} too many and lacks {said - held}"
        for i, worker in enumerate(self.workers):
            assert worker.parked is None, f"worker {i} waits"


@contextmanager
def cluster(workers: int = 1, engine: str = "numpy", shares: bool = True) -> Iterator[Cluster]:
    """`with gt.testing.cluster(2):` every op of this thread runs in it; its invariants are checked at the end."""
    made = Cluster(workers, engine, shares)
    before = HERE.scope
    HERE.scope = Scope(made.session())
    try:
        yield made
        made.check()
    finally:
        HERE.scope = before
        for session in made.sessions:
            session.close()
