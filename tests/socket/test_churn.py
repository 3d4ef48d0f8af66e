"""Workers come and are killed while two clients compute on all of them: each value is right or lost, nobody hangs, and nothing
is left behind."""

from __future__ import annotations

import os
import random
import time

import pytest
from processes import WAYS, Processes

SECONDS = float(os.environ.get("TEST_CHURN", 5))  # a long run asks for more

PROGRAMS = """
import gc, random, sys, time, warnings
import gt
from gt.config import ShardConfig, SignalConfig
from tests.memory.test_stress import program

warnings.filterwarnings("ignore", message="signal .* asks for workers that are not there")
gt.connect(sys.argv[1])
rng, end, names = random.Random(int(sys.argv[2])), time.monotonic() + float(sys.argv[3]), [f"s{i}" for i in range(6)]
rounds = read = 0
while time.monotonic() < end or rounds < 4:  # the last of them when no more are killed
    for name in names:
        workers = rng.sample(range(12), rng.randint(1, 4)) if rng.random() < 0.7 else None
        gt.register_config(name, SignalConfig(ShardConfig(rng.randint(0, 1), workers, rng.random() < 0.3)))
    read += program(rng, names, rng.choice([3, 10, 40]), (gt.errors.WorkerLost,))
    rounds += 1
print(rounds, read, flush=True)
input()  # the other one is through, too
gc.collect()  # an error that was raised holds the frames it came through, and with them tensors
gt.debug.get_worker_stats()  # behind the frees
print("freed", flush=True)
input()  # the other one's are freed, too: workers do not carry out one client's work before another's
print([s["tensors"] for s in gt.debug.get_worker_stats().values()], flush=True)
input()
"""


# By mail workers load no PyTorch; kills in the midst of the other ways are in test_sharded.py, too.
@pytest.mark.parametrize("way", [pytest.param(way, marks=[pytest.mark.slow] if way != "mail" else []) for way in WAYS])
def test_workers_come_and_go(processes: Processes, way: str) -> None:
    rng = random.Random(0)
    _, port = processes.server("--expect", "3")
    workers = [processes.worker(port, GT_COLLECTIVES=way) for _ in range(3)]
    clients = [processes.script(PROGRAMS, f"localhost:{port}", str(i), str(SECONDS)) for i in range(2)]
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(rng.uniform(0.5, 2.0))
        workers.pop(rng.randrange(len(workers))).kill()
        while len(workers) < 3:
            workers.append(processes.worker(port, GT_COLLECTIVES=way))
    for client in clients:
        client.wait_for("\n", 60)
        rounds, read = map(int, client.out.split())
        assert 0 < read <= 4 * rounds, client.out + client.err
    for client in clients:
        client.go()
    for client in clients:
        client.wait_for("freed")
    for client in clients:
        client.go()
    for client in clients:
        client.wait_for("[0, 0, 0]\n")
        client.go()
        assert client.ended() == 0, client.err
