"""Questions that wait at a worker of another process until they are asked: the same numbers, errors where processes end, and
nothing for others to lose by a client's bad Starts."""

from __future__ import annotations

import json
import signal

import pytest
from early import SENT, raises_when_its_worker_dies, with_and_without
from processes import Processes

from gt.transport import shm

pytestmark = [
    pytest.mark.default("GT_TRACE", "GT_AUTO_COMPILE", "GT_WORKER_BATCH_SIZE"),
    pytest.mark.skipif(not shm.supported(), reason="no lanes here"),
]
SCRIPT = """
import json, sys, threading, time
import numpy as np, gt
from gt.client import questions_ahead
from gt.client.here import here
questions_ahead.LEAST, questions_ahead.cpu_count = 1, lambda: 2
gt.connect(sys.argv[1])
counts = here().session.tracer.early.counts
w = gt.tensor(np.arange(12.0, dtype="f4").reshape(4, 3) / 12)

def asked(times, found, seed, pause=0.0):
    rng = np.random.default_rng(seed)
    for i in range(times):
        x = rng.standard_normal((1, 4)).astype("f4")
        h = (gt.tensor(x) @ w).tanh()
        found.append((h * 2 + 1).sum().item())
        if pause: time.sleep(pause)
        if i == 40 and threading.current_thread() is threading.main_thread(): print("begun", flush=True)
    return found
"""
NUMBERS = """
found = {"alone": asked(300, [], 0), "slow": asked(60, [], 1, 0.01)}
a, found["paused"] = gt.full((8, 8), 0.5), []
for i in range(60):
    found["paused"].append((a @ a).sum().item())
    time.sleep(0.01)
found["threads"] = [[] for _ in range(3)]
threads = [threading.Thread(target=asked, args=(50, mine, n)) for n, mine in enumerate(found["threads"])]
for t in threads: t.start()
for t in threads: t.join()
stats = here().session.ask("stats")
assert not here().session.replies
print(json.dumps(found)); print(json.dumps([counts, next(iter(stats["workers"].values()))["deferred_runs"]]))
"""


@pytest.mark.parametrize("backend", ["numpy", "pytorch"])
def test_the_same_numbers_as_without(processes: Processes, backend: str) -> None:
    (deferred, (counts, runs)), (plain, (none, _)) = with_and_without(processes, SCRIPT + NUMBERS, backend, **SENT)
    assert deferred == plain and counts["deferred"] == runs > 30 and not none


def test_two_clients_beside_a_busy_one(processes: Processes) -> None:
    where = processes.pool(1, "pytorch")
    busy = "a = gt.full((256, 256), 0.5)\nprint('begun', flush=True)\nwhile True: a = (a @ a).tanh()"
    processes.script(SCRIPT + busy, where).wait_for("begun")
    scripts = [processes.script(SCRIPT + NUMBERS, where, **SENT) for _ in range(2)]
    found = []
    for script in scripts:
        assert script.ended(240) == 0, script.err[-3000:]
        found.append([json.loads(line) for line in script.out.splitlines() if line != "begun"])
    assert found[0][0] == found[1][0] and all(counts["deferred"] for _, (counts, _) in found)


def test_a_worker_that_dies_is_an_error_at_the_next_question(processes: Processes) -> None:
    raises_when_its_worker_dies(processes, SCRIPT + "asked(10**9, [], 0)")


def test_a_worker_that_joins_and_one_that_leaves_cost_no_question(processes: Processes) -> None:
    _, port = processes.server("--workers", "0")
    first = processes.worker(port)
    loop = """
n, found = {"1": 60, "2": 200, "3": 200}, []
for step in n:
    found.append(asked(n[step], [], 0))
    print("did " + step, flush=True)
    sys.stdin.readline()
print(json.dumps(found))
"""
    script = processes.script(SCRIPT + loop, f"localhost:{port}").wait_for("did 1")
    processes.worker(port)
    script.go()
    script.wait_for("did 2")
    first.kill(signal.SIGTERM)
    script.go()
    script.wait_for("did 3")
    assert first.ended() == 0
    script.go()
    assert script.ended() == 0, script.err[-2000:]
    one, two, three = json.loads(script.out.splitlines()[-1])
    assert two == three and two[:60] == one


@pytest.mark.parametrize("wrong", ["b'\\xc1' * 10", "encode(Start(10**6))", "encode(Start(10**6)) * 2", "b'x' * 40000"])
def test_starts_that_start_nothing_cost_their_client_alone(processes: Processes, wrong: str) -> None:
    """Nor that client more than its lane, as one that is not to be believed."""
    where = processes.pool(1)
    bad = f"""
from gt.transport.messages import Start, encode
found = asked(60, [], 0)
(_, lane), = here().session.link.lanes.workers.values()
try:
    for _ in range(3): lane.send({wrong})
except OSError: pass  # the worker has ended the lane
print(json.dumps([found, asked(60, [], 0)]))
"""
    other = processes.script(SCRIPT + NUMBERS, where, **SENT)
    script = processes.script(SCRIPT + bad, where)
    for each in script, other:
        assert each.ended() == 0, each.err[-3000:]
    before, after = json.loads(script.out.splitlines()[-1])
    assert before == after and json.loads(other.out.splitlines()[-1])[1] > 30
