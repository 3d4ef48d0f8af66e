"""Two CPU workers with one thread each, against the same work in PyTorch on Gloo with two processes; and the dispatcher's cost
for many workers. Both sides run in processes of their own, in turns. GT_COLLECTIVES=gloo has GT use Gloo as well."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

from measure import Result, times

from gt.dispatcher.core import Dispatcher
from gt.spec import float32
from gt.transport.messages import VERSION, Batch, Configure, Hello, Join, KindDef, Mail

ROOT = str(Path(__file__).parents[1])

OURS = """
import statistics, sys, time
import gt
gt.gpu_workers(int(sys.argv[1]))
C, S = gt.SignalConfig, gt.ShardConfig
for name, config in {"batch": S(axis=0), "columns": S(axis=1), "rows": S(axis=0), "copies": S(replicated=True)}.items():
    gt.register_config(name, C(config))

def fastest(work, rounds, before=lambda: None):
    found = []
    for _ in range(rounds):
        before()
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    print(min(found), statistics.median(found))
"""

THEIRS = """
import os, statistics, sys, time
import torch, torch.distributed as dist
import torch.nn.functional as F
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)

def fastest(work, rounds, before=lambda: None):
    found = []
    for _ in range(rounds):
        before()
        dist.barrier()
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    if rank == 0:
        print(min(found), statistics.median(found))
"""

THEIR_END = """
dist.barrier()
sys.stdout.flush()
os._exit(0)  # its threads may abort a process that ends as others do, even behind destroy_process_group
"""

OUR_MLP = """
from gt.nn import Module, Linear, SGD

