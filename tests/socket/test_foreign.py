"""Malformed, truncated, oversized and foreign messages to every socket: dropped and counted, nobody else affected."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

import msgspec
import pytest
import zmq
from processes import Processes, until

import gt
from gt.client.default import session
from gt.transport import messages as m
from gt.transport.addresses import ipc_address
from gt.transport.auth import Keys, reach
from gt.transport.checks import MESSAGE
from gt.worker.client_socket import MAX_FIRST_MESSAGE

KEY = "unknown to strangers"
GOOD = [
    m.Hello(m.VERSION, "", "here", 7),
    m.Batch(1, (m.KindDef(1, "full", ((-3,),), ((2, 2), 8)),), [(1, 1, 0.5)], ((1, 1, (8, 2, 2)),)),
    m.Join(m.VERSION, "", "w", "numpy", "cpu", "here", 8, "nowhere"),
    m.Run("c", 1, (), [(1, 1, 0.5)]),
    m.Attach("c", b"token"),
    m.Upload("c", 2, (8, 2, 2), (0,)),
    m.Release(3),
    m.Ask(1, "stats"),
    m.Value(9, (8, 2, 2), (0, 0), (2, 2), 1),
    m.SmallValues((m.Value(9, (8,), (), (), 1, None, b"\0\0\0\0"),)),
    m.Bye("x"),
    m.Done("c", 1),
    m.Drop("c"),
    m.Begun(1, (((0, 1), 2),)),
    m.Skip(1, (((0, 1), 2),)),
    m.Refuse("c", "why"),
    m.Progress("c", 1),
]


def foreign(seed: int, n: int) -> Iterator[list[bytes]]:
    """Frames nobody meant: noise, cut and changed messages, messages of the wrong kind, odd numbers of frames."""
    r = random.Random(seed)
    for _ in range(n):
        good = m.encode(r.choice(GOOD))
        cut = good[: r.randrange(len(good))]
        changed = bytearray(good)
        changed[r.randrange(len(good))] = r.randrange(256)
        nested = b"\x91" * r.randrange(1, 3000)
        other = msgspec.msgpack.encode({"not": ["ours", r.random(), None]})
        frame = r.choice([r.randbytes(r.randrange(60)), cut, bytes(changed), good, b"", nested, other])
        yield [frame, *[r.randbytes(9) for _ in range(r.choice([0, 0, 0, 1, 3]))]]


@pytest.fixture
def pool(processes: Processes, disconnected: None) -> int:
    """A server, a worker, and this process connected with a tensor of its own."""
    _, port = processes.server(GT_KEY=KEY)
    processes.worker(port, "--id", "w", "--host", "tcp://127.0.0.1", GT_KEY=KEY)
    gt.connect(f"localhost:{port}", key=KEY)
    return port


def dropped() -> int:
    stats = session().ask("stats")
    return stats["dispatcher"]["dropped"] + sum(w["dropped"] for w in stats["workers"].values())


def still_well(x: gt.Tensor) -> None:
    assert (x + 1).tolist() == [2, 2, 2]
    assert list(gt.debug.get_worker_stats()) == ["w"]


def dealer(address: str, identity: bytes | None = None) -> zmq.Socket:
    made = zmq.Context.instance().socket(zmq.DEALER)
    made.linger = 0
    if identity is not None:
        made.setsockopt(zmq.IDENTITY, identity)
    reach(made, address, Keys(KEY))  # past the guard of TCP, as a stranger would not even come
    return made


def worker_addresses() -> list[str]:
    [worker] = session().workers
    return [worker.address, worker.remote]


@pytest.mark.parametrize("where", ["the dispatcher", "the dispatcher by TCP", "a worker", "a worker by TCP"])
def test_foreign_messages_are_dropped_and_counted(pool: int, where: str) -> None:
    x = gt.ones(3)
    x.numpy()
    address = {
        "the dispatcher": ipc_address(str(pool)),
        "the dispatcher by TCP": f"tcp://127.0.0.1:{pool}",
        "a worker": worker_addresses()[0],
        "a worker by TCP": worker_addresses()[1],
    }[where]
    before = dropped()
    for seed in range(5):
        with dealer(address) as s:
            for frames in foreign(seed, 200):
                s.send_multipart(frames)
            s.send(b"the last one")
            until(lambda: dropped() > before, 10, "something was counted")
            still_well(x)
    assert dropped() - before > 100
    still_well(x)


def test_a_member_that_turns_bad_hurts_only_itself(pool: int) -> None:
    x = gt.ones(3)
    x.numpy()
    before = dropped()
    with dealer(ipc_address(str(pool)), b"turncoat") as s:
        s.send(m.encode(m.Hello(m.VERSION, "", "here", 7)))
        assert s.poll(5000) and isinstance(m.decode(s.recv()), m.Welcome)
        for frames in foreign(99, 400):
            s.send_multipart(frames)
        s.send(b"the last one")
        until(lambda: dropped() > before, 10, "something was counted")
        still_well(x)


def test_who_claims_another_s_name_gets_nothing_of_its(pool: int) -> None:
    x = gt.ones(3)
    x.numpy()
    mine = session().name.encode()
    with dealer(ipc_address(str(pool)), mine) as s, dealer(worker_addresses()[0], mine) as data:
        s.send(m.encode(m.Batch(1, (), [], ((1, x.handle.id, (8, 3)),))))
        data.send(m.encode(m.Attach(mine.decode())))
        still_well(x)
        assert not s.poll(200) and not data.poll(200)


def test_an_oversized_message_is_dropped(pool: int) -> None:
    x = gt.ones(3)
    x.numpy()
    before = dropped()
    with dealer(ipc_address(str(pool))) as s:
        s.send(bytes(MESSAGE + 1))
        until(lambda: dropped() == before + 1, 20, "it was counted")
    with dealer(ipc_address(str(pool))) as s:
        s.send(bytes(m.LIMIT + 1))  # its connection is cut before the whole of it is there
        still_well(x)


def test_a_worker_does_not_read_a_long_message_of_who_has_not_attached(pool: int) -> None:
    with dealer(worker_addresses()[0], b"long") as s:
        before = dropped()
        s.send(m.encode(m.Attach("long", bytes(MAX_FIRST_MESSAGE))))
        until(lambda: dropped() == before + 1, 10, "it was counted")
        assert not s.poll(200)
        s.send(m.encode(m.Attach("long")))
        assert s.poll(5000) and isinstance(m.decode(s.recv()), m.Attached)


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, bytes(10_000), b"\xff" + bytes(8) + b"\x7f\x03"])
def test_bytes_that_are_not_of_zmq_hurt_nobody(pool: int, noise: bytes) -> None:
    x = gt.ones(3)
    x.numpy()
    ports = [pool, int(worker_addresses()[1].rpartition(":")[2])]
    for port in ports:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port), 5) as s, contextlib.suppress(OSError):
                s.sendall(noise)
    still_well(x)


def test_a_false_release_does_not_free_memory_that_another_reads(pool: int) -> None:
    import numpy as np

    kept = gt.full((5 << 20,), 7.0).numpy()  # lent as it lies
    with dealer(worker_addresses()[0], b"thief") as s:
        s.send(m.encode(m.Attach("thief")))
        assert s.poll(5000)
        before = dropped()
        for fd in range(64):
            s.send(m.encode(m.Release(fd)))
        until(lambda: dropped() == before + 64, 10, "all were counted")
    gt.full((5 << 20,), 1.0).numpy()
    np.testing.assert_array_equal(kept, 7.0)
