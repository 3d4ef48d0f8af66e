"""Workers of an in-process cluster as their shells serve them, each by a queue and a clock of its own: mail comes in any order
between them, and turns end at any instruction. The same seed gives the same schedule."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from gt.testing.cluster import Cluster
from gt.testing.fuzz_random import FuzzRandom
from gt.transport.in_process import Hub
from gt.transport.messages import Ask, Drop, Mail, Run
from gt.worker.client_turns import ClientTurns
from gt.worker.peer_names import DISPATCHER, worker_peer


class ScheduledWorker:
    """A worker whose mail waits here until the schedule lets it in."""

    def __init__(self, made: Cluster, index: int, random: FuzzRandom) -> None:
        self.made, self.name, self.random = made, made.names[index], random
        self.core, self.now = made.workers[index], 0.0
        self.core.executor.light = 1  # a turn may end between any two instructions
        self.control: deque[Any] = deque()
        self.data: deque[Mail] = deque()
        self.turns = ClientTurns(self.core, self.clock, self.take_in, lambda: bool(self.data), self.send)
        self.core.left = self.turns.queue.forget
        made.hub.parties[self.name] = self.receive

    def clock(self) -> float:
        self.now += self.random.random() * 0.004  # a turn may end with each look at it
        return self.now

    def receive(self, mail: Mail) -> list[Mail]:
        if mail.peer == "dispatcher":
            self.control.append(mail.message)
        else:
            names = self.made.names
            sender = worker_peer(names.index(mail.peer)) if mail.peer in names else mail.peer
            self.data.append(Mail(sender, mail.message, mail.frames))
        return []

    def send(self, mails: list[Mail]) -> None:
        for mail in mails:
            to = self.made.names[int(mail.peer[1:])] if mail.peer.startswith("#") else mail.peer or "dispatcher"
            self.made.hub.post(self.name, Mail(to, mail.message, mail.frames))

    def take_in(self) -> bool:
        """Deliver some messages of the dispatcher."""
        for _ in range(self.random.randrange(3)):
            self._take()
        return True

    def _take(self) -> None:
        if not self.control:
            return
        message = self.control.popleft()
        match message:
            case Run(client) | Drop(client) | Ask(_, _, (client, _)):
                self.turns.put(client, message)
                if type(message) is Drop:
                    self.send(self.core.leaving(message))
            case _:
                self.send(self.core.handle(Mail(DISPATCHER, message)))

    def _hear(self) -> None:
        self.send(self.core.handle(self.data.popleft()))

    def step(self) -> bool:
        """One thing that this worker can do, at random; whether there was any."""
        client = self.turns.next()
        can: list[Callable[[], Any]] = []
        if self.control:
            can.append(self._take)
        if self.data:
            can.append(self._hear)
        if client is not None:
            can.append(partial(self.turns.serve, client))
        if not can:
            return False
        self.random.choice(can)()
        return True


class Schedule:
    """The workers of a cluster, which go on in an order drawn at random. From here on the hub delivers by it."""

    def __init__(self, made: Cluster, random: FuzzRandom) -> None:
        self.made, self.random = made, random
        self.workers = [ScheduledWorker(made, index, random) for index in range(len(made.workers))]
        made.hub.deliver = self.deliver  # type: ignore[method-assign]

    def deliver(self) -> None:
        """Run until all parties are idle."""
        while self.step():
            pass

    def some(self, most: int) -> None:
        """Go on for a while, so that work of some clients is under way when others say something."""
        for _ in range(self.random.randrange(most)):
            self.step()

    def step(self) -> bool:
        """Whether anybody had anything to do."""
        hub = self.made.hub
        Hub.deliver(hub)
        for worker in self.random.in_any_order(self.workers):
            if worker.step():
                return True
        return bool(hub.queue)
