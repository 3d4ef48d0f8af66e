"""Local sockets and shared memory are one user's: the folder keeps others out, and the kernel identifies the connecting one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from processes import ROOT, Processes, free_port, until

from gt.transport import addresses
from gt.transport.addresses import ipc_address, listens, local_address, own_folder
from gt.transport.auth import listen
from gt.transport.channels import TOKEN, ChannelListener, connect

NOBODY = 65534
BECOME = f"""
import os, socket, sys
sys.path.insert(0, {str(ROOT)!r})
import encodings.idna  # and this
from gt.transport.addresses import address_of  # before it may not read Python's own files any more
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes a second user, which only root may become")


def as_nobody(code: str, *args: str) -> str:
    """The output of a program that runs as another user."""
    done = subprocess.run([sys.executable, "-c", BECOME + code, *args], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime folder of this test's own, with a short name."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        monkeypatch.setenv("XDG_RUNTIME_DIR", made)
        yield Path(made)


def test_local_sockets_lie_in_a_folder_that_only_this_user_may_enter(folder: Path) -> None:
    assert own_folder() == f"{folder}/gt" and os.stat(own_folder()).st_mode & 0o777 == 0o700


def test_a_runtime_folder_that_others_may_enter_is_not_used(folder: Path) -> None:
    folder.chmod(0o755)
    assert own_folder() == f"/tmp/gt-{os.geteuid()}"


@pytest.mark.parametrize("spoil", ["mode", "link", "file"])
def test_a_folder_in_its_place_that_is_not_private_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    place = folder / "gt"
    if spoil == "link":
        place.symlink_to(folder)
    elif spoil == "file":
        place.touch()
    else:
        place.mkdir(0o700)
        place.chmod(0o750)
    monkeypatch.setattr(addresses, "_folders", lambda: iter([str(place)]))
    with pytest.raises(PermissionError, match="cannot keep local sockets in .*: remove it, or set XDG_RUNTIME_DIR"):
        own_folder()


def test_a_server_is_found_whatever_runtime_folder_its_environment_named(processes: Processes, folder: Path) -> None:
    _, port = processes.server(XDG_RUNTIME_DIR="")
    assert local_address(str(port)) == f"ipc:///tmp/gt-{os.geteuid()}/{port}"


def test_a_worker_and_a_client_may_come_before_their_server(processes: Processes) -> None:
    port = free_port()
    worker = processes.start("-m", "gt.worker", "-p", str(port), "--backend", "numpy", "--timeout", "60")
    client = processes.script(
        "import sys, gt; gt.connect(sys.argv[1], timeout=60); print(gt.ones(2).tolist())", f"localhost:{port}"
    )
    time.sleep(1)
    assert worker.popen.poll() is client.popen.poll() is None
    processes.server(port=port)
    assert client.ended(60) == 0, client.err
    assert client.out == "[1.0, 1.0]\n" and worker.popen.poll() is None


def test_a_name_that_is_in_use_is_not_taken_over(folder: Path) -> None:
    with zmq.Context.instance().socket(zmq.ROUTER) as first, zmq.Context.instance().socket(zmq.ROUTER) as second:
        listen(first, ipc_address("name"))
        with pytest.raises(OSError, match="in use"):
            listen(second, ipc_address("name"))


def test_sockets_go_with_their_processes_and_those_of_killed_ones_are_removed(processes: Processes, folder: Path) -> None:
    server, port = processes.server(XDG_RUNTIME_DIR=str(folder))
    worker = processes.worker(port, XDG_RUNTIME_DIR=str(folder))
    own = [str(port), f"{port}.segments"]  # the server's, the second for lanes
    assert len(os.listdir(folder / "gt")) == 4
    worker.kill()
    until(lambda: sorted(os.listdir(folder / "gt")) == own, what="the end of a killed worker's sockets")
    server.popen.terminate()
    assert server.ended() == 0
    assert os.listdir(folder / "gt") == []


def test_sockets_and_keys_of_killed_servers_and_workers_are_swept(processes: Processes, folder: Path) -> None:
    key = "the key of these users"
    server, port = processes.server("--key", key, XDG_RUNTIME_DIR=str(folder))
    worker = processes.worker(port, "--key", key, XDG_RUNTIME_DIR=str(folder))
    for name in os.listdir(folder / "gt"):
        os.utime(folder / "gt" / name, (0, 0))
    addresses.sweep()
    assert len(os.listdir(folder / "gt")) == 5
    server.kill()
    worker.kill()
    server.ended(), worker.ended()
    assert {str(port), f"{port}.worker-key"} <= set(os.listdir(folder / "gt"))
    addresses.sweep()
    assert os.listdir(folder / "gt") == []


def test_only_sockets_of_workers_that_nobody_listens_at_are_removed(folder: Path) -> None:
    """A worker announces its own address, which may be any text."""
    own = Path(addresses.own_folder())
    name = "w-0123456789abcdef"
    elsewhere = folder / name
    for path in (own / name, own / f"{name}.segments", own / "9000", own / "w-other", elsewhere):
        path.touch()
    for said in (own / "9000", own / "w-other", elsewhere, own / ".." / name, own / f"{name}.segments", own / "w-*", ""):
        assert addresses.remove_worker_socket(f"ipc://{said}")
    assert len(os.listdir(own)) == 4 and elsewhere.exists()
    (own / name).unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(own / name))
        listener.listen()
        assert not addresses.remove_worker_socket(f"ipc://{own / name}")
        assert (own / name).exists()
    assert addresses.remove_worker_socket(f"ipc://{own / name}")
    assert sorted(os.listdir(own)) == ["9000", "w-other"]


