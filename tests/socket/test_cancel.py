"""When a client leaves, values that only it could read are not computed; others' values and collectives are unchanged."""

from __future__ import annotations

import signal

import pytest
from processes import Processes, until

import gt

QUEUED = """
import sys, gt
from gt.client import window
from gt.client.here import here
window.SECONDS = 1e9  # all of it is to be under way
gt.connect(sys.argv[1])
x, w = gt.ones(512, 512), gt.eye(512)
def step(x): return x @ w @ w @ w @ w @ w
for _ in range(20):
    x = step(x)
    x.numpy()
hits = gt.debug.get_worker_stats()["w"]["replay"]["hits"]
print("ready", flush=True)
input()
for _ in range(40):
    x = step(x)
here().session.ask("network")  # the dispatcher answers this itself, after all that it was sent before
print("queued", hits, flush=True)
input()
"""


@pytest.mark.usefixtures("disconnected")
@pytest.mark.parametrize("replayed", ["0", "1"], ids=["instructions", "traces"])
def test_the_queued_work_of_a_killed_client_is_cancelled(processes: Processes, replayed: str) -> None:
    """The worker stands still while the work and the departure come."""
    server, port = processes.server(GT_VERBOSE="1")
    worker = processes.worker(port, "--id", "w")
    gt.connect(f"localhost:{port}")
    mine = gt.ones(4)
    mine.numpy()
    client = processes.script(QUEUED, f"localhost:{port}", GT_TRACE=replayed).wait_for("ready")
    done = gt.debug.get_worker_stats()["w"]["ops"]["matmul"]
    worker.kill(signal.SIGSTOP)
    client.go()
    client.wait_for("queued")
    client.kill()
    until(lambda: " left" in server.err, what="the client's departure")
    worker.kill(signal.SIGCONT)
    assert (mine + 1).tolist() == [2.0] * 4
    until(lambda: gt.debug.get_worker_stats()["w"]["clients"] == 1, what="the end of that client's work")
    stats = gt.debug.get_worker_stats()["w"]
    assert (int(client.out.split()[-1]) > 0) == (replayed == "1"), "its steps are calls of a trace"
    assert stats["skipped"] > 0 and stats["tensors"] <= 2 and stats["ops"]["matmul"] < done + 200


SHARDED = """
import sys, gt
gt.connect(sys.argv[1])
gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
with gt.signal("rows"):
    x, w = gt.ones(1024, 1024), gt.ones(1024, 1024) / 1024
(x @ w).numpy()
for n in range(200):
    x = x @ w
    if n == 20:
        print("queued", flush=True)
input()
"""


@pytest.mark.usefixtures("disconnected")
@pytest.mark.parametrize(
    "way", ["memory", pytest.param("gloo", marks=pytest.mark.slow), pytest.param("mail", marks=pytest.mark.slow)]
)
def test_killed_clients_leave_collectives_in_step_and_others_values_right(processes: Processes, way: str) -> None:
    _, port = processes.server("--expect", "2")
    for _ in range(2):
        processes.worker(port, GT_COLLECTIVES=way)
    gt.connect(f"localhost:{port}")
    gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
    for round in range(2):
        client = processes.script(SHARDED, f"localhost:{port}").wait_for("queued")
        with gt.signal("rows"):
            x = gt.ones(8, 8) * (round + 1)
        mine = (x.T @ x).sum(axis=0)  # behind and between the ops of that client
        client.kill()
        assert mine.tolist() == [64.0 * (round + 1) ** 2] * 8


COLLECTIVES = """
import sys, gt
gt.connect(sys.argv[1])
gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
gt.register_config("copies", gt.SignalConfig(gt.ShardConfig(replicated=True)))
with gt.signal("rows"):
    x = gt.ones(1024, 1024)
x.sum(axis=0).numpy()
long = gt.ones(1024, 1024)
for _ in range(100):  # the workers' work when the client is killed
    long = long @ x
for n in range(4000):
    gt.signal.tensor(x.sum(axis=0), name="copies")
    if n == 200:
        print("queued", flush=True)
input()
"""


@pytest.mark.usefixtures("disconnected")
@pytest.mark.parametrize("way", ["memory", *(pytest.param(way, marks=pytest.mark.slow) for way in ("gloo", "mail"))])
def test_thousands_of_collectives_of_a_killed_client_are_skipped(processes: Processes, way: str) -> None:
    _, port = processes.server("--expect", "2")
    workers = [processes.worker(port, backend="pytorch", GT_COLLECTIVES=way) for _ in range(2)]
    gt.connect(f"localhost:{port}")
    gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
    with gt.signal("rows"):
        mine = gt.ones(4, 4)
    mine.sum(axis=0).numpy()
    before = done(way)
    client = processes.script(COLLECTIVES, f"localhost:{port}", GT_TRACE="0").wait_for("queued")
    client.kill()
    assert mine.sum(axis=0).tolist() == [4.0] * 4
    assert done(way) < before + 2000  # of 4,100; some were done before it was killed
    assert [w.popen.poll() for w in workers] == [None, None]


def done(way: str) -> int:
    """Collectives that were carried out."""
    return max(stats["collectives"].get(way, 0) for stats in gt.debug.get_worker_stats().values())
