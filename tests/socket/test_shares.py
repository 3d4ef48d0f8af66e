"""Many clients on one worker: none waits for another's whole queue, and each gets its own values."""

from __future__ import annotations

import psutil
import pytest
from processes import Processes

import gt
from gt.client.window import WINDOW

GREEDY = """
import sys, gt
gt.connect(sys.argv[1])
gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
with gt.signal(sys.argv[2]):
    n = int(sys.argv[4])
    x, w = gt.ones(n, n), gt.ones(n, n) / n
(x @ w).numpy()
print("queued", flush=True)  # from here on there is always work for seconds, as much as may be in flight
for _ in range(int(sys.argv[3])):
    x = x @ w
print("sum", x[0, 0].item(), flush=True)
"""


@pytest.mark.usefixtures("disconnected")
@pytest.mark.parametrize("replayed", ["0", "1"], ids=["instructions", "traces"])
def test_a_client_is_served_while_another_has_a_long_queue(processes: Processes, replayed: str) -> None:
    _, port = processes.server()
    processes.worker(port, "--id", "w")
    asked = {"GT_WEIGHT": "2", "GT_PRIORITY": "batch", "GT_MEMORY": "1GB", "GT_TRACE": replayed}
    client = processes.script(GREEDY, f"localhost:{port}", "none", "1500", "1024", **asked).wait_for("queued")
    gt.connect(f"localhost:{port}", weight=2, priority="interactive", memory="20MB")
    for n in range(20):
        assert (gt.ones(4) + n).tolist() == [1.0 + n] * 4
    stats, rows = gt.debug.get_worker_stats()["w"], gt.debug.clients()
    assert sorted((row["weight"], row["memory"]) for row in rows) == [(0.5, 1 << 30), (8.0, 20 << 20)]
    assert "sum" not in client.out, "the other's whole queue was done first"
    assert stats["preemptions"] > 0 and len(stats["shares"]) == 2 and sum(s["share"] for s in stats["shares"].values()) > 0.99
    client.kill()


LONG_KERNELS = """
import sys, gt
gt.connect(sys.argv[1])
x = gt.ones(2048, 2048)
w = x / 2048
(x @ w).numpy()
print("queued", flush=True)
for n in range(3):
    y = x
    for _ in range(4):
        y = y @ w
    assert (y.numpy() == 1.0).all(), n  # 17 billion products in each
print("sum right", flush=True)
"""


@pytest.mark.default("GT_WORKER_BATCH_SIZE")  # units are left between two kernels alone
@pytest.mark.usefixtures("disconnected")
def test_short_questions_are_answered_inside_of_another_client_s_long_kernels(processes: Processes) -> None:
    _, port = processes.server()
    processes.worker(port, "--id", "w", backend="pytorch")
    gt.connect(f"localhost:{port}")
    a = gt.ones(4)
    client = processes.script(LONG_KERNELS, f"localhost:{port}").wait_for("queued")
    asked = 0
    while "sum" not in client.out and client.popen.poll() is None:
        asked += 1
        assert (a + asked).tolist() == [1.0 + asked] * 4
    client.wait_for("sum right")
    stats = gt.debug.get_worker_stats()["w"]
    assert asked and stats["short_runs"] > 0


@pytest.mark.usefixtures("disconnected")
def test_single_worker_clients_overtake_and_collectives_stay_in_order(processes: Processes) -> None:
    _, port = processes.server("--expect", "2")
    for _ in range(2):
        processes.worker(port)
    first = processes.script(GREEDY, f"localhost:{port}", "rows", "40", "128").wait_for("queued")
    second = processes.script(GREEDY, f"localhost:{port}", "rows", "40", "128").wait_for("queued")
    gt.connect(f"localhost:{port}")
    gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
    for n in range(10):
        with gt.signal("rows"):
            x = gt.ones(8, 8) * n
        assert (x.sum() + gt.ones(1)).tolist() == [64.0 * n + 1]
    for client in (first, second):
        client.wait_for("sum 1.0")


DISTRIBUTED = """
import sys, gt
gt.connect(sys.argv[1])
gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
for n in range(int(sys.argv[2])):
    with gt.signal("rows"):
        x = gt.full((8, 8), float(n % 7))
    found = (x @ x).sum().item()
    assert found == 512.0 * (n % 7) ** 2, (n, found)
print("rounds", n + 1, flush=True)
"""

SINGLE = """
import random, sys, gt
gt.connect(sys.argv[1])
draw = random.Random(int(sys.argv[2]))
print("busy", flush=True)
while True:
    n, steps = draw.choice((1, 16, 200)), draw.randrange(1, 40)
    x = gt.zeros(n, n)
    for _ in range(steps):
        x = x + 1.0
    if draw.random() < 0.3:
        assert x[0, 0].item() == steps
"""