class MLP(Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = Linear(1024, 4096), Linear(4096, 4096), Linear(4096, 1024)
    def forward(self, x):
        return self.c(self.b(self.a(x).relu()).relu())

with gt.signal("copies"):
    model = MLP()
optimizer = SGD(model.parameters(), lr=0.01)
with gt.signal("batch"):
    x, y = gt.randn(256, 1024), gt.randn(256, 1024)

def step():
    with gt.signal("batch"):
        loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.item()

step(); step(); step()
fastest(step, 5)
"""

THEIR_MLP = """
from torch import nn
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(nn.Sequential(
    nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1024)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(128, 1024), torch.randn(128, 1024)

def step():
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.item()

step(); step(); step()
fastest(step, 5)
"""

OUR_LAYERS = """
with gt.signal("copies"):
    x = gt.randn(64, 4096)
with gt.signal("columns"):
    a = gt.randn(4096, 4096)
with gt.signal("rows"):
    b = gt.randn(4096, 4096)

def step():
    y = gt.signal.tensor((x @ a).relu() @ b, name="copies")
    y[0, 0].item()

step(); step()
fastest(step, 30)
"""

THEIR_LAYERS = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
mesh = init_device_mesh("cpu", (2,))
x = distribute_tensor(torch.randn(64, 4096), mesh, [Replicate()])
a = distribute_tensor(torch.randn(4096, 4096), mesh, [Shard(1)])
b = distribute_tensor(torch.randn(4096, 4096), mesh, [Shard(0)])

def step():
    with torch.no_grad():
        y = (torch.relu(x @ a) @ b).redistribute(mesh, [Replicate()])
        y.to_local()[0, 0].item()

step(); step()
fastest(step, 30)
"""

OUR_REDUCE = """
with gt.signal("rows"):
    ones, piece = gt.ones(2, 1 << 24), gt.ones(2)
terms = []

def term():
    terms[:] = [ones.sum(axis=0)]  # 64 MB, a term on each worker
    assert "Partial" in repr(terms[0].placement)
    piece.tolist()  # comes from both when they have it

def reduce():
    assert gt.signal.tensor(terms.pop(), name="copies")[0].item() == 2

term(); reduce()
fastest(reduce, 30, term)
"""

THEIR_REDUCE = """
ones = torch.ones(1, 1 << 24)
terms = []

def term():
    terms[:] = [ones.sum(axis=0)]

def reduce():
    x = terms.pop()
    dist.all_reduce(x)
    assert x[0].item() == 2

term(); reduce()
fastest(reduce, 30, term)
"""

OUR_GATHER = """
with gt.signal("rows"):
    x = gt.ones(1 << 24)

def gather():
    gt.signal.tensor(x, name="copies")[0].item()

gather()
fastest(gather, 30)
"""

THEIR_GATHER = """
x, out = torch.ones(1 << 23), torch.empty(1 << 24)
dist.all_gather_into_tensor(out, x)
def gather():
    dist.all_gather_into_tensor(out, x)
    out[0].item()
fastest(gather, 30)
"""


def _environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **more}


def ours(code: str, workers: int = 2) -> tuple[float, ...]:
    command = [sys.executable, "-c", textwrap.dedent(OURS + code), str(workers)]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return tuple(map(float, done.stdout.split()[-2:]))


def theirs(code: str) -> tuple[float, ...]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    ranks = []
    for rank in range(2):
        env = _environment(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        command = [sys.executable, "-c", textwrap.dedent(THEIRS + code + THEIR_END)]
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    outs = [p.communicate(timeout=600) for p in ranks]
    if any(p.returncode for p in ranks):
        raise RuntimeError(outs[0][1] + outs[1][1])
    return tuple(map(float, outs[0][0].split()[-2:]))


def _least(case: str, pairs: list[tuple], at: int = 0) -> Result:
    """The least of several runs: of their fastest rounds, or of those in the middle."""
    return times(case, min(a[at] for a, _ in pairs) * 1e3, min(b[at] for _, b in pairs) * 1e3, "ms")


def _against(case: str, mine: str, other: str, middle: bool = False) -> Iterator[Result]:
    pairs = [(ours(mine), theirs(other)) for _ in range(3)]
    yield _least(case, pairs)
    if middle:
        yield _least(f"{case}-middle", pairs, 1)


def data_parallel() -> Iterator[Result]:
    """A step of a larger MLP, its batch cut in two, against DistributedDataParallel."""
    return _against("data_parallel", OUR_MLP, THEIR_MLP)


def tensor_parallel() -> Iterator[Result]:
    """Two layers 4096 wide, by columns and then by rows, against DTensor."""
    return _against("tensor_parallel", OUR_LAYERS, THEIR_LAYERS)


def allreduce() -> Iterator[Result]:
    """64 MB added up on two workers, against torch.distributed alone. Gloo's times scatter, so the middle is told as well."""
    return _against("allreduce", OUR_REDUCE, THEIR_REDUCE, middle=True)


def allgather() -> Iterator[Result]:
    """64 MB put together on two workers, against torch.distributed alone."""
    return _against("allgather", OUR_GATHER, THEIR_GATHER, middle=True)


def scale() -> Iterator[Result]:
    """A step of the larger MLP on two workers, against the same on one."""
    pairs = [(ours(OUR_MLP, 2), ours(OUR_MLP, 1)) for _ in range(2)]
    yield _least("scale", pairs)


def _layers(workers: int) -> tuple[float, int]:
    """Seconds to decide on a step of ten layers with known plans, and how many ops that is."""
    dispatcher, f = Dispatcher(), float32.code
    for i in range(workers):
        dispatcher.handle(Mail(f"w{i}", Join(VERSION, "", f"w{i}", "numpy", "cpu", "here", i, "ipc://@nowhere")))
    dispatcher.handle(Mail("c", Hello(VERSION, "", "here", 1)))
    wire = {"batch": {"mesh": None, "axes": [0], "workers": None}, "copies": {"mesh": None, "axes": [None], "workers": None}}
    dispatcher.handle(Mail("c", Configure(wire)))
    rows = workers * 4
    kinds = (
        KindDef(1, "uniform", ((-2,), (-2,)), ((rows, 16), (rows, 16), (0, 0), f), "batch"),
        KindDef(2, "uniform", ((-2,), (-2,)), ((16, 16), (16, 16), (0, 0), f), "copies"),
        KindDef(3, "matmul", ((f, rows, 16), (f, 16, 16)), (), "batch"),
        KindDef(4, "relu", ((f, rows, 16),), (), "batch"),
        KindDef(5, "permute", ((f, rows, 16),), ((1, 0),), "batch"),
        KindDef(6, "matmul", ((f, 16, rows), (f, rows, 16)), (), "batch"),
        KindDef(7, "sgd", ((f, 16, 16), (f, 16, 16), (-3,), (-3,)), (False,)),
    )
    dispatcher.handle(Mail("c", Batch(1, kinds, [(1, 1, 7, 1), (2, 2, 7, 2)])))
    id, weight, least = 3, 2, float("inf")
    for serial in range(12):
        code: list[tuple] = []
        last, first = 1, id
        for _ in range(10):
            code += [(3, id, last, weight), (4, id + 1, id)]
            last, id = id + 1, id + 2
        code += [(5, id, last), (6, id + 1, id, last), (7, id + 2, weight, id + 1, 0.1, 0.0)]
        code += [(0, i) for i in range(first, id + 2)] + [(0, weight)]
        weight, id = id + 2, id + 3
        batch = Batch(2 + serial, (), code)
        start = time.perf_counter()
        dispatcher.handle(Mail("c", batch))
        least = min(least, time.perf_counter() - start)
    return least, 23


def decide_sharded() -> Iterator[Result]:
    """The dispatcher's time for a worker and op, once plans are known, against the bound of 10 us."""
    for workers in (8, 1024):
        seconds, ops = _layers(workers)
        yield times(f"decide_{workers}_workers", seconds / workers / ops * 1e6, 10.0, "us")


CASES = {f.__name__: f for f in (data_parallel, tensor_parallel, allreduce, allgather, scale, decide_sharded)}
