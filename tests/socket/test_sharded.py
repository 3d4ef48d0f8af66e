"""Shards on real processes: collectives by every way, bytes in pieces, launchers, workers that go away."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest
from processes import WAYS, Processes, until

PROGRAM = """
import os, sys, numpy as np, gt
from gt.nn import Module, Linear, SGD
gt.connect(sys.argv[1])
C, S = gt.SignalConfig, gt.ShardConfig
gt.register_config("batch", C(S(axis=0)))
gt.register_config("columns", C(S(axis=1)))
gt.register_config("copies", C(S(replicated=True)))
gt.register_config("one", C(S(workers=[1])))
rng = np.random.default_rng(0)
a, b, c = (rng.normal(size=s).astype("f4") for s in [(7, 5), (5, 6), (6, 3)])

def same(t, want):
    np.testing.assert_allclose(t.numpy(), want, rtol=1e-4, atol=1e-5)

with gt.signal("batch"):
    x = gt.from_numpy(a)                      # uneven pieces
with gt.signal("columns"):
    w = gt.from_numpy(b)
with gt.signal("copies"):
    v = gt.from_numpy(c)
same(x, a); same(w, b); same(v, c)
same(x @ w, a @ b)                            # gathers
same((x @ w) @ v, a @ b @ c)
same(x.sum(axis=0), a.sum(0))                 # reduces
same(gt.signal.tensor(x, name="columns"), a)  # all to all
same(gt.signal.tensor(w, name="one"), b)      # to one worker
same(gt.signal.tensor(x.amax(axis=0), name="batch"), a.max(0))
for dtype in ("float64", "int64", "int32", "uint8", "bool", "float16", "int16"):
    z = (a > 0).astype(dtype)
    with gt.signal("batch"):
        t = gt.from_numpy(z)
    same(gt.signal.tensor(t, name="columns"), z)
    same(t.sum(axis=0), z.astype("int64" if dtype != "float16" and dtype != "float64" else dtype).sum(0))
with gt.signal("batch"):
    e = gt.ones(1, 3)                         # one piece is empty
same(e * 2, np.full((1, 3), 2.0)); same(e.sum(), 3.0)
with gt.signal("batch"):
    few = gt.from_numpy(a[:2, :3])
same(gt.signal.tensor(few.T, name="batch"), a[:2, :3].T)  # a piece of one element, with a stride
big = rng.normal(size=(1000, 700)).astype("f4")
with gt.signal("batch"):
    same(gt.from_numpy(big), big)