@pytest.mark.slow
@pytest.mark.usefixtures("disconnected")
def test_two_distributed_clients_and_random_ones_of_one_worker_run_a_thousand_rounds(processes: Processes) -> None:
    _, port = processes.server("--expect", "2")
    for _ in range(2):
        processes.worker(port)
    beside = [processes.script(SINGLE, f"localhost:{port}", str(n)).wait_for("busy") for n in range(3)]
    distributed = [processes.script(DISTRIBUTED, f"localhost:{port}", "1000") for _ in range(2)]
    for client in distributed:
        client.wait_for("rounds 1000", 600)
    assert [client.popen.poll() for client in beside] == [None] * 3, [client.err for client in beside]


NEVER_READS = """
import sys, gt
gt.connect(sys.argv[1])
x, most, n = gt.ones(64, 64), dict.fromkeys(gt.debug.in_flight(), 0.0), 0
while True:
    x, n = x * 0.5, n + 1
    if n % 64 == 0:
        most = {key: max(value, gt.debug.in_flight()[key]) for key, value in most.items()}
    if n % 20_000 == 0:
        print("sent", n, "most", most["instructions"], most["waits"], flush=True)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("disconnected")
@pytest.mark.parametrize("replayed", ["0", "1"], ids=["instructions", "traces"])
def test_a_client_that_never_reads_waits_in_its_own_process_and_fills_no_other(processes: Processes, replayed: str) -> None:
    server, port = processes.server()
    worker = processes.worker(port)
    others = [psutil.Process(process.pid) for process in (server, worker)]
    client = processes.script(NEVER_READS, f"localhost:{port}", GT_TRACE=replayed).wait_for("sent 60000 ")
    before = [process.memory_info().rss for process in others]
    client.wait_for("sent 300000 ", 300)
    grown = [process.memory_info().rss - rss for process, rss in zip(others, before)]
    *_, most, waits = client.out.splitlines()[-1].split()
    assert float(most) <= WINDOW + 4096 and float(waits) > 0, client.out
    assert max(grown) < 16 << 20, grown
    gt.connect(f"localhost:{port}")
    rows = {row["process"].split(":")[-1]: row for row in gt.debug.clients()}
    busy = rows[str(client.pid)]
    assert busy["queue"] + busy["held"] <= WINDOW + 4096, busy


MANY = """
import sys, threading, gt
from gt.client.default import _over
from gt.client.scope import HERE, Scope
from gt.transport.addresses import address_of
from gt.transport.zmq import ZmqLink

server, first, clients, reads = sys.argv[1], *map(int, sys.argv[2:])
done = [0] * clients
when_the_first_ended, failed = [], []

def client(place):  # a session of its own
    session = _over(ZmqLink(address_of(server, 60.0), "", 60.0))
    HERE.scope = Scope(session)
    try:
        me = 1000.0 * (first + place)
        for n in range(reads):
            found = (gt.full((3,), me) + n).tolist()
            if found != [me + n] * 3:
                failed.append((me, n, found))
            done[place] += 1
        when_the_first_ended.append(min(done))
    finally:
        session.close()

threads = [threading.Thread(target=client, args=(place,)) for place in range(clients)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print("right" if not failed and done == [reads] * clients else failed[:3], "least", when_the_first_ended[0], flush=True)
"""


def many_clients(processes: Processes, scripts: int, clients: int, reads: int) -> list[int]:
    """Clients of one worker, some in each script; the reads that the slowest had made when a script's first had ended."""
    _, port = processes.server()
    processes.worker(port)
    counts = (str(clients), str(reads))
    made = [processes.script(MANY, f"localhost:{port}", str(clients * n), *counts) for n in range(scripts)]
    return [int(script.wait_for("right least ", 600).out.split()[-1]) for script in made]


@pytest.mark.usefixtures("disconnected")
def test_each_of_many_clients_reads_its_own_values(processes: Processes) -> None:
    many_clients(processes, 2, 8, 25)


@pytest.mark.slow
@pytest.mark.usefixtures("disconnected")
def test_64_clients_read_a_thousand_times_and_none_starves(processes: Processes) -> None:
    least = many_clients(processes, 4, 16, 1000)
    assert min(least) > 100, least


@pytest.mark.usefixtures("disconnected")
def test_memory_of_an_idle_client_is_moved_to_the_host_and_back(processes: Processes) -> None:
    _, port = processes.server()
    processes.worker(port, "--id", "w", GT_DEVICE_MEMORY="8MB", GT_HOST_MEMORY="64MB")
    script = """
import sys, gt
gt.connect(sys.argv[1])
held = [gt.ones(512, 1024) * n for n in range(3)]
print("made", held[2][0, 0].item(), flush=True)
sys.stdin.readline()
print("sums", [x.mean().item() for x in held], flush=True)
"""
    idle = processes.script(script, f"localhost:{port}").wait_for("made 2.0")
    gt.connect(f"localhost:{port}")
    mine = [gt.ones(512, 1024) * n for n in range(3)]
    assert [x.mean().item() for x in mine] == [0.0, 1.0, 2.0]
    stats, rows = gt.debug.get_worker_stats()["w"], gt.debug.clients()
    assert stats["moved_to_host"] > 0 and stats["host_bytes"] > 0 and {row["moved"] > 0 for row in rows} == {True, False}
    idle.go()
    idle.wait_for("sums [0.0, 1.0, 2.0]")
    assert gt.debug.get_worker_stats()["w"]["moved_back"] > 0
