"""Beyond one host a key is needed: messages are encrypted, and a process without the key cannot connect."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import threading
from collections.abc import Iterator

import pytest
import zmq
from processes import Process, Processes, free_port, until

import gt
from gt import errors
from gt.transport.addresses import ipc_address, own_folder
from gt.transport.auth import USER, WORKER, Keys, listen, pair, reach, role
from gt.transport.messages import encode
from gt.transport.sockets import Ends, greet

KEY, WRONG, WORKERS = "a key of this file's tests", "another key altogether", "the key of these workers"


def greeting(port: int) -> bytes:
    """The mechanism that a ZMTP listener announces."""
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


@pytest.mark.parametrize("key", ["", KEY])
def test_with_a_key_nothing_that_passes_can_be_read(processes: Processes, disconnected: None, tap: type[Tap], key: str) -> None:
    _, port = processes.server(*([] if key else ["--insecure"]), GT_KEY=key)
    processes.worker(port, GT_KEY=key)
    wire = tap(port)
    gt.connect(f"tcp://127.0.0.1:{wire.at}", key=key)
    assert gt.ones(3).logical_and(gt.zeros(3)).logical_not().sum().item() == 3
    words = b"logical_and", b"logical_not"  # long ones: three letters stand in encrypted bytes by chance
    readable = [word for word in (*words, KEY.encode()) if word in wire.seen]
    assert readable == ([] if key else list(words))


def test_a_key_works_over_tcp_and_over_the_local_address(processes: Processes, disconnected: None) -> None:
    _, port = processes.server("--key", KEY)
    processes.worker(port, "--host", "tcp://127.0.0.1", "--key", KEY)
    for address in (f"localhost:{port}", f"tcp://127.0.0.1:{port}"):
        gt.connect(address, key=KEY)
        assert gt.ones(2).tolist() == [1, 1]
        gt.disconnect()


@pytest.mark.parametrize("key", ["", WRONG])
@pytest.mark.parametrize("address", ["localhost:{}", "tcp://127.0.0.1:{}"])
def test_who_lacks_the_key_is_refused_and_told_why(processes: Processes, disconnected: None, key: str, address: str) -> None:
    _, port = processes.server("--key", KEY)
    with pytest.raises(errors.ConnectionFailed, match="key"):
        gt.connect(address.format(port), key=key)


def test_a_worker_without_the_key_is_refused(processes: Processes) -> None:
    _, port = processes.server("--key", KEY)
    for host in ("localhost", "tcp://127.0.0.1"):
        worker = processes.start("-m", "gt.worker", "--host", host, "-p", str(port), "--backend", "numpy", "--key", WRONG)
        assert worker.ended() == 1
        assert "key" in worker.err and "Traceback" not in worker.err


def test_a_key_is_needed_beyond_this_host(processes: Processes) -> None:
    refused = processes.start("-m", "gt.server", "--host", "0.0.0.0", "-p", str(free_port()))
    assert refused.ended() == 1
    assert "0.0.0.0 is reachable from other hosts: give --key (GT_KEY), --config, or --insecure" in refused.err
    port = free_port()
    processes.server("--host", "0.0.0.0", port=port, GT_KEY=KEY)
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


@pytest.mark.parametrize("way", ["memory", "mail"])
def test_workers_that_reduce_together_open_no_port(processes: Processes, way: str) -> None:
    """Nor does anybody else of a server without a key."""
    server, port = processes.server("--workers", "2", "--backend", "numpy", GT_COLLECTIVES=way)
    script = processes.script(
        """
        import sys, gt
        gt.connect(sys.argv[1])
        gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
        with gt.signal("rows"):
            x = gt.ones(8, 8)
        print((x.sum() + x.mean()).item(), [s["collectives"] for s in gt.debug.get_worker_stats().values()], flush=True)
        input()
        """,
        f"localhost:{port}",
    ).wait_for("65.0", 60)
    assert f"'{way}'" in script.out
    listening = [
        c for p in processes.running() for c in p.net_connections("inet") if c.status in ("LISTEN", "NONE")
    ]  # fmt: skip
    assert listening == []
    script.go()


def test_a_worker_s_data_socket_is_guarded_too(processes: Processes) -> None:
    import psutil

    _, port = processes.server("--key", KEY)
    worker = processes.worker(port, "--host", "tcp://127.0.0.1", "--key", KEY)
    [at] = [c.laddr.port for c in psutil.Process(worker.pid).net_connections("tcp") if c.status == "LISTEN"]
    assert greeting(at) == b"CURVE"


@pytest.mark.parametrize("given", [(), ("--worker-key", WORKERS)])
def test_a_user_cannot_join_as_a_worker(processes: Processes, given: tuple[str, ...]) -> None:
    _, port = processes.server("--key", KEY, *given)
    for host in ("localhost", "tcp://127.0.0.1"):
        command = ["-m", "gt.worker", "--host", host, "-p", str(port), "--backend", "numpy", "--key", KEY]
        worker = processes.start(*command, XDG_RUNTIME_DIR="/nonexistent", GT_WORKER_KEY="" if given else WRONG)
        assert worker.ended() == 1
        assert "key" in worker.err and "Traceback" not in worker.err
        if given:
            assert "a worker needs the workers' (GT_WORKER_KEY)" in worker.err
    if given:
        processes.worker(port, "--host", "tcp://127.0.0.1", "--key", KEY, "--worker-key", WORKERS)


def test_a_worker_of_the_server_s_user_finds_the_key_that_the_server_made_up(processes: Processes) -> None:
    server, port = processes.server("--key", KEY)
    path = re.search(r"GT_WORKER_KEY, which is in (\S+)", server.err)
    assert path is not None and os.stat(path[1]).st_mode & 0o777 == 0o600
    processes.worker(port, "--key", KEY)
    server.popen.terminate()
    assert server.ended() == 0 and not os.path.exists(path[1])


def test_a_workers_key_of_a_killed_server_misleads_no_worker(processes: Processes) -> None:
    first, port = processes.server("--key", KEY)
    first.kill()
    first.ended()
    processes.server("--key", KEY, "--worker-key", WORKERS, port=port)
    worker = processes.start("-m", "gt.worker", "-p", str(port), "--backend", "numpy", "--key", KEY, GT_WORKER_KEY="")
    assert worker.ended() == 1 and "a worker needs the workers' (GT_WORKER_KEY)" in worker.err


def test_a_server_keeps_its_workers_key_when_another_wants_its_port(processes: Processes) -> None:
    _, port = processes.server("--key", KEY)
    second = processes.start("-m", "gt.server", "--key", KEY, "-p", str(port))
    assert second.ended() == 1 and "Address already in use" in second.err and "Traceback" not in second.err
    processes.worker(port, "--key", KEY)


def test_who_is_no_worker_cannot_speak_as_one_to_a_worker(processes: Processes, disconnected: None) -> None:
    """Not even with a worker's own token."""
    from gt.client.default import session
    from gt.transport.messages import Piece

    _, port = processes.server("--key", KEY)
    processes.worker(port, "--key", KEY)
    gt.connect(f"localhost:{port}", key=KEY)
    [worker] = session().workers

    def dropped() -> int:
        return next(iter(session().ask("stats")["workers"].values()))["dropped"]

    before = dropped()
    with zmq.Context.instance().socket(zmq.DEALER) as s:
        s.linger = 0
        reach(s, worker.address.split("|")[0], Keys(KEY))
        s.send_multipart([encode(Piece(0, "c", 1)), b""])
        until(lambda: dropped() == before + 1, 10, "it was dropped")


