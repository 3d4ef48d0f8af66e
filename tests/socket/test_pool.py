"""A pool whose users have keys of their own, in real processes: `gt.server --config`, `gt keys`, `gt ps`, `gt kill`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import zmq
from processes import Processes, until

import gt
from gt import errors
from gt.client.here import here
from gt.launch import GIVE_UP, Children
from gt.transport.auth import Keys, reach
from gt.transport.messages import VERSION, Attach, Batch, Bye, Hello, Join, decode, encode

POOL = """
worker_key: the key of this pool's workers
users:
  alice: {key: the secret of alice, weight: 2, memory: 4MB}
  bob: {key: the secret of bob, workers: [w]}
  carol: {key: the secret of carol, workers: [elsewhere]}
  root: {key: the secret of an administrator, administrator: true}
"""
WAITING = """
import sys, gt
gt.connect(sys.argv[1])
x = gt.ones(1000) * 3
assert x.sum().item() == 3000.0
print("ready", flush=True)
sys.stdin.readline()
try:
    print("read", x.sum().item())
except gt.errors.SessionLost as ended:
    print("ended:", ended, flush=True)
"""


def ask(processes: Processes, *command: str, **environment: str) -> str:
    made = processes.start("-m", "gt", *command, **environment)
    assert made.ended() == 0, made.err
    return made.out


def dealer(address: str, key: str, identity: str) -> zmq.Socket:
    made: zmq.Socket = zmq.Context.instance().socket(zmq.DEALER)
    made.linger = 0
    made.setsockopt(zmq.IDENTITY, identity.encode())
    reach(made, address, Keys(key))
    return made


@pytest.mark.usefixtures("disconnected")
def test_users_with_keys_of_their_own_share_a_pool(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(POOL)
    path.chmod(0o600)
    keys = dict(line.split(" GT_KEY=") for line in ask(processes, "keys", str(path)).splitlines())
    assert set(keys) == {"alice", "bob", "carol", "root"}
    server, port = processes.server("--config", str(path))
    processes.worker(port, "--id", "w", GT_WORKER_KEY="the key of this pool's workers")
    at = f"localhost:{port}"
    alice = processes.script(WAITING, at, GT_KEY=keys["alice"]).wait_for("ready")

    for wrong in ("", "the secret of nobody" + keys["bob"].removeprefix("the secret of bob"), "the secret of bob"):
        with pytest.raises(errors.ConnectionFailed):
            gt.connect(at, key=wrong, timeout=2)
    gt.connect(at, key=keys["bob"])
    assert (gt.ones(1024, 1024, 2) + 1.0).sum().item() == 2.0 * (1 << 21), "bob has no quota"
    [row] = gt.debug.clients()
    assert row["user"] == "bob" and row["seconds"] > 0 and row["bytes"] <= 512
    assert len(gt.debug.get_worker_stats()["w"]["shares"]) == 1
    poses_as_others(here().session.link.address, keys["bob"])  # type: ignore[attr-defined]

    gt.connect(at, key=keys["alice"])
    with pytest.raises(errors.OutOfMemory, match="user alice may have|this client may have"):
        gt.ones(1024, 1024, 2).sum().item()
    assert gt.ones(1000).sum().item() == 1000.0

    monkeypatch.setenv("GT_WAIT", "0.2")
    gt.connect(at, key=keys["carol"])
    with pytest.raises(errors.GTError, match="none has joined"):  # none that she may use
        gt.ones(3).sum().item()

    rows = json.loads(ask(processes, "ps", at, "--json", GT_KEY=keys["root"]))
    number = next(str(r["number"]) for r in rows if r["user"] == "alice" and str(alice.pid) in r["process"])
    assert "no client" in refused(processes, number, at, keys["bob"])
    assert str(alice.pid) in ask(processes, "kill", number, at, GT_KEY=keys["root"])
    alice.go()
    alice.wait_for("root asked")
    assert server.popen.poll() is None


def refused(processes: Processes, number: str, at: str, key: str) -> str:
    made = processes.start("-m", "gt", "kill", number, at, GT_KEY=key)
    assert made.ended() == 1
    return made.err


def poses_as_others(address: str, key: str) -> None:
    """A user's key makes nobody a worker, and a name that is another's does nothing."""
    with dealer(address, key, "someone") as someone:
        someone.send(encode(Join(VERSION, "", "w2", "numpy", "cpu", "here", 1, "ipc://x")))
        assert isinstance(decode(someone.recv()), Bye)
    name = here().session.name
    with dealer(address, key, f"{name}<") as other:
        for message in (Hello(VERSION, "", "here", 1), Attach(name), Batch(1, (), [(0, 1)])):
            other.send(encode(message))
        until(lambda: other.poll(1), what="the answer to a greeting")


@pytest.mark.usefixtures("disconnected")
def test_a_worker_that_aborts_is_replaced_and_only_those_with_values_there_are_told(processes: Processes) -> None:
    _, port = processes.server("--workers", "2", "--backend", "numpy")
    gt.connect(f"localhost:{port}")
    until(lambda: len(here().session.workers) == 2, what="both workers")
    mine = gt.arange(5).float()
    assert mine.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    other = processes.script(WAITING, f"localhost:{port}").wait_for("ready")
    stats = gt.debug.get_worker_stats()
    homes = {s["index"]: name for name, s in stats.items() if s["clients"]}
    theirs = homes[1 - mine.placement.pieces[0][0]]
    pid = int(theirs.rpartition("-")[2])
    os.kill(pid, signal.SIGABRT)
    until(lambda: len(here().session.workers) == 2 and theirs not in {w.name for w in here().session.workers}, what="another")
    assert (mine + 1.0).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0], "tensors on other workers are unchanged"
    other.go()
    other.ended()
    assert "WorkerLost" in other.err and "was lost" in other.err
    again = processes.script(WAITING, f"localhost:{port}").wait_for("ready")
    again.go()
    again.wait_for("read 3000.0")


@pytest.mark.parametrize("joined", [False, True])
def test_a_worker_is_given_up_if_it_never_joins_and_not_if_clients_kernels_end_it(joined: bool) -> None:
    said, enough = list[str](), threading.Event()

    def tell(line: str) -> None:
        said.append(line)
        if "given up" in line or len(said) > 2 * GIVE_UP:
            enough.set()

    with Children() as children:

        def start() -> subprocess.Popen:
            children.processes.append(subprocess.Popen([sys.executable, "-S", "-c", "raise SystemExit(3)"]))
            return children.processes[-1]

        children.keep_worker(start, tell, lambda pid: joined)
        assert enough.wait(60)
    assert any("given up" in line for line in said) is not joined, said
