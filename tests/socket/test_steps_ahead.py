"""Steps sent ahead by a client of real processes: the same numbers, freed after the loop, an error where the worker dies."""

from __future__ import annotations

import json

import pytest
from early import SENT, raises_when_its_worker_dies, with_and_without
from processes import Processes

pytestmark = pytest.mark.default("GT_TRACE", "GT_AUTO_COMPILE", "GT_WORKER_BATCH_SIZE")
SCRIPT = """
import json, sys, threading, time
import numpy as np, gt
from gt.client.here import here
from gt.transport.receiving import Pause
gt.connect(sys.argv[1])
session = here().session
steps = session.steps
steps.clock = float  # on a busy machine steps may take long

class Patient:  # a pause is one of many looks: a slow machine takes several for a step
    pauses, written, looks = session.pauses, -1, 0

    def look(self, written, busy=0.0):
        self.written, self.looks = written, self.looks + 1 if written == self.written else 0
        return self.pauses.look(written, busy) if self.looks > 50 else Pause.NONE

session.pauses = Patient()
matrix = gt.tensor(np.arange(36.0, dtype="f4").reshape(6, 6) / 36)

def power(times, found, other=0.0):
    v = gt.ones(6) + other
    for i in range(times):
        w = matrix @ v
        size = gt.linalg.vector_norm(w)
        v = w / size
        found.append(size.item())
        if i == 200: print("begun", flush=True)
    return found
"""
NUMBERS = """
found = {"alone": power(300, []), "short": [power(20, [], n) for n in range(8)], "threads": [[] for _ in range(3)]}
sent = dict(steps.counts)
threads = [threading.Thread(target=power, args=(100, mine, n)) for n, mine in enumerate(found["threads"])]
for t in threads: t.start()
for t in threads: t.join()
v, found["last"] = gt.ones(6), []
power(60, found["last"])
end = time.monotonic() + 60
while steps.sent and time.monotonic() < end: time.sleep(0.01)
waiting = session.asks.deferred.waiting  # on a slow machine a step is a question after a pause, and the next may wait
known = [reply for reply, _ in session.ahead.asked.values()] + [*(waiting.asked.replies.values() if waiting else ())]
assert not steps.sent and not session.replies.ahead.keys() - {reply.ticket for reply in known}
print(json.dumps(found)); print(json.dumps(sent))
"""


@pytest.mark.parametrize("backend", ["numpy", "pytorch"])
def test_the_same_numbers_and_all_freed_where_the_loop_ends(processes: Processes, backend: str) -> None:
    (ahead, counts), (plain, none) = with_and_without(processes, SCRIPT + NUMBERS, backend, **SENT)
    assert ahead == plain and counts["right"] > 300 and not none


def test_a_worker_that_dies_in_the_loop_is_an_error(processes: Processes) -> None:
    raises_when_its_worker_dies(processes, SCRIPT + "power(10**9, [])")


WAITING = """
import os, signal
looks, worker, paused = [], int(sys.argv[2]), session.paused
session.paused = lambda: (looks.append(0), paused())
v, found = gt.ones(6), []

def go_on(seen):
    time.sleep(2)
    seen.append(len(looks))
    os.kill(worker, signal.SIGCONT)

for i in range(300):
    size = gt.linalg.vector_norm(matrix @ v)
    v = matrix @ v / size
    if i == 200:
        assert steps.loop is not None
        os.kill(worker, signal.SIGSTOP)
        looks.clear()
        waiting = threading.Thread(target=go_on, args=(found,))
        waiting.start()
    size.item()
waiting.join()
end = time.monotonic() + 60
while (steps.sent or steps.loop) and time.monotonic() < end: time.sleep(0.01)
assert not steps.sent and not steps.loop
print(json.dumps(found))
"""


def test_a_reader_that_waits_is_not_disturbed_and_all_is_freed_behind_it(processes: Processes) -> None:
    """Many clients that wait would take the cores from the one that is served."""
    _, port = processes.server()
    worker = processes.worker(port)
    script = SCRIPT.replace("session.pauses = Patient()", "") + WAITING
    client = processes.script(script, f"localhost:{port}", str(worker.pid))
    assert not client.ended(), client.err
    [looks] = json.loads(client.out)
    assert looks < 40, "its timer fires each millisecond otherwise"
