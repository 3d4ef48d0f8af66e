"""Ten clients on one GPU that has no room for all of them: tensors of idle clients lie in host memory meanwhile, and
each has its own values whenever it comes back. Tensors that CUDA graphs know by address are moved, too, and recorded anew."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.scope import HERE, Scope
from gt.client.session import Session
from gt.errors import OutOfMemory
from gt.testing import Cluster, cluster
from gt.worker.engine.torch.cuda_graph import Graph
from gt.worker.engine.torch.inductor import Inductor

sys.path.insert(0, str(Path(__file__).parents[1] / "socket"))
from processes import Processes, until  # noqa: E402

pytestmark = pytest.mark.gpu
MB = 1 << 20


def on_cuda() -> bool:
    return torch.cuda.is_available()


@pytest.fixture
def shared() -> Iterator[Cluster]:
    with cluster(1, "pytorch") as made:
        yield made


def limit(made: Cluster, device: int, host: int) -> Any:
    made.workers[0].host.limit(device, host)
    return made.workers[0].host.residency


def sessions(made: Cluster, count: int) -> list[Session]:
    return [made.sessions[0], *(made.session() for _ in range(count - 1))]


def be(session: Session) -> None:
    HERE.scope = Scope(session)


def compiled_by_now(made: Cluster) -> None:
    """Wait for compilations in the background: the loops here take less time."""
    programs = [getattr(ready, "faster", None) for v in made.workers[0].spaces.values() for _, _, ready in v.kinds.values()]
    for program in programs:
        if isinstance(program, Inductor) and program.thread is not None:
            program.thread.join(120)
            assert not program.thread.is_alive() and not program.failure, program.failure


class Trainer:
    """A client that trains a model of some megabytes, a few steps at a time."""

    def __init__(self, session: Session, seed: int, width: int = 1024) -> None:
        self.session = session
        be(session)
        gt.manual_seed(seed)
        self.model = gt.nn.Sequential(gt.nn.Linear(width, width), gt.nn.ReLU(), gt.nn.Linear(width, width))
        self.optimizer = gt.optim.Adam(self.model.parameters(), lr=1e-3)
        self.x, self.y = gt.randn(32, width), gt.randn(32, width)
        self.losses: list[float] = []

    def steps(self, count: int) -> None:
        be(self.session)
        for _ in range(count):
            loss = ((self.model(self.x) - self.y) ** 2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.losses.append(loss.item())


def test_ten_clients_share_a_small_device_and_read_their_own_values(shared: Cluster) -> None:
    r = limit(shared, 64 * MB, 1024 * MB)
    before = (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) if on_cuda() else (0, 0)  # workspaces of libraries
    clients = sessions(shared, 10)
    held = []
    for n, session in enumerate(clients):
        be(session)
        base = gt.arange(4 * MB, dtype=gt.float32).reshape(1024, -1) + n  # 16 MB
        held.append((base, base.T[5:9], gt.full((1024, 1024), float(n))))  # a view moves with its base; 4 MB
        assert base[0, 1].item() == n + 1.0
    assert r.out > 10, "nine of ten are in host memory"
    for _ in range(2):
        for n, session in enumerate(clients):
            be(session)
            base, view, own = held[n]
            want = torch.arange(4 * MB, dtype=torch.float32).reshape(1024, -1).numpy() + np.float32(n)
            assert (own * 2).sum().item() == 2.0 * n * MB
            np.testing.assert_array_equal((base + 0.0).numpy(), want)
            np.testing.assert_array_equal((view + 0.0).numpy(), want.T[5:9])
            np.testing.assert_array_equal(view.numpy(), want.T[5:9])
    stats = shared.workers[0].stats()
    assert stats["moved_back"] >= 20 and stats["bytes_back"] >= 20 * 16 * MB and stats["no_room"] == 0
    assert stats["host_bytes"] >= 5 * 16 * MB and sum(s["moved"] > 0 for s in stats["shares"].values()) >= 5
    if on_cuda():
        assert torch.cuda.memory_allocated() - before[0] <= 64 * MB, "moved tensors are free on the device"
        assert torch.cuda.memory_reserved() - before[1] <= 160 * MB, (
            "and the allocator has given it back: other streams can have it"
        )


@pytest.mark.filterwarnings("ignore")  # of the compiler's own
@pytest.mark.parametrize("compiled", [False, True])
def test_loops_in_graphs_go_on_rightly_after_their_parameters_were_away(compiled: bool, monkeypatch: Any) -> None:
    if compiled:
        monkeypatch.setenv("GT_AUTO_COMPILE", "1")
    wanted = []
    with cluster(1, "pytorch") as made:
        for seed in range(3):
            trainer = Trainer(made.session(), seed)
            for _ in range(4):
                trainer.steps(12)
            wanted.append(trainer.losses)
    with cluster(1, "pytorch") as made:
        r = limit(made, 72 * MB, 2048 * MB)  # one trainer has 8 MB of parameters, twice that in its optimizer, and gradients
        trainers = [Trainer(session, seed) for seed, session in enumerate(sessions(made, 3))]
        for _ in range(4):
            for trainer in trainers:
                trainer.steps(12)
            compiled_by_now(made)
        stats = made.workers[0].stats()
        assert r.out > 0 and r.back > 0 and r.refused == 0, stats
        if on_cuda():
            traces = stats["traces"]
            assert traces["graph_captures"] > 3 and traces["compiled_calls"] > 20 and not traces.get("fallbacks"), traces
    for trainer, want in zip(trainers, wanted):
        np.testing.assert_allclose(trainer.losses, want, rtol=1e-4)


def test_fixed_weights_of_a_graph_are_read_where_they_lie_after_they_came_back(shared: Cluster) -> None:
    r = limit(shared, 48 * MB, 1024 * MB)
    first, second = sessions(shared, 2)
    be(first)
    w = gt.randn(2048, 2048) / 45.0  # 16 MB
    x = gt.randn(8, 2048)
    want, there = x.numpy(), w.numpy()

    def steps(count: int) -> None:
        nonlocal x, want
        be(first)
        for _ in range(count):
            x = (x @ w).tanh() * 1.5 + 0.1
            want = np.tanh(want @ there) * np.float32(1.5) + np.float32(0.1)

    for _ in range(3):
        steps(30)
        be(first)
        np.testing.assert_allclose(x.numpy(), want, atol=2e-2)
        want = x.numpy()  # so that rounding does not grow
        be(second)
        assert (gt.ones(2560, 2048) + 1).mean().item() == 2.0
    assert r.out >= 2 and r.back >= 2
    if on_cuda():
        graphs = [g for g in shared.workers[0].engine.graphs if g.recordings]
        assert not graphs or all(any(g.fixed) for g in graphs), "the weights have become inputs that are copied at each call"


def test_there_is_an_error_only_when_host_memory_is_full_too(shared: Cluster) -> None:
    r = limit(shared, 40 * MB, 40 * MB)
    a, b, c = sessions(shared, 3)
    held = []
    for n, session in enumerate((a, b)):
        be(session)
        held.append([gt.full((2048, 1024), float(n + i)) for i in range(4)])  # 32 MB
        assert held[-1][3][0, 0].item() == n + 3.0
    assert r.out > 0 and r.refused == 0
    be(c)
    with pytest.raises(OutOfMemory, match="left in host memory"):
        [x := gt.full((2048, 1024), 7.0) for _ in range(4)][-1].sum().item()
    assert r.refused > 0
    for n, session in enumerate((a, b)):
        be(session)
        assert [x[1, 1].item() for x in held[n]] == [n + 0.0, n + 1.0, n + 2.0, n + 3.0], "the others notice nothing"
    be(b)
    del held[1:]
    be(c)
    small = gt.full((1024, 1024), 5.0)
    assert small.mean().item() == 5.0
    del x


def test_a_device_that_is_full_itself_moves_others_memory_and_tries_again(shared: Cluster) -> None:
    """Without GT_DEVICE_MEMORY the allocator's own error is the only sign that there is no room."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction((before + 600 * MB) / total)
    try:
        r = limit(shared, 0, 4096 * MB)
        a, b = sessions(shared, 2)
        be(a)
        mine = [gt.full((4096, 4096), float(n)) for n in range(7)]  # 64 MB each
        assert mine[6][0, 0].item() == 6.0
        be(b)
        theirs = [gt.full((4096, 4096), float(-n)) for n in range(7)]
        assert [x[0, 0].item() for x in theirs] == [0.0, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0]
        assert r.out > 0, "moved, as the allocator had no room"
        be(a)
        assert [(x + 1)[0, 0].item() for x in mine] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
        assert r.back > 0 and shared.workers[0].stats()["failures"] == 0
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_capture_without_room_is_made_later_and_the_loop_goes_on(shared: Cluster, monkeypatch: Any) -> None:
    capture, failed = Graph._capture, []

    def no_room(self: Graph, arrays: list, numbers: tuple) -> None:
        if len(failed) < 2:
            failed.append(self)
            self.statics = [a.clone() for a in arrays]
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")
        capture(self, arrays, numbers)

    monkeypatch.setattr(Graph, "_capture", no_room)
    trainer = Trainer(shared.sessions[0], 0, 64)
    for _ in range(5):
        trainer.steps(12)
    traces = shared.workers[0].stats()["traces"]
    assert len(failed) == 2 and traces["compiled_calls"] > 0 and not traces.get("fallbacks"), traces
    monkeypatch.undo()
    with cluster(1, "pytorch") as made:
        alone = Trainer(made.sessions[0], 0, 64)
        for _ in range(5):
            alone.steps(12)
    np.testing.assert_allclose(trainer.losses, alone.losses, rtol=1e-4)


