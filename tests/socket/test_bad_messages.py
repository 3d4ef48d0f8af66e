"""Messages of a stranger or a member to real processes cost their sender alone: the server and its workers live, others
compute, and every read is answered."""

from __future__ import annotations

import contextlib
import math
import secrets
import socket
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import zmq
from processes import Process, Processes, until

import gt
from gt.client.default import session
from gt.errors import ProtocolError
from gt.spec import DTYPES, float32
from gt.testing.hostile import Hostile, record
from gt.transport import messages as m
from gt.transport.addresses import ipc_address
from gt.transport.auth import NO_KEYS, Keys, reach
from gt.transport.checks import MESSAGE

F = float32.code


class Member:
    """A client of its own making, which sends any message and reads at any time."""

    def __init__(self, address: str, keys: Keys = NO_KEYS, identity: str = "") -> None:
        self.name = identity or secrets.token_hex(12)
        self.socket: zmq.Socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.setsockopt(zmq.IDENTITY, self.name.encode())
        self.socket.setsockopt(zmq.RCVHWM, 10)
        reach(self.socket, address, keys)

    def send(self, message: Any) -> None:
        self.socket.send(m.encode(message) if not isinstance(message, bytes) else message)

    def hello(self) -> Member:
        self.send(m.Hello(m.VERSION, "", "here", 7))
        assert isinstance(self.hears(), m.Welcome)
        return self

    def hears(self, timeout: float = 20.0) -> Any:
        assert self.socket.poll(int(timeout * 1000)), "no answer"
        return m.decode(self.socket.recv_multipart()[0])

    def until(self, kind: type) -> Any:
        while not isinstance(found := self.hears(), kind):
            pass
        return found


class Attacker(Member):
    """One that keeps count of its reads and questions: each is to be answered, unless it is let go."""

    def __init__(self, address: str, keys: Keys = NO_KEYS) -> None:
        super().__init__(address, keys)
        self.owed: Counter[int] = Counter()  # answers, by ticket
        self.let_go = False
        self.send(m.Hello(m.VERSION, "", "here", 7))
        worker = self.until(m.Welcome).workers[0]
        self.data = Member(worker.remote if address.startswith("tcp") else worker.address, keys, self.name)
        self.data.send(m.Attach(self.name))
        self.data.until(m.Attached)

    def say(self, data: bytes) -> None:
        with contextlib.suppress(ProtocolError):  # nobody waits for an answer to bytes that are no message
            said = m.decode(data, MESSAGE)
            self.owed.update([said.ticket] if isinstance(said, m.Ask) else [])
            if isinstance(said, m.Batch) and said.deferred is None:  # others wait until they are started, which these are not
                self.owed.update(ticket for ticket, _, _ in said.gets)
            self.let_go = self.let_go or isinstance(said, m.Bye)
        self.send(data)
        self.take()

    def take(self) -> None:
        """The messages that came: answers, and requests for bytes, which are sent if they are few."""
        for at in (self, self.data):
            while at.socket.poll(0):
                match at.hears():
                    case m.Failed(ticket) | m.Answer(ticket):
                        self.owed -= Counter([ticket])
                    case m.Value(ticket=ticket, pieces=1):
                        self.owed -= Counter([ticket])
                    case m.SmallValues(values):
                        self.owed -= Counter([value.ticket for value in values])
                    case m.Bye():
                        self.let_go = True
                    case m.Upload(_, id, spec, _, boxes):
                        data = bytes(min(math.prod(boxes[0][1]) * DTYPES[spec[0]].size, 1 << 16))
                        self.data.socket.send_multipart([m.encode(m.Upload(self.name, id, (spec[0], *boxes[0][1]))), data])

    def answered(self) -> bool:
        self.take()
        return self.let_go or not self.owed

    def close(self) -> None:
        self.data.socket.close(0)
        self.socket.close(0)


@contextlib.contextmanager
def member(address: str | int, keys: Keys = NO_KEYS, identity: str = "") -> Iterator[Member]:
    made = Member(address if isinstance(address, str) else ipc_address(str(address)), keys, identity)
    try:
        yield made
    finally:
        made.socket.close(0)


@pytest.fixture
def pool(processes: Processes, disconnected: None) -> tuple[int, list[Process]]:
    """A server with two workers of PyTorch, and this process connected to it."""
    server, port = processes.server("--insecure")
    workers = [processes.worker(port, "--id", f"w{i}", backend="pytorch", GT_COLLECTIVES="mail") for i in range(2)]
    gt.connect(f"localhost:{port}")
    return port, [server, *workers]


