"""Connections that say nothing, by the thousand: they are bounded, and whoever has something to say is heard."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq
from processes import Processes, free_port, until

import gt
from gt.transport.addresses import close_connections, copy_of, from_another_host, ipc_address, local_address
from gt.transport.auth import listen
from gt.transport.connection_limits import ConnectionLimits, address_of_peer
from gt.transport.sockets import PART, parts, whole

KEY = "a key of this file's tests"
IDLE = """
import socket, sys, time
def connect(s, address):
    end = time.monotonic() + 5
    while True:
        try: return s.connect(address)
        except BlockingIOError:  # more wait at a Unix listener than its queue has room for
            if time.monotonic() > end: raise
            time.sleep(0.001)
path, port, n, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
made = []
for i in range(n):
    if i and i % batch == 0:
        print(i, flush=True)
        input()
    s = socket.socket(socket.AF_INET if port else socket.AF_UNIX)
    try:
        s.settimeout(5)
        connect(s, ("127.0.0.1", port) if port else path)
    except OSError:
        break
    made.append(s)
print("there", flush=True)
input()
"""


def low(soft: int, hard: int) -> tuple[str, ...]:
    """The prefix of a command that runs with so few descriptors."""
    return ("sh", "-c", f'ulimit -Sn {soft} && ulimit -Hn {hard} && exec "$@"', "sh")


@pytest.mark.parametrize("kind, soft, hard", [("unix", 256, 0), ("unix", 400, 400), ("tcp", 400, 400)])
def test_two_thousand_idle_connections_end_nobody(
    processes: Processes, disconnected: None, kind: str, soft: int, hard: int
) -> None:
    """From a low soft limit, which is raised, and from a low hard one, which is not."""
    hard = hard or min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 20_000)
    key = KEY if kind == "tcp" else ""
    port = free_port()
    server = processes.start(
        "-m", "gt.server", "-p", str(port), within=low(soft, hard), GT_KEY=key, GT_VERBOSE="1"
    )  # fmt: skip
    until(lambda: "listening" in server.err, what="a listening server")
    processes.worker(port, GT_KEY=key)
    address = f"tcp://127.0.0.1:{port}" if kind == "tcp" else f"localhost:{port}"
    gt.connect(address, key=key)
    x = gt.ones(3)
    assert x.tolist() == [1, 1, 1]
    path = (local_address(str(port)) or "").removeprefix("ipc://")
    # libzmq ends a process that is out of descriptors at a Unix listener: the dispatcher must get to run before it is
    batch = 25 if (kind, hard) == ("unix", 400) else 500
    idle = [processes.script(IDLE, path, str(port if kind == "tcp" else 0), "500", str(batch)) for _ in range(4)]
    for i in range(batch, 500, batch):
        for each in idle:  # one that the listener keeps waiting may end before
            until(lambda: f"{i}\n" in each.out or "there" in each.out, what=f"{i} connections")  # noqa: B023
        assert (x + 1).tolist() == [2, 2, 2]  # the dispatcher has run
        for each in idle:
            with contextlib.suppress(BrokenPipeError):
                each.go()
    for each in idle:
        each.wait_for("there", 60)
    assert server.popen.poll() is None
    assert (x + 1).tolist() == [2, 2, 2]
    if hard == 400:
        until(lambda: "cut off" in server.err, what="it is told")
    new = processes.script("import sys, gt; gt.connect(sys.argv[1], key=sys.argv[2]); print(gt.ones(2).tolist())", address, key)
    assert new.ended(60) == 0, new.err
    assert new.out == "[1.0, 1.0]\n"


def test_a_connection_is_cut_off_where_no_descriptor_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(fd: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        served, _ = listener.accept()
        with served:
            monkeypatch.setattr(os, "dup", none_left)
            assert address_of_peer(served.fileno()) == "127.0.0.1"
            with copy_of(served.fileno()) as same:
                same.shutdown(socket.SHUT_RDWR)
            client.settimeout(30)
            assert client.recv(1) == b"" and served.fileno() >= 0


MANY = """
import os, sys
from gt.errors import ConnectionFailed
from gt.transport.addresses import address_of
from gt.transport.zmq import ZmqLink
links = []
try:
    while len(links) < 100: links.append(ZmqLink(address_of(sys.argv[1], 10)))
except ConnectionFailed as full:
    print(len(links), str(full), flush=True)
    links.pop()._close_sockets()
    input()
