"""A client of an in-process cluster that sends hostile messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.errors import ProtocolError
from gt.spec import DTYPES, Spec
from gt.testing.cluster import Cluster
from gt.testing.hostile import Hostile
from gt.transport import messages as m
from gt.transport.checks import MESSAGE
from gt.worker.deferred_runs import MOST


class HostileClient:
    """It tracks which of its reads were answered. `go_on` is called after each of its messages, to deliver them."""

    def __init__(self, pool: Cluster, hostile: Hostile, name: str, go_on: Callable[[], None]) -> None:
        self.pool, self.hostile, self.name, self.go_on = pool, hostile, name, go_on
        self.asked: set[int] = set()
        self.pieces: dict[int, int] = {}
        self.started, self.starts = -1, 0  # the serial of the last deferred batch that was started, and the number of Starts
        self.let_go = False
        pool.hub.parties[name] = self.receive
        pool.hub.post(name, m.Mail("dispatcher", m.Hello(m.VERSION, "", "here", 1)))
        pool.hub.deliver()

    def receive(self, mail: m.Mail) -> list[m.Mail]:
        match mail.message:
            case m.Failed(ticket) | m.Answer(ticket):
                self.asked.discard(ticket)
            case m.Value(ticket=ticket, pieces=pieces):
                self.pieces[ticket] = self.pieces.get(ticket, 0) + 1
                if self.pieces[ticket] >= pieces:
                    self.asked.discard(ticket)
            case m.Bye():
                self.let_go = True
            case m.Upload(_, id, spec, workers, boxes):
                return [self.upload(id, spec, w, shape) for w, (_, shape) in zip(workers, boxes)]
        return []

    def upload(self, id: int, spec: tuple, worker: int, shape: tuple) -> m.Mail:
        """The requested bytes, or others."""
        dtype = DTYPES[spec[0]]
        r = self.hostile.random.random()
        if r < 0.1:
            shape = (2, *shape)
        data = bytes(min(Spec(shape, dtype).nbytes, 1 << 16))
        return m.Mail(self.pool.names[worker], m.Upload(self.name, id, (spec[0], *shape)), (data,))

    def say(self, message: Any) -> None:
        pool, data = self.pool, self.hostile.bytes(message)
        try:
            said = m.decode(data, MESSAGE)
        except ProtocolError as wrong:
            for mail in pool.dispatcher.unreadable(self.name, wrong):
                pool.hub.post("dispatcher", mail)
            pool.hub.deliver()
            return
        random = self.hostile.random
        to = "dispatcher" if random.random() < 0.97 else random.choice(pool.names)
        if isinstance(said, m.Bye):
            self.let_go = True
        elif to == "dispatcher":  # workers answer no questions of clients
            self.asked.update(_tickets(said))
        pool.hub.post_encoded(self.name, to, data, (b"",) * (type(said) is m.Upload))
        if isinstance(said, m.Batch) and said.deferred is not None and to == "dispatcher":
            self.start(said)
        self.go_on()

    def start(self, batch: m.Batch) -> None:
        """Start a deferred batch, before or after its worker has it. Reads of one that cannot be started are not answered."""
        random = self.hostile.random
        if batch.serial <= self.started or self.starts >= MOST // 2:
            self.asked.difference_update(_tickets(batch))
            return
        self.started, self.starts = batch.serial, self.starts + 1
        if random.random() < 0.5:
            self.pool.hub.deliver()
        count = random.choice((0, 1, max(0, min(3, batch.deferred or 0))))
        places = tuple((random.randrange(-2, 3), self.hostile.whole(), random.randrange(-9, 99)) for _ in range(count))
        try:
            data = m.encode(m.Start(batch.serial, places))
        except OverflowError:
            data = m.encode(m.Start(batch.serial))
        self.pool.hub.post_encoded(self.name, self.pool.names[0], data)

    def check(self) -> None:
        """Assert that every read was answered, except reads that wait for bytes that this client never sent."""
        client = self.pool.dispatcher.tables.clients.get(self.name)
        if client is not None and not self.let_go and client.loading is None:
            assert not self.asked, f"reads {sorted(self.asked)[:5]} were not answered"


def _tickets(said: Any) -> list[int]:
    """The reads and the question of a message."""
    if isinstance(said, m.Batch):
        return [ticket for ticket, _, _ in said.gets]
    return [said.ticket] if isinstance(said, m.Ask) else []