NOTEBOOK = """
import sys, gt
gt.connect(sys.argv[1])
seed = int(sys.argv[2])
gt.manual_seed(seed)
model = gt.nn.Sequential(gt.nn.Linear(1024, 1024), gt.nn.ReLU(), gt.nn.Linear(1024, 1024))
optimizer = gt.optim.Adam(model.parameters(), lr=1e-3)
x, y = gt.randn(32, 1024), gt.randn(32, 1024)
for cell in range(3):
    losses = []
    for n in range(40):
        loss = ((model(x) - y) ** 2).mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        if n % 10 == 9: losses.append(f"{loss.item():.4f}")
    print("cell", cell, *losses, flush=True)
    if len(sys.argv) == 3: sys.stdin.readline()  # someone thinks
print("end", flush=True)
"""


def test_ten_notebooks_take_turns_on_one_gpu(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        _, port = processes.server()
        processes.worker(port, "--id", "w", backend="pytorch", GT_DEVICE_MEMORY="150MB", GT_HOST_MEMORY="4GB")
        alone = processes.script(NOTEBOOK, f"localhost:{port}", "0", "alone").wait_for("end").out
        started = [processes.script(NOTEBOOK, f"localhost:{port}", str(n % 2)) for n in range(10)]
        for cell in range(3):
            for each in started:
                each.wait_for(f"cell {cell}", 300)
            for each in started:
                each.go()
        for each in started:
            each.wait_for("end")
        gt.connect(f"localhost:{port}")
        stats = gt.debug.get_worker_stats()["w"]
        gt.disconnect()
        assert stats["moved_to_host"] > 10 and stats["moved_back"] > 10 and stats["no_room"] == 0, stats
        for n, each in enumerate(started):
            got = [float(f) for line in each.out.splitlines() if line.startswith("cell") for f in line.split()[2:]]
            want = [float(f) for line in alone.splitlines() if line.startswith("cell") for f in line.split()[2:]]
            if n % 2 == 0:
                np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-4)