links.append(ZmqLink(address_of(sys.argv[1], 10)))
print("in", flush=True)
os._exit(0)
"""


def test_who_finds_no_descriptor_left_for_another_client_is_told_so(processes: Processes) -> None:
    port = free_port()
    server = processes.start("-m", "gt.server", "-p", str(port), within=low(96, 96), GT_VERBOSE="1")
    until(lambda: "listening" in server.err, what="a listening server")
    many = processes.script(MANY, f"localhost:{port}").wait_for("ulimit", 20)
    there, _, why = many.out.partition(" ")
    assert int(there) == 21 and "full: it serves 21 clients" in why and "it may open 96 descriptors; ulimit -n" in why
    until(lambda: server.err.count(" left: ") == 1, what="the end of one")
    many.go()
    many.wait_for("in")


@pytest.fixture
def crowd() -> Iterator[tuple[ConnectionLimits, str, list[float]]]:
    now = [0.0]
    with zmq.Context.instance().socket(zmq.ROUTER) as router:
        router.linger = 0
        made = ConnectionLimits(router, 64, clock=lambda: now[0])
        yield made, listen(router, ipc_address(f"crowd-{time.monotonic_ns()}")), now
        made.close()


@contextlib.contextmanager
def connected(address: str, n: int) -> Iterator[list[socket.socket]]:
    made = [socket.socket(socket.AF_UNIX) for _ in range(n)]
    try:
        for s in made:
            s.settimeout(10)
            s.connect(address.removeprefix("ipc://"))
        yield made
    finally:
        for s in made:
            s.close()


def open_ones(made: list[socket.socket]) -> int:
    """How many of these have not been ended by the other side."""
    left = 0
    for s in made:
        s.setblocking(False)
        try:
            while data := s.recv(64):
                pass
            left += bool(data)
        except BlockingIOError:
            left += 1
        except OSError:
            pass
    return left


def test_waiting_connections_are_bounded_and_admitted_ones_are_not_cut_off(
    crowd: tuple[ConnectionLimits, str, list[float]],
) -> None:
    made, address, _ = crowd
    with connected(address, 12) as first:
        until(lambda: made.drain() is not None and len(made.owners) == 12, 10, "all have come")
        for fd in list(made.owners):
            made.let_in(fd)
        with connected(address, 100) as more:
            until(lambda: made.drain() is not None and made.cut_off == 84, 10, "all but 16 are cut off")
            until(lambda: made.drain() is not None and len(made.owners) == 28, 10, "their ends are seen")
            assert open_ones(first) == 12 and open_ones(more) == 16
    until(lambda: made.drain() is not None and not made.owners, 10, "all are gone")
    assert not made.crowds and not made.pending and not made.waiting


def test_one_address_leaves_room_for_others() -> None:
    with zmq.Context.instance().socket(zmq.ROUTER) as router:
        router.linger = 0
        made = ConnectionLimits(router, 64)
        port = int(listen(router, "tcp://127.0.0.1:*").rpartition(":")[2])
        with contextlib.ExitStack() as stack:

            def come(source: str, n: int) -> list[socket.socket]:
                to = ("127.0.0.1", port)
                return [stack.enter_context(socket.create_connection(to, 10, (source, 0))) for _ in range(n)]

            first = come("127.0.0.2", 5)
            until(lambda: made.drain() is not None and len(made.owners) == 5, 10, "all have come")
            second = come("127.0.0.3", 40)
            until(lambda: made.drain() is not None and made.cut_off == 32, 10, "all but 8 are cut off")
            until(lambda: open_ones(second) == 8, 10, "their ends are seen")
            assert open_ones(first) == 5 and made.pending == {"127.0.0.2": 5, "127.0.0.3": 8}
        made.close()


def test_a_connection_that_is_silent_for_long_is_cut_off(crowd: tuple[ConnectionLimits, str, list[float]]) -> None:
    made, address, now = crowd
    with connected(address, 5) as some:
        until(lambda: made.drain() is not None and len(made.owners) == 5, 10, "all have come")
        made.let_in(next(iter(made.owners)))
        now[0] += 9.0
        made.drain()
        assert made.cut_off == 0
        now[0] += 2.0
        made.drain()
        assert made.cut_off == 4
        until(lambda: made.drain() is not None and open_ones(some) == 1, 10, "four are cut off")


@pytest.mark.parametrize("ask", [address_of_peer, from_another_host, lambda _: close_connections(["ipc:///nowhere"])])
def test_a_descriptor_that_is_another_file_by_now_is_not_kept_open(ask: Callable[[int], Any]) -> None:
    """A connection may end before it is looked at, and its number be given to any file: a copy of a pipe's end would stay, and
    its reader would never see the end."""
    read, write = os.pipe()
    before = len(os.listdir("/proc/self/fd"))
    assert not ask(write)
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(write)
    assert select.select([read], [], [], 0)[0], "the pipe is still open"
    os.close(read)


def test_only_the_connection_itself_is_cut_off(crowd: tuple[ConnectionLimits, str, list[float]]) -> None:
    """Its number may be given to another connection before it is cut off."""
    limits = crowd[0]
    with contextlib.ExitStack() as stack:
        (first, peer), (other, friend) = [[stack.enter_context(end) for end in socket.socketpair()] for _ in range(2)]
        fd = first.fileno()
        limits._came(fd)
        os.dup2(other.fileno(), fd)  # closed, and opened as another
        limits._cut(fd)
        friend.sendall(b"still there")
        assert other.recv(20) == b"still there" and peer.recv(1) == b""
        limits._came(fd)
        limits._cut(fd)
        assert friend.recv(1) == b"", "the connection is cut off"


@pytest.mark.slow
def test_a_client_that_writes_nothing_for_long_stays(processes: Processes) -> None:
    """Its second connection has been said to be its own."""
    _, port = processes.server()
    processes.worker(port)
    client = processes.script(
        "import sys, gt; gt.connect(sys.argv[1]); print('there', flush=True); input(); print(gt.ones(2).tolist())",
        f"localhost:{port}",
    ).wait_for("there")
    time.sleep(11)  # more than the patience for connections that nobody has claimed
    client.go()
    assert client.ended() == 0 and client.out.endswith("[1.0, 1.0]\n")


def test_large_arrays_travel_in_parts() -> None:
    data = bytes(range(256)) * ((2 * PART + 512) // 256)
    assert [len(p) for p in parts((data,))] == [PART, PART, 512] and whole(parts((data,))) == (data,)
    assert parts(()) == [] and whole([]) == () and [bytes(p) for p in parts((b"",))] == [b""]
