"""Workers that serve clients in turns, each by a queue and a clock of its own, with mail that comes in any order between them:
whatever happens in between, collectives of several clients begin in one order everywhere, and no worker waits for ever."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest

import gt
from gt.client.scope import HERE, Scope
from gt.testing import Cluster, cluster
from gt.transport.in_process import Hub
from gt.transport.messages import Ask, Drop, Mail, Run
from gt.worker import executor
from gt.worker.client_turns import ClientTurns
from gt.worker.collectives.mail import worker_peer
from gt.worker.peer_names import DISPATCHER

WORKERS, DISTRIBUTED, SINGLE = 3, 2, 2


@pytest.fixture(autouse=True)
def turns_end_between_any_two_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "LIGHT", 1)


class Site:
    """A worker as its shell serves it, without sockets: mail waits here until the schedule lets it in."""

    def __init__(self, made: Cluster, index: int, random: Random) -> None:
        self.made, self.name, self.random = made, made.names[index], random
        self.core, self.now = made.workers[index], 0.0
        self.control: deque[Any] = deque()
        self.data: deque[Mail] = deque()
        self.turns = ClientTurns(self.core, self.clock, self.take_in, lambda: bool(self.data), self.send)
        made.hub.parties[self.name] = self.receive

    def clock(self) -> float:
        self.now += self.random.random() * 0.004  # a turn may end with each look at it
        return self.now

    def receive(self, mail: Mail) -> list[Mail]:
        if mail.peer == "dispatcher":
            self.control.append(mail.message)
        else:
            self.data.append(Mail(worker_peer(self.made.names.index(mail.peer)), mail.message, mail.frames))
        return []

    def send(self, mails: list[Mail]) -> None:
        for mail in mails:
            to = self.made.names[int(mail.peer[1:])] if mail.peer.startswith("#") else mail.peer or "dispatcher"
            self.made.hub.post(self.name, Mail(to, mail.message, mail.frames))

    def take_in(self) -> bool:
        """Some of what the dispatcher has sent."""
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

    def step(self) -> bool:
        """One thing that this worker can do, at random; whether there was any."""
        client = self.turns.next()
        can = ["take"] * bool(self.control) + ["hear"] * bool(self.data) + ["serve"] * (client is not None)
        match self.random.choice(can) if can else "":
            case "take":
                self._take()
            case "hear":
                self.send(self.core.handle(self.data.popleft()))
            case "serve":
                assert client is not None
                self.turns.serve(client)
        return bool(can)


@contextmanager
def in_turns(seed: int) -> Iterator[tuple[Cluster, list[Site]]]:
    """A cluster whose workers go on in an order drawn at random."""
    with cluster(WORKERS) as made:
        random = Random(seed)
        sites = [Site(made, index, random) for index in range(WORKERS)]

        def deliver() -> None:
            busy = True
            while busy:
                Hub.deliver(made.hub)
                busy = any(site.step() for site in random.sample(sites, WORKERS)) or bool(made.hub.queue)

        made.hub.deliver = deliver  # type: ignore[method-assign]
        yield made, sites


def rounds(seed: int, count: int) -> tuple[Cluster, list[Site]]:
    """Distributed clients beside others, each with a few tensors that it computes with; every value is looked at."""
    with in_turns(seed) as (made, sites):
        random = Random(seed + 1)
        scopes = [Scope(s) for s in (made.sessions[0], *(made.session() for _ in range(DISTRIBUTED + SINGLE - 1)))]
        for n in range(count):
            kept = []
            for place in random.sample(range(len(scopes)), len(scopes)):
                HERE.scope = scopes[place]
                value = float(random.randrange(50))
                if place < DISTRIBUTED:
                    gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
                    with gt.signal("rows"):
                        x = gt.ones(6, 4) * value
                    made_here = (x.sum() + (x @ gt.ones(4, 1)).sum() + x.mean(0).sum(), value * (24 + 24 + 4))
                else:
                    x = gt.ones(4, 4) * value
                    for _ in range(random.randrange(5)):
                        x = (x @ x) * 0.0 + value
                    made_here = (x.sum(), value * 16)
                kept.append((place, *made_here))
                if random.random() < 0.5:
                    scopes[place].session.flush(wait=False)
            for place, found, want in random.sample(kept, len(kept)):
                HERE.scope = scopes[place]
                assert found.item() == want, f"round {n}"
            del kept, x, found, made_here
        HERE.scope = scopes[0]
        return made, sites


@pytest.mark.parametrize("seed", range(2))
def test_collectives_of_several_clients_never_stall(seed: int) -> None:
    _, sites = rounds(seed, 12)
    assert all(site.turns.queue.preemptions for site in sites), "runs were left for others"
    assert all(site.core.executor.collectives_begun for site in sites) and not any(s.core.parked for s in sites)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_a_thousand_rounds_never_stall(seed: int) -> None:
    rounds(seed, 50)
