"""Forks of a process that uses GT: the child touches nothing of its parent's, ends at once, and has a session of its own."""

from __future__ import annotations

import signal

import psutil
import pytest
from processes import Processes, until

BEGIN = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, about forks of a process with threads
import numpy as np, gt
if len(sys.argv) > 1: gt.connect(sys.argv[1])
x = gt.tensor([1.0, 2.0]); x.numpy()

def forked(body):
    pid = os.fork()
    if pid == 0:
        body()
        sys.exit(0)  # through atexit, as a script ends
    return pid

def ended(pid):
    end = time.monotonic() + 120
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9); os.waitpid(pid, 0)
    return "hangs"
"""


def fine(processes: Processes, body: str, *args: str) -> str:
    script = processes.script(BEGIN + body, *args)
    assert script.ended(60) == 0, script.out + script.err
    return script.out


def test_a_child_that_uses_nothing_ends_at_once_and_leaves_the_parent_its_workers(processes: Processes) -> None:
    out = fine(processes, "print([ended(forked(lambda: None)) for _ in range(3)], (x + 1).tolist())")
    assert out == "[0, 0, 0] [2.0, 3.0]\n"


def test_a_child_has_a_session_of_its_own_with_its_parent_s_dispatcher(processes: Processes) -> None:
    body = """
def child():
    y = gt.tensor([3.0]) * 2
    assert y.tolist() == [6.0] and (gt.ones(3) + y).tolist() == [7.0] * 3
    assert gt.debug.get_worker_stats()["auto_worker"]["clients"] >= 2
    big = np.arange(100_000.0); assert (gt.tensor(big) + 1).numpy().sum() == (big + 1).sum()
print([ended(p) for p in [forked(child) for _ in range(3)]], (x + 1).tolist())
while gt.debug.get_worker_stats()["auto_worker"]["clients"] > 1: time.sleep(0.01)
"""
    assert fine(processes, body) == "[0, 0, 0] [2.0, 3.0]\n"


def test_the_parent_s_tensors_are_a_clear_error_in_the_child_before_and_after_its_first_op(processes: Processes) -> None:
    body = """
def child(begun=False):
    if begun: gt.ones(2).numpy()
    for use in (x.numpy, lambda: x + 1, lambda: (gt.ones(2) + x).numpy(), lambda: x.sum().item()):
        try:
            print("no error", use())
        except gt.errors.SessionLost as lost:
            assert "forked" in str(lost) and str(os.getppid()) in str(lost), lost
    print("told", flush=True)
print(ended(forked(child)), ended(forked(lambda: child(True))), (x + 1).tolist())
"""
    assert fine(processes, body) == "told\ntold\n0 0 [2.0, 3.0]\n"


def test_a_child_may_fork_while_other_threads_hold_every_lock(processes: Processes) -> None:
    """Threads read and load without a pause; whatever they hold at that moment stays held in the child's copy."""
    body = """
from gt.client import default
session, stop = default.session(), threading.Event()
def busy():
    a = np.ones(1000)
    while not stop.is_set():
        assert (gt.tensor(a) * 2).numpy()[0] == 2
threads = [threading.Thread(target=busy) for _ in range(3)]
for t in threads: t.start()
def child():
    assert (gt.tensor([3.0]) + 1).tolist() == [4.0]
def hold(locks, then):
    if not locks: return then()
    with locks[0]: return hold(locks[1:], then)
def holder(ready, go):
    link = session.link
    locks = [default._lock, session.lock, session.window.lock, link.workers.changed, link.memory.pool.lock, link.memory.passing]
    hold(locks, lambda: (ready.set(), go.wait()))
found = [ended(forked(child)) for _ in range(4)]
ready, go = threading.Event(), threading.Event()
thread = threading.Thread(target=holder, args=(ready, go)); thread.start(); ready.wait()
pid = forked(child)
go.set(); thread.join()
found.append(ended(pid))
stop.set()
for t in threads: t.join()
print(found, (x + 1).tolist())
"""
    assert fine(processes, body) == "[0, 0, 0, 0, 0] [2.0, 3.0]\n"


def test_multiprocessing_with_fork_and_gt_s_own_loader_work(processes: Processes) -> None:
    body = """
import multiprocessing
from gt.data import DataLoader
data = [np.full(2, i, "f4") for i in range(8)]
def totals(): return [b.sum().item() for b in DataLoader(data, batch_size=4, num_workers=2)]
def work(i):
    return (gt.full((2,), float(i)) * 2).tolist() if i % 2 else totals()
print(totals())
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(work, range(4)), (x + 1).tolist())
"""
    sums = [12.0, 44.0]
    assert fine(processes, body) == f"{sums}\n{[sums, [2.0, 2.0], sums, [6.0, 6.0]]} [2.0, 3.0]\n"


def test_a_loader_of_pytorch_with_forked_workers_may_give_arrays_and_compute(processes: Processes) -> None:
    body = """
from torch.utils.data import DataLoader
class Data:
    def __len__(self): return 8
    def __getitem__(self, i):
        return np.full(2, i, "f4") if i % 2 else (gt.full((2,), float(i)) * 1).numpy()
for loader in (DataLoader(Data(), batch_size=4, num_workers=2, multiprocessing_context="fork"),):
    print([(gt.tensor(batch.numpy()) + 1).sum().item() for batch in loader], (x + 1).tolist())
"""
    assert fine(processes, body) == "[20.0, 52.0] [2.0, 3.0]\n"


def test_a_child_that_lives_on_does_not_hide_its_parent_s_end(processes: Processes) -> None:
    """It has copies of its parent's connections, which the kernel would keep open for it."""
    server, port = processes.server()
    processes.worker(port)
    body = """
pid = forked(lambda: (print("child", flush=True), time.sleep(60)))
(x + 1).numpy(); print("parent", pid, flush=True); time.sleep(60)
"""
    script = processes.script(BEGIN + body, f"localhost:{port}").wait_for("parent").wait_for("child")
    child = int(script.out.split("parent ")[1].split()[0])
    script.kill()
    until(lambda: " left" in server.err, 3, "the parent's end is seen")
    assert psutil.pid_exists(child)
    psutil.Process(child).send_signal(signal.SIGKILL)


@pytest.mark.parametrize("children", [1, 2])
def test_a_child_that_outlives_its_parent_s_own_dispatcher_begins_another(processes: Processes, children: int) -> None:
    body = """
import psutil
theirs = psutil.Process().children(recursive=True)
def lives(process):
    try: return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess: return False
def child():
    while any(map(lives, theirs)): time.sleep(0.01)  # the parent's dispatcher and worker end after it
    print(len(theirs), (gt.ones(2) + 1).tolist(), flush=True)
forked(child)
"""
    script = processes.script(BEGIN + body, GT_ONE_PROCESS=str(2 - children))
    until(lambda: script.out == f"{children} [2.0, 2.0]\n", what=script.err)
