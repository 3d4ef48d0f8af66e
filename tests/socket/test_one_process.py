"""A dispatcher within the process of its only worker: it answers while the worker is inside of a kernel, several clients and a
second worker use it as any other, and the end of its process is told with its reason."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from processes import Processes, until

BACKEND = """
import os, signal, time
from tests.backends.custom_backend import CustomBackend
from gt.worker.engine.custom import CustomEngine

CustomEngine.poisoned = lambda self, error: 'device' in str(error)

class Slow(CustomBackend):
    '''exp of 7 goes on while there is a file `hold`; of 8 it crashes; of 9 the device is lost.'''
    def unary_op(self, result_id, op, input_id):
        number = float(self.tensors[input_id].reshape(-1)[0]) if op == 'exp' else 0.0
        if number == 7:
            open('inside', 'w').close()
            while os.path.exists('hold'): time.sleep(0.01)
        if number == 8:
            os.kill(os.getpid(), signal.SIGSEGV)
        if number == 9:
            raise RuntimeError('the device has fallen off')
        super().unary_op(result_id, op, input_id)
"""
BEGIN = """
import sys, time, gt
from gt.client.default import session
"""


@pytest.fixture
def slow(tmp_path: Path) -> dict[str, str]:
    """The environment of a script whose worker has a kernel that does not end while there is a file `hold`."""
    (tmp_path / "slow.py").write_text(BACKEND)
    (tmp_path / "hold").touch()
    return {"GT_ONE_PROCESS": "1", "GT_BACKEND": "slow:Slow"}


@pytest.mark.parametrize("one", [True, False], ids=["one process", "two"])
def test_the_variable_decides_and_the_counter_tells(processes: Processes, one: bool) -> None:
    script = processes.script(
        BEGIN
        + """
import json
x = gt.arange(4.0)
found = [(x * i).sum().item() for i in range(50)]
worker = gt.debug.get_worker_stats()["auto_worker"]
print(json.dumps([found, worker["inline_runs"], worker["lane_runs"]])); input()
""",
        GT_ONE_PROCESS=str(int(one)),
    ).wait_for("]")
    found, inline, over_lane = json.loads(script.out)
    assert found == [6.0 * i for i in range(50)]
    assert (inline > 20, over_lane > 20) == (one, not one)
    assert len(processes.running()) == (2 if one else 3)
    script.go()
    assert script.ended() == 0, script.err
    until(lambda: not processes.running(), what="no process after the script")


def test_others_are_answered_while_a_kernel_runs(processes: Processes, slow: dict[str, str], tmp_path: Path) -> None:
    """A new client is welcomed, and the script itself may send on."""
    script = processes.script(
        BEGIN
        + """
print(session().link.address, flush=True)
y = gt.tensor([7.0]).exp()
session().flush()
for _ in range(2_000): z = y + 1
session().flush()
print('sent', flush=True)
print('sum', round(z.sum().item(), 1), gt.debug.get_worker_stats()["auto_worker"]["stand_ins"] > 0)
""",
        GT_TRACE="0",
        **slow,
    ).wait_for("sent")
    until((tmp_path / "inside").exists, what="the kernel")
    other = processes.script(
        BEGIN
        + """
from gt.transport.zmq import ZmqLink
print([worker.name for worker in ZmqLink(sys.argv[1], "", 60).welcome.workers])
""",
        script.out.split()[0],
    )
    assert other.ended() == 0, other.err
    assert other.out == "['auto_worker']\n" and "sum" not in script.out
    (tmp_path / "hold").unlink()
    assert script.ended() == 0, script.err
    assert script.out.endswith("sum 1097.6 True\n")


@pytest.mark.parametrize("number, status", [(8, -signal.SIGSEGV), (9, 3)], ids=["a crash", "a lost device"])
def test_the_end_of_the_process_is_told_with_its_reason(
    processes: Processes, slow: dict[str, str], number: int, status: int
) -> None:
    script = processes.script(
        BEGIN
        + f"""
x = gt.ones(3); x.numpy()
try:
    gt.tensor([{number}.0]).exp().item()
except gt.errors.GTError as lost:
    print(type(lost).__name__, str(lost).splitlines()[0])
while True:
    try:
        (x + 1).numpy()
    except gt.errors.WorkerLost:
        pass
    except gt.errors.SessionLost as lost:
        print(lost); break
gt.disconnect()
print(gt.ones(2).tolist())
""",
        **slow,
    )
    assert script.ended() == 0, script.out + script.err
    first, then, again = script.out.splitlines()
    assert "left cpu unusable: the device has fallen off" in first if number == 9 else first.startswith("SessionLost"), first
    assert then == f"the workers started with it have ended (status {status})"
    assert again == "[1.0, 1.0]"


@pytest.mark.parametrize("backend", ["numpy", "pytorch"])  # the other worker may join before one whose engine is slow to load
def test_a_second_worker_joins_and_leaves(processes: Processes, backend: str) -> None:
    script = processes.script(
        BEGIN
        + """
print("at", session().link.address.rsplit("/", 1)[1], flush=True); input()
while len(gt.debug.get_worker_stats()) < 2: time.sleep(0.01)
print([(gt.full((64, 64), float(i)) @ gt.ones(64, 64)).sum().item() / 64**3 for i in range(20)], flush=True); input()
while len(gt.debug.get_worker_stats()) > 1: time.sleep(0.01)
print(gt.ones(2).sum().item())
""",
        GT_ONE_PROCESS="1",
        GT_AUTO_SHARD="1",
        GT_BACKEND=backend,
    ).wait_for("at ")
    until(lambda: script.out.endswith("\n"), what="the name")
    second = processes.start("-m", "gt.worker", "--auto", script.out.split()[1], "--backend", "numpy", GT_VERBOSE="1")
    until(lambda: "is worker " in second.err, what="the second worker")
    script.go()
    script.wait_for("]")
    assert script.out.splitlines()[1] == str([float(i) for i in range(20)])
    second.kill()
    script.go()
    assert script.ended() == 0, script.err
    assert script.out.endswith("2.0\n")