class MLP(Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = Linear(12, 16), Linear(16, 5)
    def forward(self, x):
        return self.fc2(self.fc1(x).relu())

def losses(parameters, batch):
    gt.manual_seed(0)
    rng = np.random.default_rng(0)
    with gt.signal(parameters):
        model = MLP()
    opt = SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(5):
        X, Y = rng.normal(size=(10, 12)).astype("f4"), rng.normal(size=(10, 5)).astype("f4")
        with gt.signal(batch):
            loss = ((model(gt.from_numpy(X)) - gt.from_numpy(Y)) ** 2).mean()
        loss.backward(); opt.step(); opt.zero_grad()
        found.append(loss.item())
    return found

np.testing.assert_allclose(losses("copies", "batch"), losses("one", "one"), rtol=1e-5)
np.testing.assert_allclose(losses("batch", "batch"), losses("one", "one"), rtol=1e-5)
stats = gt.debug.get_worker_stats()
print(sorted(s["ops"].get("all_reduce", 0) > 0 for s in stats.values()), x.placement, "fine")
ways = {way for s in stats.values() for way in s["collectives"]}
assert ways == {os.environ.get("WAY") or "memory"} and all(s["collectives"] for s in stats.values()), ways
"""


FIRST = [("memory", "numpy"), ("gloo", "pytorch"), ("mail", "numpy")]  # the other pairs by `make test-all`
PAIRS = [(way, backend) for way in WAYS for backend in ("numpy", "pytorch")]


@pytest.mark.parametrize("way, backend", [*FIRST, *(pytest.param(*p, marks=pytest.mark.slow) for p in PAIRS if p not in FIRST)])
def test_programs_on_shards_give_the_right_numbers(processes: Processes, backend: str, way: str) -> None:
    script = processes.script(PROGRAM, processes.pool(2, backend, GT_COLLECTIVES=way), WAY=way)
    assert script.ended(200) == 0, script.err[-3000:]
    assert script.out == "[True, True] Shard(0) on [0, 1] fine\n", script.out + script.err


def test_a_way_that_is_not_known_is_refused(processes: Processes) -> None:
    worker = processes.start("-m", "gt.worker", "-p", "1", "--backend", "numpy", GT_COLLECTIVES="glo")
    assert worker.ended() == 1 and worker.err == "gt-worker: GT_COLLECTIVES='glo': expected one of memory, gloo, mail\n"


HOSTS = """
import sys, numpy as np, gt
gt.connect(sys.argv[1])
gt.register_config("batch", gt.SignalConfig(gt.ShardConfig(axis=0)))
a = np.random.default_rng(0).normal(size=(8, 30000)).astype("f4")
with gt.signal("batch"):
    x = gt.from_numpy(a)
np.testing.assert_allclose(x.sum(axis=0).numpy(), a.sum(0), rtol=1e-5, atol=1e-5)
stats = gt.debug.get_worker_stats().values()
crossed = sum(s["mailed"].get("other hosts", 0) for s in stats)
print(sorted({way for s in stats for way in s["collectives"]}), crossed)
"""


FLAT = """
import sys
from gt.worker.collectives import mail
mail.sets_by_mail = lambda members, host: None
from gt.worker.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


OF_MAIL = [pytest.param("mail", way, times, marks=pytest.mark.slow) for way, times in (("mail in two levels", 2), ("mail", 4))]


@pytest.mark.parametrize("asked, way, times", [("memory", "hosts", 2), *OF_MAIL])
def test_a_sum_over_hosts_crosses_once_for_each_host(processes: Processes, asked: str, way: str, times: int) -> None:
    """Three workers, two of one host; by one level of mail the tensor of 120,000 bytes crosses between each pair of them."""
    _, port = processes.server("--expect", "3")
    for host in ("one", "other", "one"):
        code = ["-c", FLAT] if way == "mail" else ["-m", "gt.worker"]
        processes.start(*code, "-p", str(port), "--backend", "numpy", GT_COLLECTIVES=asked, GT_HOST=host)
    script = processes.script(HOSTS, f"localhost:{port}")
    assert script.ended(100) == 0, script.err[-3000:]
    assert script.out == f"{[way]} {times * 120000}\n", script.err


REFUSED = """
import sys
from gt.transport import process_memory

def read(*_):
    raise PermissionError(1, "Operation not permitted")

process_memory.read = read
from gt.worker.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_where_one_may_not_read_the_others_memory_all_talk_by_mail(processes: Processes) -> None:
    _, port = processes.server("--expect", "2")
    processes.worker(port)
    processes.script(REFUSED, "-p", str(port), "--backend", "numpy")
    script = processes.script(PROGRAM, f"localhost:{port}", WAY="mail")
    assert script.ended(200) == 0, script.err[-3000:]


def test_a_server_starts_its_own_workers_and_bytes_travel_over_tcp(processes: Processes) -> None:
    _, port = processes.server("--workers", "2", "--backend", "numpy", "--insecure", GT_COLLECTIVES="gloo")
    script = processes.script(PROGRAM, f"tcp://127.0.0.1:{port}", WAY="gloo")
    assert script.ended(200) == 0, script.err[-3000:]
    assert script.out.endswith("fine\n")


@pytest.mark.slow
def test_torchrun_starts_workers(processes: Processes) -> None:
    _, port = processes.server("--expect", "2")
    run = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "-m", "gt.worker", "-p", str(port)]
    launcher = processes.start(*run, GT_BACKEND="numpy")
    script = processes.script(PROGRAM, f"localhost:{port}")
    assert script.ended(200) == 0, script.err[-3000:] + launcher.err[-2000:]
    assert script.out.endswith("fine\n")
    launcher.kill(signal.SIGTERM)
    launcher.ended()


KILLED = """
import sys, gt
gt.connect(sys.argv[1])
gt.register_config("all", gt.SignalConfig(gt.ShardConfig(axis=0)))
with gt.signal("all"):
    x = gt.ones(8, 4)
print(x.sum().item(), flush=True)
other = gt.ones(4) + 1
print(other.tolist(), flush=True)
input()
try:
    while True:
        print("still", x.sum().item(), file=sys.stderr)
except gt.errors.WorkerLost as lost:
    print("lost", flush=True)
with gt.signal("all"):
    y = gt.ones(6, 2)
print(y.sum().item(), y.placement, flush=True)
"""


def test_a_killed_worker_hangs_nobody_and_the_rest_goes_on(processes: Processes) -> None:
    _, port = processes.server("--expect", "3")
    workers = [processes.worker(port, GT_COLLECTIVES="mail") for _ in range(3)]
    script = processes.script(KILLED, f"localhost:{port}").wait_for("[2.0, 2.0, 2.0, 2.0]")
    workers[1].kill()
    script.go()
    script.wait_for("lost")
    assert script.ended() == 0, script.err
    assert script.out.splitlines()[-1] == "12.0 Shard(0) on [0, 2]"


MOVING = """
import sys, gt
gt.connect(sys.argv[1])
gt.register_config("all", gt.SignalConfig(gt.ShardConfig(axis=0)))
gt.register_config("copies", gt.SignalConfig(gt.ShardConfig(replicated=True)))

def add_up(x, n):
    assert (gt.signal.tensor(x.sum(axis=0), name="copies").numpy() == n).all()

with gt.signal("all"):
    x = gt.ones(3, 1 << 20)
add_up(x, 3); print("begun", flush=True)
try:
    while True:
        add_up(x, 3)
except gt.errors.WorkerLost:
    pass
with gt.signal("all"):
    y = gt.ones(2, 1 << 20)
add_up(y, 2); add_up(y, 2)
print("gone on", flush=True)
"""


@pytest.mark.parametrize("way", ["memory", *(pytest.param(way, marks=pytest.mark.slow) for way in WAYS[1:])])
def test_a_worker_killed_while_bytes_move_leaves_the_others_right(processes: Processes, way: str) -> None:
    _, port = processes.server("--expect", "3")
    workers = [processes.worker(port, GT_COLLECTIVES=way) for _ in range(3)]
    script = processes.script(MOVING, f"localhost:{port}").wait_for("begun")
    time.sleep(0.1)  # somewhere in the midst
    workers[1].kill()
    script.wait_for("gone on")
    assert script.ended() == 0, script.err


STUCK = """
import sys, gt
gt.connect(sys.argv[1])
gt.register_config("all", gt.SignalConfig(gt.ShardConfig(axis=0)))
with gt.signal("all"):
    x = gt.ones(8, 4)
x.sum().item(); print("begun", flush=True)
input()
y = x.sum()
try:
    y.item()
except gt.errors.WorkerLost as lost:
    print("lost:", " ".join(str(lost).split()), flush=True)
"""


@pytest.mark.parametrize("way", ["memory", *(pytest.param(way, marks=pytest.mark.slow) for way in WAYS[1:])])
def test_a_stalled_collective_is_named_and_a_kill_ends_it(processes: Processes, way: str) -> None:
    """One worker stands still: the other tells of it, and goes on when the first is lost."""
    _, port = processes.server("--expect", "2")
    settings = {"backend": "pytorch", "GT_STALL_SECONDS": "1", "GT_COLLECTIVES": way}  # so that no group waits for PyTorch
    workers = [processes.worker(port, **settings) for _ in range(2)]
    script = processes.script(STUCK, f"localhost:{port}").wait_for("begun")
    workers[1].kill(signal.SIGSTOP)
    script.go()
    until(lambda: "waits on worker" in script.err, what=script.err)
    workers[1].kill(signal.SIGKILL)
    script.wait_for("lost:")
    assert script.ended() == 0
    assert "all_reduce of workers [0, 1] waits on worker" in script.err and "line 9" in script.err, script.err
    assert "(index 1) did not come" in script.err, script.err


def test_workers_of_two_addresses_form_groups(processes: Processes) -> None:
    """Workers that reach the dispatcher by TCP at other loopback addresses than its clients."""
    if sys.platform != "linux":
        pytest.skip("other loopback addresses are a thing of Linux")
    _, port = processes.server("--host", "0.0.0.0", "--insecure", "--expect", "2")
    for host in ("127.0.0.2", "127.0.0.3"):
        processes.worker(port, "--host", host)
    script = processes.script(PROGRAM, f"tcp://127.0.0.1:{port}")
    assert script.ended(200) == 0, script.err[-3000:]


def test_reads_come_straight_from_the_workers(processes: Processes) -> None:
    """The dispatcher sees no tensor bytes: its messages while 64 MB are read are small."""
    server, port = processes.server("--workers", "2", "--backend", "numpy")
    script = processes.script(
        """
        import sys, numpy as np, gt
        gt.connect(sys.argv[1])
        gt.register_config("all", gt.SignalConfig(gt.ShardConfig(axis=0)))
        a = np.arange(16 << 20, dtype="f4").reshape(4096, 4096)
        with gt.signal("all"):
            x = gt.from_numpy(a)
        assert (x.numpy() == a).all() and ((x + 1).numpy() == a + 1).all()
        print("read", flush=True); input()
        """,
        f"localhost:{port}",
    ).wait_for("read", 60)
    with open(f"/proc/{server.pid}/status") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    assert peak < 200_000, f"the dispatcher grew to {peak} kB"
    script.go()
    assert script.ended() == 0
    assert os.path.exists(f"/proc/{server.pid}")