POISONER = """
import sys, gt
gt.connect(sys.argv[1])
table = gt.ones(16, 16)
print("ready", table.sum().item(), flush=True)
sys.stdin.readline()
gt.nn.functional.embedding(gt.tensor([10 ** 6]), table).sum().item()
"""
BYSTANDER = """
import sys, gt
gt.connect(sys.argv[1])
held = gt.ones(64, 64)
print("ready", held.sum().item(), flush=True)
if sys.argv[2] == "empty": del held; (gt.ones(2) + 1).tolist()
sys.stdin.readline()
try: print("sum", (gt.ones(8, 8) if sys.argv[2] == "empty" else held).sum().item(), flush=True)
except gt.errors.WorkerLost as lost: print("told", str(lost).replace(chr(10), " "), flush=True)
print("then", (gt.ones(3) + 1).tolist(), flush=True)
"""


def test_a_poisoned_context_ends_its_worker_and_only_those_with_values_there_are_told(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        server, port = processes.server("--workers", "1", "--backend", "pytorch")
        where = f"localhost:{port}"
        poisoner = processes.script(POISONER, where).wait_for("ready 256.0")
        holds, empty = (processes.script(BYSTANDER, where, how).wait_for("ready 4096.0") for how in ("holds", "empty"))
        poisoner.go()
        until(lambda: poisoner.popen.poll() is not None, what="the end of the one who did it")
        assert "CUDA error" in poisoner.err or "WorkerLost" in poisoner.err, poisoner.err
        for each in (holds, empty):
            each.go()
            each.wait_for("then [2.0, 2.0, 2.0]", 120)
        assert "told" in holds.out and "unusable" in holds.out, holds.out
        assert "embedding" not in holds.out, "nobody is told whose kernel it was"
        assert "sum 64.0" in empty.out and "told" not in empty.out, empty.out
        assert server.popen.poll() is None