@needs_root
def test_another_user_reaches_no_local_socket(processes: Processes) -> None:
    _, port = processes.server()
    processes.worker(port)
    local = local_address(str(port))
    assert local is not None
    tried = """
with socket.socket(socket.AF_UNIX) as s:
    try:
        s.connect(sys.argv[1])
        print("connected")
    except OSError as refused:
        print(type(refused).__name__)
"""
    assert as_nobody(tried, local.removeprefix("ipc://")) == "PermissionError"
    looked = "try: address_of(sys.argv[1])\nexcept Exception as failed: print(failed)"
    assert "as this user or, for others, with a key?" in as_nobody(looked, f"localhost:{port}")


@needs_root
def test_another_user_is_cut_off_where_the_folder_lets_it_in(folder: Path) -> None:
    """The second lock: libzmq asks the kernel whose process has connected."""
    with zmq.Context.instance().socket(zmq.ROUTER) as router:
        address = listen(router, ipc_address("open"))
        path = address.removeprefix("ipc://")
        folder.chmod(0o755)
        (folder / "gt").chmod(0o755)
        os.chmod(path, 0o777)
        greeted = """
with socket.socket(socket.AF_UNIX) as s:
    s.settimeout(10)
    s.connect(sys.argv[1])
    try:
        print(len(s.recv(10)))
    except ConnectionResetError:
        print(0)
"""
        assert as_nobody(greeted, path) == "0"
        with socket.socket(socket.AF_UNIX) as mine:
            mine.settimeout(10)
            mine.connect(path)
            assert len(mine.recv(10)) > 0


@needs_root
def test_another_user_s_listener_is_not_taken_for_one_of_this_user(folder: Path) -> None:
    folder.chmod(0o777)
    serve = """
with socket.socket(socket.AF_UNIX) as s:
    s.bind(sys.argv[1]); s.listen(); print("there", flush=True); sys.stdin.read()
"""
    path = str(folder / "theirs")
    with subprocess.Popen(
        [sys.executable, "-c", BECOME + serve, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "there\n"
        assert os.path.exists(path) and not listens(f"ipc://{path}")
        other.communicate("")


@needs_root
def test_another_user_passes_no_memory_to_a_worker(folder: Path) -> None:
    door = ChannelListener(ipc_address("w"))
    try:
        folder.chmod(0o755)
        (folder / "gt").chmod(0o755)
        os.chmod(door.path, 0o777)
        said = """
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
    s.connect(sys.argv[1]); s.send(b"t" * 16); print("said")
"""
        assert as_nobody(said, door.path) == "said"
        assert door.claim(b"t" * TOKEN) is None and not door.unclaimed and not door.found
    finally:
        door.close()


def test_a_channel_belongs_to_whoever_has_said_its_token(folder: Path) -> None:
    local, token = ipc_address("w"), os.urandom(TOKEN)
    door = ChannelListener(local)
    try:
        mine = connect(local, token)
        assert mine is not None
        for guess in (b"", token[:1], bytes(TOKEN), token + b"x"):
            assert door.claim(guess) is None
        its = door.claim(token)
        assert its is not None and door.claim(token) is None
        its.close()
        mine.close()
    finally:
        door.close()


def test_connections_that_nobody_claims_are_bounded(folder: Path) -> None:
    local = ipc_address("w")
    door = ChannelListener(local)
    made = []
    try:
        for i in range(600):
            made.append(connect(local, i.to_bytes(TOKEN, "little")))
            if i % 100 == 99:
                door.claim(b"")
        silent = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(600)]
        for s in silent:
            s.connect(door.path)
        made += silent
        until(lambda: door.claim(b"") is None and len(door.unclaimed) <= 256 and len(door.found) <= 256, 10, "few are kept")
    finally:
        door.close()
        for each in made:
            if each is not None:
                each.close()


SEVERAL = f"""
import encodings.idna, os, sys, numpy as np, gt
"localhost".encode("idna")
def work():
    gt.connect(sys.argv[1])
    x = gt.from_numpy(np.arange(300_000, dtype="f4"))
    return int((x * 2).numpy().astype("f8").sum()), gt.client.default.session().link.shares
mine = work()  # all that Python reads is read by now
gt.disconnect()
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
print(mine, work())
"""


@needs_root
def test_users_of_one_host_share_a_server_by_tcp_and_a_key(processes: Processes) -> None:
    """One of them is the server's own, and shares memory with its workers."""
    key = {"GT_KEY": "a key of these users"}
    _, port = processes.server("--workers", "1", "--backend", "numpy", **key)
    script = processes.script(SEVERAL, f"localhost:{port}", **key)
    assert script.ended(60) == 0, script.err
    assert script.out == "(89999700000, True) (89999700000, False)\n", script.out
