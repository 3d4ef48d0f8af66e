"""Beyond one host a key is needed: what passes is encrypted, and who lacks the key cannot connect."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import zmq
from processes import Process, Processes, free_port

import gt
from gt import errors
from gt.transport.addresses import ipc_address
from gt.transport.auth import listen, pair, reach
from gt.transport.messages import VERSION, Hello, encode


def greeting(port: int) -> bytes:
    """The mechanism that a ZMTP listener says it speaks."""
    with socket.create_connection(("127.0.0.1", port), 5) as s:
        s.sendall(b"\xff" + bytes(8) + b"\x7f\x03")  # a signature and a version; the rest is not awaited
        s.settimeout(5)
        got = b""
        while len(got) < 32:
            more = s.recv(64)
            if not more:
                break
            got += more
    return got[12:32].rstrip(b"\0")


class Tap:
    """Passes bytes on to a port and keeps them."""

    def __init__(self, port: int) -> None:
        self.port, self.seen = port, bytearray()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.at = self.listener.getsockname()[1]
        self.open = [self.listener]
        self.threads = [threading.Thread(target=self.accept)]
        self.threads[0].start()

    def accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.port))
            self.open += [near, far]
            for a, b in ((near, far), (far, near)):
                self.threads.append(threading.Thread(target=self.pump, args=(a, b)))
                self.threads[-1].start()

    def pump(self, a: socket.socket, b: socket.socket) -> None:
        try:
            while data := a.recv(1 << 16):
                self.seen += data
                b.sendall(data)
        except OSError:
            pass

    def close(self) -> None:
        for s in self.open:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
            s.close()
        for t in self.threads:
            t.join(5)


@pytest.fixture
def tap(request: pytest.FixtureRequest) -> Iterator[type[Tap]]:
    made: list[Tap] = []

    class Kept(Tap):
        def __init__(self, port: int) -> None:
            super().__init__(port)
            made.append(self)

    yield Kept
    gt.disconnect()
    for t in made:
        t.close()


@pytest.mark.parametrize("key", ["", "a shared key"])
def test_with_a_key_nothing_that_passes_can_be_read(processes: Processes, disconnected: None, tap: type[Tap], key: str) -> None:
    _, port = processes.server(*([] if key else ["--insecure"]), GT_KEY=key)
    processes.worker(port, GT_KEY=key)
    wire = tap(port)
    gt.connect(f"tcp://127.0.0.1:{wire.at}", key=key)
    assert (gt.ones(3).exp() * 2).sum().item() == pytest.approx(16.31, abs=0.01)
    readable = [word for word in (b"exp", b"mul", b"full", b"a shared key") if word in wire.seen]
    assert readable == ([] if key else [b"exp", b"mul", b"full"])


def test_a_key_works_over_tcp_and_over_the_local_address(processes: Processes, disconnected: None) -> None:
    _, port = processes.server("--key", "k")
    processes.worker(port, "--host", "tcp://127.0.0.1", "--key", "k")
    for address in (f"localhost:{port}", f"tcp://127.0.0.1:{port}"):
        gt.connect(address, key="k")
        assert gt.ones(2).tolist() == [1, 1]
        gt.disconnect()


@pytest.mark.parametrize("key", ["", "wrong"])
@pytest.mark.parametrize("address", ["localhost:{}", "tcp://127.0.0.1:{}"])
def test_who_lacks_the_key_is_refused_soon_and_told_why(
    processes: Processes, disconnected: None, key: str, address: str
) -> None:
    _, port = processes.server("--key", "right")
    start = time.monotonic()
    with pytest.raises(errors.ConnectionFailed, match="key"):
        gt.connect(address.format(port), key=key)
    assert time.monotonic() - start < 4


def test_a_worker_without_the_key_is_refused(processes: Processes) -> None:
    _, port = processes.server("--key", "right")
    for host in ("localhost", "tcp://127.0.0.1"):
        worker = processes.start("-m", "gt.worker", "--host", host, "-p", str(port), "--backend", "numpy", "--key", "wrong")
        assert worker.ended() == 1
        assert "key" in worker.err and "Traceback" not in worker.err


def test_a_key_is_needed_beyond_this_host(processes: Processes) -> None:
    refused = processes.start("-m", "gt.server", "--host", "0.0.0.0", "-p", str(free_port()))
    assert refused.ended() == 1
    assert "0.0.0.0 is reachable from other hosts: give --key (or GT_KEY), or --insecure" in refused.err
    port = free_port()
    processes.server("--host", "0.0.0.0", port=port, GT_KEY="k")
    assert greeting(port) == b"CURVE"
    port = free_port()
    processes.server("--host", "0.0.0.0", "--insecure", port=port)
    assert greeting(port) == b"NULL"


def test_a_server_listens_on_this_host_alone_unless_told_otherwise(processes: Processes) -> None:
    import psutil

    def heard(process: Process) -> set[str]:
        return {c.laddr.ip for c in psutil.Process(process.pid).net_connections("tcp") if c.status == "LISTEN"}

    server, port = processes.server()
    assert heard(server) == heard(processes.worker(port)) == set()  # TCP does not tell whose process it is that connects
    server, port = processes.server("--insecure")
    assert heard(server) == heard(processes.worker(port, "--host", "tcp://127.0.0.1")) == {"127.0.0.1"}


def test_a_worker_s_data_socket_is_guarded_too(processes: Processes) -> None:
    import psutil

    _, port = processes.server("--key", "k")
    worker = processes.worker(port, "--host", "tcp://127.0.0.1", "--key", "k")
    [at] = [c.laddr.port for c in psutil.Process(worker.pid).net_connections("tcp") if c.status == "LISTEN"]
    assert greeting(at) == b"CURVE"


def test_both_sides_derive_their_keys_from_the_one_key() -> None:
    assert pair("k", "server") == pair("k", "server") != pair("k", "client")
    assert pair("k", "server") != pair("other", "server")
    public, secret = pair("k", "server")
    assert len(public) == len(secret) == 40 and zmq.curve_public(secret) == public


def test_on_one_socket_tcp_is_guarded_and_the_local_address_plain() -> None:
    context = zmq.Context.instance()
    name = ipc_address(f"test-{os.getpid()}")
    with context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as near, context.socket(zmq.DEALER) as far:
        for s in (router, near, far):
            s.linger = 0
        listen(router, name, "k")
        at = listen(router, "tcp://127.0.0.1:*", "k")
        reach(near, name)
        reach(far, at, "k")
        for s in (near, far):
            s.send(encode(Hello(VERSION, "k", "here", 1)))
            assert router.poll(5000)
            router.recv_multipart()
        assert greeting(int(at.rpartition(":")[2])) == b"CURVE"