def unharmed(running: list[Process]) -> None:
    """All live, and this process computes on one worker and on both."""
    gt.register_config("halves", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
    with gt.signal.context("halves"):
        x = gt.ones(4, 3)
        assert (x @ x.T).sum().item() == 48.0
    assert (gt.ones(3) + 1).tolist() == [2, 2, 2]
    assert [p.popen.poll() for p in running] == [None] * len(running)


def zmtp_1(address: Any, family: int) -> None:
    """The seven bytes of a peer that speaks ZMTP 1.0, which has no metadata."""
    with socket.socket(family) as s:
        s.connect(address)
        s.sendall(b"\x01\0\x04\0abc")
        time.sleep(0.3)


def test_strangers_and_members_with_odd_messages_harm_nobody(pool: tuple[int, list[Process]]) -> None:
    """One test for all of these, since starting the processes takes most of the time."""
    port, running = pool
    unharmed(running)
    zmtp_1(("127.0.0.1", port), socket.AF_INET)
    zmtp_1(ipc_address(str(port)).removeprefix("ipc://"), socket.AF_UNIX)
    unharmed(running)
    with member(port) as bad:
        bad.hello()
        bad.send(m.Ask(1, "placement", [[1]]))
        assert bad.until(m.Answer).ticket == 1
        nested: Any = []
        for _ in range(700):
            nested = [nested]
        wide, one = (F, 2000, 2000), (F, 1)
        kinds = (
            m.KindDef(1, "full", ((-3,),), ((1,), F)),
            m.KindDef(2, "sum", (one,), (nested, False)),
            m.KindDef(3, "no such op", (one,), ()),
            m.KindDef(4, "adam", (*[wide] * 4, *[(-3,)] * 5, (-2,)), (False, False)),
        )
        adam = (4, 10, 11, 12, 1, 1, 1, 1, 0.1, 0.9, 0.999, 1e-8, 0.0, 1)
        reads = tuple((id, id, wire) for id, wire in ((5, one), (6, one), (10, wide)))
        bad.send(m.Batch(1, kinds, [(1, 1, 1.0), (2, 5, 1), (3, 6, 1), adam], reads, True))
        assert {bad.until(m.Failed).ticket for _ in reads} == {5, 6, 10}
        halves = {"s": {"mesh": None, "axes": [0], "workers": None}}
        bad.send(m.Configure(halves))
        kinds = (m.KindDef(20, "full", ((-3,),), ((4, 4), F), "s"), m.KindDef(21, "matmul", ((F, 6, 6), (F, 6, 6)), ()))
        bad.send(m.Batch(2, kinds, [(20, 30, 1.0), *[(21, 31 + i, 30, 30) for i in range(100)]], ((31, 31, (F, 6, 6)),)))
        assert bad.until(m.Failed).ticket == 31
        unharmed(running)
    with member(port) as bad:
        bad.hello()
        bad.send(b"\xc1 no message")
        assert "invalid message" in bad.until(m.Bye).why
    unharmed(running)


def test_a_worker_that_offers_nonsense_to_groups_ends_no_other(pool: tuple[int, list[Process]]) -> None:
    port, running = pool
    with member(port) as bad:
        bad.send(m.Join(m.VERSION, "", "odd", "numpy", "cpu", "here", 1, "ipc://nowhere"))
        bad.send(m.Store(m.Reached("x")))
        if isinstance(bad.hears(), m.Welcome):
            until(lambda: "invalid addresses of a worker: store" in running[0].err, what="a refusal")
    until(lambda: "odd" not in gt.debug.get_worker_stats(), what="the end of that worker")
    unharmed(running)


def test_a_client_that_takes_no_answers_is_let_go_and_the_server_stays_small(processes: Processes, disconnected: None) -> None:
    server, port = processes.server()
    processes.worker(port, "--id", "w")
    before = psutil.Process(server.pid).memory_info().rss
    with member(port) as bad:
        bad.hello()
        reads = tuple((i, 1, (F, 2)) for i in range(4000))
        for serial in range(1, 60):  # 236,000 answers
            bad.send(m.Batch(serial, (), [], reads))
        until(lambda: "does not take its answers" in server.err, what="the end of that client")
        gt.connect(f"localhost:{port}")
        assert (gt.ones(3) + 1).tolist() == [2, 2, 2]
        assert psutil.Process(server.pid).memory_info().rss < before + (150 << 20)


def test_a_client_that_queues_work_without_end_is_let_go_and_its_work_with_it(processes: Processes, disconnected: None) -> None:
    """Nobody has to keep it, and others wait for no more of it than a worker may have ahead."""
    server, port = processes.server()
    worker = processes.worker(port, "--id", "w")
    before = [psutil.Process(p.pid).memory_info().rss for p in (server, worker)]
    wide = (F, 512, 512)
    with member(port) as bad:
        bad.hello()
        kinds = (m.KindDef(1, "full", ((-3,),), ((512, 512), F)), m.KindDef(2, "matmul", (wide, wide), ()))
        bad.send(m.Batch(1, kinds, [(1, 1, 1.0)]))
        many = m.encode(m.Batch(2, (), [(2, 2, 1, 1)] * 10_000))
        for _ in range(120):
            bad.send(many)
        assert "instructions wait" in bad.until(m.Bye).why
        gt.connect(f"localhost:{port}")
        assert (gt.ones(3) + 1).tolist() == [2, 2, 2]
        after = [psutil.Process(p.pid).memory_info().rss for p in (server, worker)]
        assert max(b - a for a, b in zip(before, after)) < 400 << 20


READS = {"a million bytes each": (300, (512, 512)), "few bytes each": (4097, (1,))}


@pytest.mark.parametrize("reads, shape", READS.values(), ids=READS)
def test_a_client_that_never_comes_for_its_answers_is_let_go_by_the_worker(
    processes: Processes, disconnected: None, reads: int, shape: tuple[int, ...]
) -> None:
    _, port = processes.server()
    processes.worker(port, "--id", "w")
    with member(port) as bad:
        bad.hello()
        bad.send(m.Batch(1, (m.KindDef(1, "full", ((-3,),), (shape, F)),), [(1, 1, 1.0)]))
        for i in range(0, reads, 1000):  # it is not connected to the worker, which has them all to keep
            bad.send(m.Batch(2 + i, (), [], tuple((t, 1, (F, *shape)) for t in range(i, min(i + 1000, reads)))))
        assert "refused by worker w: it does not take its answers" in bad.until(m.Bye).why
        gt.connect(f"localhost:{port}")
        assert (gt.ones(3) + 1).tolist() == [2, 2, 2]
        assert gt.debug.get_worker_stats()["w"]["clients"] == 1


def test_a_client_that_connects_to_a_worker_and_takes_nothing_is_let_go(processes: Processes, disconnected: None) -> None:
    _, port = processes.server()
    processes.worker(port, "--id", "w")
    with member(port) as bad:
        bad.send(m.Hello(m.VERSION, "", "here", 7))
        welcome = bad.until(m.Welcome)
        with member(welcome.workers[0].address, identity=bad.name) as beside:
            beside.send(m.Attach(bad.name))
            assert isinstance(beside.hears(), m.Attached)
            bad.send(m.Batch(1, (m.KindDef(1, "full", ((-3,),), ((1024,), F)),), [(1, 1, 1.0)]))
            for i in range(20):
                bad.send(m.Batch(2 + i, (), [], tuple((1000 * i + t, 1, (F, 1024)) for t in range(1000))))
            assert "does not take its answers" in bad.until(m.Bye).why
        gt.connect(f"localhost:{port}")
        assert (gt.ones(3) + 1).tolist() == [2, 2, 2]


KEY = "a key that both of them know"


@pytest.mark.parametrize("key", [pytest.param("", marks=pytest.mark.slow), KEY], ids=["without a key", "with a key"])
def test_hostile_messages_over_every_kind_of_socket_harm_nobody_and_are_answered(
    processes: Processes, disconnected: None, key: str
) -> None:
    """10,000 messages to each server, half of them over a Unix socket and half over TCP."""
    secret = {"GT_KEY": key} if key else {}
    server, port = processes.server(*(() if key else ("--insecure",)), **secret)
    worker = processes.worker(port, "--id", "w", "--host", "tcp://127.0.0.1", **secret)  # so that it listens by TCP, too
    gt.connect(f"localhost:{port}", key=key)
    before = psutil.Process(server.pid).memory_info().rss
    sessions, asked = record(2), 0
    for address in (ipc_address(str(port)), f"tcp://127.0.0.1:{port}"):
        hostile, count = Hostile(len(address), sessions), 0
        while count < 5_000:
            bad = Attacker(address, Keys(key))
            for _ in range(50):
                bad.say(hostile.bytes(hostile.message()))
            until(bad.answered, what=f"answers to {bad.owed}")
            asked += not bad.let_go
            bad.close()
            count += 50
            assert (gt.full((3,), float(count)) + 1).tolist() == [count + 1] * 3
    assert asked > 20  # of 200 that were not let go, all whose reads were answered
    assert [server.popen.poll(), worker.popen.poll()] == [None, None]
    assert set(session().ask("stats")["workers"]) == {"w"}
    until(lambda: session().ask("stats")["dispatcher"]["clients"] == 1, what="the end of all that were bad")
    assert psutil.Process(server.pid).memory_info().rss < before + (100 << 20)
