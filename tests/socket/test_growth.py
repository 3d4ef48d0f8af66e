"""Nothing grows: client, dispatcher and worker are as large after values were made and dropped as before."""

from __future__ import annotations

import json

import psutil
import pytest
from processes import Processes, until

import gt

MB = 1 << 20
SIZES = """
import json, os, psutil, gt, numpy as np
def sizes():
    gt.ones(1).numpy()
    me = psutil.Process()
    by_module = {('dispatcher' if 'gt.server' in c.cmdline() else 'worker'): c for c in me.children()}
    return {name: p.memory_info().rss for name, p in {'client': me, **by_module}.items()}
"""
MADE = """
for i in range(10_000):
    x = gt.zeros(1 << 18)
    if i == 99: early = sizes()
"""
LOADED = """
data = np.zeros(1 << 18, 'f4')
for i in range(4_000):
    x = gt.from_numpy(data)
    if i == 99: early = sizes()
"""
TRAINED = """
from gt.nn import Linear, Module, SGD
class MLP(Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = Linear(32, 64), Linear(64, 8)
    def forward(self, x):
        return self.b(self.a(x).relu())
model = MLP()
optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)
x, y = gt.randn(16, 32), gt.randn(16, 8)
def train(steps):
    for i in range(steps):
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if i % 10 == 0: loss.item()
def compiling():
    return any(worker['replay']['compiling'] for worker in gt.debug.get_worker_stats().values())
train(100)
while compiling(): train(100)  # with GT_AUTO_COMPILE or GT_WORKER_BATCH_SIZE: a compiler's own memory is no growth of a step's
early = sizes()
train(900)
"""


@pytest.mark.parametrize(
    ("work", "backend"),
    [(MADE, "numpy"), (LOADED, "numpy"), pytest.param(TRAINED, "numpy", marks=pytest.mark.slow), (TRAINED, "pytorch")],
    ids=["tensors of 1 MB made", "tensors of 1 MB loaded", "training steps", "training steps on PyTorch"],
)
@pytest.mark.parametrize("one", [True, False], ids=["one process", "two"])
def test_resident_sizes_stay_where_they_were_after_the_first_hundred(
    processes: Processes, work: str, backend: str, one: bool
) -> None:
    code = SIZES + work + "print(json.dumps([early, sizes()]))"
    script = processes.script(code, GT_BACKEND=backend, GT_ONE_PROCESS=str(int(one)))
    assert script.ended(200) == 0, script.err
    early, late = json.loads(script.out)
    assert set(early) == {"client", "dispatcher", *([] if one else ["worker"])}
    grown = {name: (late[name] - early[name]) / MB for name in early}
    assert all(by < 12 for by in grown.values()), f"grown by MB: {grown}"


def test_sessions_that_come_and_go_leave_the_server_as_it_was(processes: Processes) -> None:
    _, port = processes.server()
    processes.worker(port)
    script = processes.script(
        """
        import gc, sys, json, time, gt, numpy as np, psutil
        pids = [int(a) for a in sys.argv[2:]]
        def visit():
            gt.connect(sys.argv[1])
            x = gt.from_numpy(np.ones(100_000, 'f4')); (x * 2).numpy()
            gt.disconnect()
        def state():
            me = psutil.Process()
            return [psutil.Process(p).memory_info().rss for p in pids] + [me.memory_info().rss], me.num_fds(), me.num_threads()
        for _ in range(10): visit()
        early = state()
        for _ in range(60): visit()
        deadline = time.monotonic() + 120  # sockets are closed a moment after their last word
        def settled(): return psutil.Process().num_fds() <= early[1] + 3 and psutil.Process().num_threads() <= early[2]
        while not settled() and time.monotonic() < deadline: time.sleep(0.05)
        sizes = []
        for _ in range(5):  # memory of a session that has just ended comes and goes; memory that is kept stays
            gc.collect()  # sessions are cycles, which Python frees when it comes to it
            sizes.append(state()[0])
            visit()
            time.sleep(0.2)
        print(json.dumps([early, [list(map(min, zip(*sizes))), *state()[1:]]]))
        """,
        f"localhost:{port}",
        *[str(p.pid) for p in processes.all],
    )
    assert script.ended() == 0, script.err
    (early, fds, threads), (late, more_fds, more_threads) = json.loads(script.out)
    assert all(b - a < 12 * MB for a, b in zip(early, late)), (early, late)
    assert more_fds <= fds + 3 and more_threads <= threads, (fds, more_fds, threads, more_threads)


def test_workers_that_come_and_go_leave_another_s_descriptors_as_they_were(processes: Processes, disconnected: None) -> None:
    _, port = processes.server("--expect", "2")
    stays = processes.worker(port, "--id", "stays", GT_COLLECTIVES="mail")
    counts = []
    for _ in range(5):
        comes = processes.worker(port, "--id", "comes", GT_COLLECTIVES="mail")
        gt.connect(f"localhost:{port}")
        gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
        with gt.signal("rows"):
            assert gt.ones(4, 4).sum().item() == 16.0
        comes.kill()
        until(lambda: set(gt.debug.get_worker_stats()) == {"stays"}, what="the end of the other worker")
        gt.disconnect()
        until(lambda: psutil.Process(stays.pid).num_fds() <= min(counts, default=1000), what=f"fewer descriptors: {counts}")
        counts.append(psutil.Process(stays.pid).num_fds())


@pytest.mark.default("GT_AUTO_COMPILE", "GT_WORKER_BATCH_SIZE")  # PyTorch's compiler stays, once it is loaded
@pytest.mark.parametrize("backend", ["numpy", "pytorch"])
def test_a_worker_gives_back_the_memory_of_a_client_that_left(processes: Processes, backend: str) -> None:
    _, port = processes.server()
    worker = psutil.Process(processes.worker(port, backend=backend).pid)
    early = worker.memory_info().rss
    script = processes.script(
        """
        import sys, gt, numpy as np
        gt.connect(sys.argv[1])
        held = [gt.ones(1 << 20) for _ in range(60)]  # 240 MB as tensors, 64 MB as segments lent to this process
        gt.ones(16 << 20).numpy(); (gt.tensor(np.ones(1 << 20, 'f4')) + held[-1]).numpy()
        print('held', flush=True); input()
        """,
        f"localhost:{port}",
    ).wait_for("held")
    assert worker.memory_info().rss > early + 250 * MB
    script.go()
    assert script.ended() == 0, script.err
    until(lambda: worker.memory_info().rss < early + 40 * MB, what="the worker is as large as before")