@pytest.mark.parametrize("name", ["GT_KEY", "GT_WORKER_KEY"])
def test_a_short_key_is_refused_everywhere(processes: Processes, disconnected: None, name: str) -> None:
    short = {"GT_KEY": KEY, "GT_WORKER_KEY": WORKERS, name: "123456789012345"}
    for module in ("gt.server", "gt.worker"):
        refused = processes.start("-m", module, "-p", str(free_port()), **short)
        assert refused.ended() == 1
        assert f"the key {name} has 15 characters: expected 16 or more, such as `python -c" in refused.err, refused.err
    if name == "GT_KEY":
        with pytest.raises(errors.ConnectionFailed, match="has 15 characters: expected 16 or more"):
            gt.connect("localhost:1", key=short[name])


def test_users_and_workers_may_not_have_one_key(processes: Processes) -> None:
    refused = processes.start("-m", "gt.server", "-p", str(free_port()), GT_KEY=KEY, GT_WORKER_KEY=KEY)
    assert refused.ended() == 1 and "users could join as workers" in refused.err


@pytest.mark.parametrize("kind", ["tcp", "ipc"])
def test_whoever_listens_in_the_server_s_place_gets_no_key(disconnected: None, kind: str) -> None:
    """An impostor hears a handshake that it cannot answer, and no key in it."""
    path = f"{own_folder()}/impostor-{os.getpid()}"
    listener = socket.create_server(("127.0.0.1", 0)) if kind == "tcp" else socket.socket(socket.AF_UNIX)
    heard = bytearray()
    with listener:
        if kind == "ipc":
            listener.bind(path)
            listener.listen()
        thread = threading.Thread(target=_answer, args=(listener, heard))
        thread.start()
        with pytest.raises(errors.ConnectionFailed):
            gt.connect(f"tcp://127.0.0.1:{listener.getsockname()[1]}" if kind == "tcp" else f"ipc://{path}", key=KEY, timeout=2)
        thread.join(10)
    if kind == "ipc":
        os.unlink(path)
    assert len(heard) > 64 and KEY.encode() not in heard


READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER\x08Identity\x00\x00\x00\x00"


