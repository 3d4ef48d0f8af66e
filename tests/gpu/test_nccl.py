"""Collectives over NCCL, on one GPU: each worker takes itself for one on another host and with another GPU, since NCCL has no
more than one member on a GPU of a host. Bytes then go through NCCL's sockets."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

SOCKET = Path(__file__).parents[1] / "socket"
WORKER = """
import os, sys
os.environ |= {"NCCL_HOSTID": f"host-{os.getpid()}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
from gt.worker.collectives import groups
groups.gpu_of = lambda engine: f"gpu-{os.getpid()}"
from gt.worker.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
TRAIN = """
import os, sys, numpy as np, gt
from gt.nn import Linear
gt.connect(sys.argv[1])
C, S = gt.SignalConfig, gt.ShardConfig
for name, config in {"batch": C(S(axis=0)), "copies": C(S(replicated=True)), "one": C(S(workers=[1]))}.items():
    gt.register_config(name, config)

def losses(parameters, batch, steps=30, told=-1):
    gt.manual_seed(0)
    rng = np.random.default_rng(0)
    with gt.signal(parameters):
        layers = [Linear(12, 64), Linear(64, 64), Linear(64, 5)]
    weights = [p for layer in layers for p in layer.parameters()]
    opt, found = gt.optim.AdamW(weights, lr=0.01), []
    for i in range(steps):
        if i == told:
            print("go", flush=True)
        opt.param_groups[0]["lr"] = 0.01 / (1 + i)
        with gt.signal(batch):
            x, y = (gt.from_numpy(rng.normal(size=(10, n)).astype("f4")) for n in (12, 5))
            h = layers[1](layers[0](x).relu()).relu()
            loss = ((layers[2](h) - y) ** 2).mean()
        loss.backward(); opt.step(); opt.zero_grad()
        found.append(loss.item() if i % 7 else loss)
    return [float(x) for x in found], [w.numpy() for w in weights]
"""
COMPARE = (
    TRAIN
    + """
ours, weights = losses("copies", "batch")
alone, want = losses("one", "one")
np.testing.assert_allclose(ours, alone, rtol=1e-3)
for a, b in zip(weights, want):
    np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-3)
counts = [s["replay"] for s in gt.debug.get_worker_stats().values()]
assert all(c["collective_graph_calls"] >= 15 and c["collective_graph_calls"] <= c["sharded_calls"] for c in counts), counts
assert not any(c["fallbacks"] for c in counts), counts
print("fine")
"""
)
LOST = (
    TRAIN
    + """
try:
    losses("copies", "batch", 1_000_000, told=20)
except gt.errors.GTError as lost:
    print(type(lost).__name__, flush=True)
"""
)

ALONE = "import sys, gt; gt.connect(sys.argv[1]); print((gt.ones(8, 8) @ gt.ones(8, 8)).sum().item())"


@contextmanager
def nccl_workers(monkeypatch: pytest.MonkeyPatch, **env: str) -> Iterator[tuple[Any, str, list[subprocess.Popen]]]:
    monkeypatch.syspath_prepend(str(SOCKET))
    processes = importlib.import_module("processes")
    port = str(processes.free_port())
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "text": True, "stderr": subprocess.PIPE, "env": {**os.environ, **env}}
    commands = [["-m", "gt.server", "-p", port, "--expect", "2"], *[["-c", WORKER, "-p", port, "--backend", "pytorch"]] * 2]
    started = [subprocess.Popen([sys.executable, *c], **quiet) for c in commands]
    try:
        from gt.transport.addresses import ipc_address, listens

        processes.until(lambda: listens(ipc_address(port)), what="the server listens")
        yield processes, f"localhost:{port}", started
    finally:
        for process in started:
            process.terminate()
        late = [process.args for process in started if not ended(process)]
        assert not late, f"they did not end within 30 s of SIGTERM: {late}"


def ended(process: subprocess.Popen) -> bool:
    """Whether a process ends by itself; prints the end of its standard error."""
    try:
        print(process.communicate(timeout=30)[1][-3000:])
    except subprocess.TimeoutExpired:
        process.kill()
        print(process.communicate()[1][-3000:])
        return False
    return True


def ran(program: str, address: str, **env: str) -> str:
    client = subprocess.run(
        [sys.executable, "-c", program, address], env={**os.environ, **env}, capture_output=True, text=True, timeout=120
    )
    assert client.returncode == 0, (client.stdout, client.stderr[-3000:])
    return client.stdout


def test_programs_on_shards_give_the_right_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    with nccl_workers(monkeypatch) as (_, address, _):
        program = importlib.import_module("test_sharded").PROGRAM
        assert ran(program, address, WAY="nccl") == "[True, True] Shard(0) on [0, 1] fine\n"


def test_a_step_with_its_collectives_is_one_graph_with_one_worker_s_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    with nccl_workers(monkeypatch) as (_, address, _):
        assert ran(COMPARE, address) == "fine\n"


def test_a_worker_that_dies_while_graphs_run_is_reported_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with nccl_workers(monkeypatch) as (_, address, started):
        client = subprocess.Popen([sys.executable, "-c", LOST, address], stdout=subprocess.PIPE, text=True)
        try:
            assert client.stdout is not None and client.stdout.readline() == "go\n"
            os.kill(started[2].pid, signal.SIGKILL)
            assert client.communicate(timeout=60)[0] == "WorkerLost\n"
        finally:
            client.kill()
        assert ran(ALONE, address) == "512.0\n"  # the survivor serves others,
        assert started[1].poll() is None
    assert started[1].returncode == 0  # and ends when it is told to
