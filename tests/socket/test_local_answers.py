"""Questions answered in a client of real processes: the same numbers, an error where the worker dies, nothing kept in vain."""

from __future__ import annotations

import pytest
from early import raises_when_its_worker_dies, with_and_without
from processes import Processes, until

from gt.small import NATIVE

pytestmark = [
    pytest.mark.default("GT_LOCAL_ANSWERS", "GT_AUTO_COMPILE"),
    pytest.mark.skipif(NATIVE is None, reason="without the parts in C no question is answered in the client"),
]
SCRIPT = """
import json, os, sys, threading, time
import numpy as np, gt
from gt.client.here import here
gt.connect(sys.argv[1])
counts = here().session.local.counts
w = gt.tensor(np.arange(12.0, dtype="f4").reshape(4, 3) / 12)

def asked(times, found, seed=0, pause=0.0):
    rng, h = np.random.default_rng(seed), gt.zeros(1, 3)
    for i in range(times):
        h = (gt.tensor(rng.standard_normal((1, 4)).astype("f4")) @ w + h).tanh()
        found.append((h * 2 + 1).sum().item())
        if i % 50 == 49: found.append(h.std().item())  # sent, as it is no step of a run
        if pause: time.sleep(pause)
        if i == 40 and threading.current_thread() is threading.main_thread(): print("begun", flush=True)
    return found
"""
NUMBERS = """
found = {"alone": asked(300, [], 0), "slow": asked(30, [], 1, 0.01), "threads": [[] for _ in range(3)]}
alone = dict(counts)
threads = [threading.Thread(target=asked, args=(100, mine, n)) for n, mine in enumerate(found["threads"])]
for t in threads: t.start()
for t in threads: t.join()
if (child := os.fork()) == 0:
    try: w.sum().item()
    except gt.errors.SessionLost: os._exit(0)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
asked(10, [], 7)
[stats] = gt.debug.get_worker_stats().values()
print(json.dumps(found)); print(json.dumps([alone, stats["tensors"]]))
"""


@pytest.mark.parametrize("backend", ["numpy", "pytorch"])
def test_the_same_numbers_as_without(processes: Processes, backend: str) -> None:
    (here, (counts, left)), (plain, (none, _)) = with_and_without(processes, SCRIPT + NUMBERS, backend, "GT_LOCAL_ANSWERS")
    assert here == plain and not none and left == 1
    assert counts["answers"] > 250 if backend == "pytorch" else not counts


def test_a_worker_that_dies_is_an_error(processes: Processes) -> None:
    raises_when_its_worker_dies(processes, SCRIPT + "asked(10**9, [])", "pytorch")


def test_an_instruction_log_has_all_instructions(processes: Processes) -> None:
    log = processes.folder / "log"
    _, port = processes.server("--expect", "1", "--log-file", str(log))
    processes.worker(port, backend="pytorch")
    address = f"localhost:{port}"
    script = processes.script(SCRIPT + "asked(100, [], 0); print(json.dumps(counts)); gt.debug.get_worker_stats()", address)
    assert script.ended() == 0 and script.out.splitlines()[-1] == "{}", script.err[-2000:]
    until(lambda: log.read_text().count("tanh") >= 100)