def _answer(listener: socket.socket, heard: bytearray) -> None:
    """Answer each connection as its server would, by the mechanism that it names, and keep the received bytes."""
    listener.settimeout(5)
    with contextlib.suppress(OSError):
        s, _ = listener.accept()
        with s:
            s.settimeout(3)
            s.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00")  # a signature and a version
            while len(heard) < 32 and (data := s.recv(4096)):
                heard += data
            s.sendall(bytes(heard[12:32]) + bytes(32))
            if heard[12:16] == b"NULL":
                s.sendall(b"\x04" + bytes([len(READY)]) + READY)
            while data := s.recv(4096):
                heard += data


def test_a_server_with_a_salt_of_its_own_takes_whoever_has_key_and_salt(
    processes: Processes, disconnected: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, port = processes.server(GT_KEY=KEY, GT_SALT="of this server")
    processes.worker(port, GT_KEY=KEY, GT_SALT="of this server")
    with pytest.raises(errors.ConnectionFailed, match="GT_SALT"):
        gt.connect(f"tcp://127.0.0.1:{port}", key=KEY)
    monkeypatch.setenv("GT_SALT", "of this server")
    gt.connect(f"tcp://127.0.0.1:{port}", key=KEY)
    assert (gt.ones(3) + 1).tolist() == [2, 2, 2]


def test_one_key_gives_other_key_pairs_under_another_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    before = pair(KEY, USER)
    monkeypatch.setenv("GT_SALT", "of this server")
    salted = pair(KEY, USER)
    assert not set(salted) & set(before) and salted == pair(KEY, USER)


def test_both_sides_derive_their_keys_from_the_one_key() -> None:
    assert pair(KEY, "server") == pair(KEY, "server") != pair(KEY, "user")
    assert pair(KEY, "server") != pair(WRONG, "server")
    public, secret = pair(KEY, "server")
    assert len(public) == len(secret) == 40 and zmq.curve_public(secret) == public


PEERS: list[tuple[Keys, str | None]] = [
    (Keys(KEY), USER), (Keys(KEY, WORKERS), WORKER), (Keys(KEY, WRONG), None), (Keys(WRONG), None), (Keys(), None)
]  # fmt: skip


def test_with_a_key_every_socket_is_guarded() -> None:
    context, keys = zmq.Context.instance(), Keys(KEY, WORKERS)
    with context.socket(zmq.ROUTER) as router:
        router.linger = 0
        for address in (ipc_address(f"test-{os.getpid()}"), "tcp://127.0.0.1:*"):
            at = listen(router, address, keys)
            for shown, who in (
                (Keys(KEY), USER),
                (keys, WORKER),
                (Keys(KEY, WRONG), None),
                (Keys(WRONG), None),
                (Keys(), None),
            ):
                with context.socket(zmq.DEALER) as s:
                    s.linger = 0
                    reach(s, at, shown)
                    with contextlib.suppress(zmq.Again):  # refused before it was sent
                        s.send(b"a word", zmq.NOBLOCK)
                    if who is None:
                        assert not router.poll(300)
                    else:
                        assert router.poll(5000)
                        assert {role(frame) for frame in router.recv_multipart(copy=False)} == {who}


@pytest.mark.parametrize("keys", [Keys(), Keys(KEY, WORKERS)])
def test_a_peer_of_a_version_without_keys_is_not_heard(keys: Keys) -> None:
    """ZMTP 1.0 has no handshake in which it could be asked for a key."""
    with zmq.Context.instance().socket(zmq.ROUTER) as router, socket.socket(socket.AF_UNIX) as old:
        router.linger = 0
        at = listen(router, ipc_address(f"test-{secrets.token_hex(4)}"), keys)  # the last one's may be there for a moment
        old.connect(at.removeprefix("ipc://"))
        old.sendall(b"\x01\0\x04\0abc")
        assert not router.poll(300)
        with zmq.Context.instance().socket(zmq.DEALER) as s:
            s.linger = 0
            reach(s, at, keys)
            s.send(b"a word")
            assert router.poll(5000)


def test_a_server_that_hangs_up_before_the_greeting_is_an_error_and_no_wait() -> None:
    class Gone(zmq.Socket):  # type: ignore[type-arg]
        """A socket whose connection ends right after it was seen to be writable."""

        def poll(self, timeout: object = None, flags: int = zmq.POLLIN) -> int:
            return flags

        def send(self, data: object, flags: int = 0, **rest: object) -> None:
            assert flags & zmq.NOBLOCK, "it would wait for ever"
            super().send(data, flags)

    made = Gone(zmq.Context.instance(), zmq.DEALER)
    ends = Ends(made)
    try:
        with pytest.raises(errors.ConnectionFailed):
            greet(made, ends, "tcp://127.0.0.1:1", b"", 0.1)
    finally:
        ends.close()
        made.close(0)
