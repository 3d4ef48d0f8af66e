"""Random programs over overlapping sets of workers, on real processes; and the report of one that stalls."""

from __future__ import annotations

import os
import signal

import pytest
from processes import Processes, until

COLLECTIVES = os.environ.get("TEST_COLLECTIVES", "100")  # a long run asks for 10,000

STRESS = """
import os, random, sys, time
import gt
from gt.config import ShardConfig, SignalConfig
from tests.memory.test_stress import MOVES, program

gt.connect(sys.argv[1])
rng, wanted, names = random.Random(0), int(sys.argv[2]), [f"s{i}" for i in range(6)]
start = time.monotonic()
while True:
    groups = [rng.sample(range(4), rng.randint(1, 4)) for _ in names]
    for name, workers in zip(names, groups):
        gt.register_config(name, SignalConfig(ShardConfig(rng.randint(0, 1), workers, rng.random() < 0.3)))
    program(rng, names, 40)
    workers = gt.debug.get_worker_stats().values()
    done = {move: sum(s["ops"].get(move, 0) for s in workers) for move in MOVES}
    assert not any(s["failures"] or s["dropped"] for s in workers), workers
    assert {way for s in workers for way in s["collectives"]} <= {os.environ["WAY"]}, workers
    if sum(done.values()) >= 4 * wanted:  # each is counted by all who take part, which are four at the most
        break
assert all(done.values()), done
left = [s["tensors"] for s in workers]
assert left == [0] * 4, left
print("at least", sum(done.values()) // 4, "collectives in", round(time.monotonic() - start, 1), "s, parts in them:", done)
"""


@pytest.mark.parametrize("way", ["memory", pytest.param("gloo", marks=pytest.mark.slow)])
def test_random_programs_over_overlapping_workers_end(processes: Processes, way: str) -> None:
    script = processes.script(STRESS, processes.pool(4, "pytorch", GT_COLLECTIVES=way), COLLECTIVES, WAY=way)
    assert script.ended(200 if int(COLLECTIVES) < 1000 else 1200) == 0, script.err[-3000:]
    print(script.out)


FROZEN = """
import sys, warnings, gt
warnings.simplefilter("always")
gt.connect(sys.argv[1])
gt.register_config("all", gt.SignalConfig(gt.ShardConfig(axis=0)))
gt.register_config("two", gt.SignalConfig(gt.ShardConfig(axis=0, workers=[0, 1])))
with gt.signal("all"):
    x = gt.ones(9, 4)
with gt.signal("two"):
    y = gt.ones(6, 4)
x.sum().item(), y.sum().item()
print("begun", flush=True)
input()
total = x.sum()  # the line that stalls
other = y.sum()
print(total.item(), other.item(), flush=True)
"""


def test_a_frozen_worker_is_told_of_and_nothing_is_lost_when_it_goes_on(processes: Processes) -> None:
    """Two of three wait for the third: each tells of its op, its group, itself, the third and the line that asked; then all is
    well."""
    _, port = processes.server("--expect", "3")
    workers = [processes.worker(port, "--id", f"w{i}", GT_STALL_SECONDS="1", GT_COLLECTIVES="mail") for i in range(3)]
    (processes.folder / "frozen.py").write_text(FROZEN)
    script = processes.start("frozen.py", f"localhost:{port}").wait_for("begun")
    workers[2].kill(signal.SIGSTOP)
    script.go()
    for i in (0, 1):
        text = f"all_reduce of workers [0, 1, 2] waits on worker w{i} (index {i}) for more than 1 s"
        text += ": worker w2 (index 2) did not come"
        until(lambda: text in script.err, what=f"{text} in {script.err}")  # noqa: B023
    assert 'frozen.py", line 14' in script.err and "# the line that stalls" in script.err
    assert script.popen.poll() is None and script.out == "begun\n"
    workers[2].kill(signal.SIGCONT)
    assert script.ended() == 0, script.err
    assert script.out.splitlines()[-1] == "36.0 24.0" and "waits on worker w2" not in script.err


STAYS = """
import sys, gt
gt.connect(sys.argv[1])
gt.register_config("all", gt.SignalConfig(gt.ShardConfig(axis=0)))
with gt.signal("all"):
    x = gt.ones(8, 4)
print(x.sum().item(), flush=True)
input()
print(x.sum().item(), (x + 1).sum().item(), flush=True)
"""

LEAVES = """
import sys, gt, numpy as np
gt.connect(sys.argv[1])
gt.register_config("first", gt.SignalConfig(gt.ShardConfig(workers=[0])))
with gt.signal("first"):
    x = gt.from_numpy(np.ones((300, 300), "f4"))
    print(x.sum().item(), flush=True)
    input()
    y = gt.from_numpy(np.ones((300, 300), "f4")) + x
"""


def test_who_leaves_while_a_worker_waits_for_another_stops_nobody(processes: Processes) -> None:
    """Its requests and its departure are behind a collective in the worker's queue: its turn comes when it has left."""
    _, port = processes.server("--expect", "2")
    workers = [processes.worker(port, GT_STALL_SECONDS="1", GT_COLLECTIVES="mail") for _ in range(2)]
    script = processes.script(STAYS, f"localhost:{port}").wait_for("32.0")
    leaving = [processes.script(LEAVES, f"localhost:{port}").wait_for("90000.0") for _ in range(2)]
    workers[1].kill(signal.SIGSTOP)
    script.go()
    until(lambda: "waits on worker" in script.err, what=script.err)
    for other in leaving:
        other.go()
        assert other.ended() == 0, other.err
    workers[1].kill(signal.SIGCONT)
    assert script.ended() == 0, script.err
    assert script.out.splitlines()[-1] == "32.0 64.0"


COMES = """
import sys, gt, numpy as np
gt.connect(sys.argv[1])
gt.register_config("first", gt.SignalConfig(gt.ShardConfig(workers=[0])))
with gt.signal("first"):
    for i in range(3):
        print((gt.from_numpy(np.full((300, 300), float(i))) + 1).mean().item(), flush=True)
"""


def test_who_comes_while_a_worker_stands_still_works_on_another(processes: Processes) -> None:
    """Whether that one shares memory is not known, so bytes are sent."""
    _, port = processes.server("--expect", "2")
    workers = [processes.worker(port) for _ in range(2)]
    workers[1].kill(signal.SIGSTOP)
    script = processes.script(COMES, f"localhost:{port}")
    assert script.ended() == 0, script.err
    assert script.out == "1.0\n2.0\n3.0\n"
    workers[1].kill(signal.SIGCONT)
