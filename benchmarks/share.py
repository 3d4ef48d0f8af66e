"""Clients that share one worker: how long one waits beside another that keeps the worker busy, and how time is divided. The
rival is two processes with plain PyTorch on the same device."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from measure import Result, rates, times
from stream import _free_port, _until_up

# All roles in both libraries: `train` and `gpt` make steps for a while, `ask` reads a small product again and again.
SCRIPT = """
import sys, threading, time
library, role, server, wide, weight, seconds, folder = sys.argv[1:]
sys.path.insert(0, folder)
if library == "gt":
    import gt as torch
    torch.connect(server, weight=float(weight), priority="interactive" if role == "ask" else "normal")
else:
    import torch
torch.manual_seed(0)
device = {"device": "cuda"} if library == "torch" and torch.cuda.is_available() else {}
if role == "ask":
    a = torch.randn(64, 64, **device)
    def once():
        start = time.perf_counter(); (a @ a).sum().item(); took = time.perf_counter() - start
        time.sleep(0.01)
        return took
    [once() for _ in range(20)]
    print("ready", flush=True); sys.stdin.readline()
    end, waits = time.perf_counter() + float(seconds), []
    while time.perf_counter() < end: waits.append(once())
    waits.sort()
    print(waits[len(waits) // 2], waits[len(waits) * 99 // 100], flush=True)
else:
    from models import gpt, gpt_step
    n, F = int(wide), torch.nn.functional
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    model = gpt(torch) if role == "gpt" else torch.nn.Sequential(linear(n, n), relu(), linear(n, n), relu(), linear(n, 10))
    if device: model.cuda()
    optimizer = torch.optim.Adam(model.parameters())
    if role == "gpt":
        ids = [torch.randint(0, 65, (n, 256), **device) for _ in range(2)] + [torch.arange(256, **device)]
        step = lambda: gpt_step(torch, model, optimizer, *ids)
    else:
        x, y = torch.randn(128, n, **device), torch.randint(0, 10, (128,), **device)
        def step():
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            return loss
    for _ in range(30): loss = step()
    loss.item()
    print("ready", flush=True); sys.stdin.readline()
    start, steps = time.perf_counter(), 0
    while time.perf_counter() < start + float(seconds): loss = step(); steps += 1
    loss.item()
    print(steps / (time.perf_counter() - start), flush=True)
"""
SECONDS, LONG = 6.0, 30.0
LATENCY = {"share-256": ("train", 256), "share-1024": ("train", 1024), "share-gpt": ("gpt", 1)}


class Client:
    def __init__(
        self, library: str, role: str, port: int, wide: int = 256, weight: float = 1.0, seconds: float = SECONDS
    ) -> None:
        folder = str(Path(__file__).parent)
        arguments = [library, role, f"localhost:{port}", str(wide), str(weight), str(seconds), folder]
        command = [sys.executable, "-c", SCRIPT, *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout and self.process.stdout.readline() == "ready\n"

    def go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def result(self) -> list[float]:
        assert self.process.stdout
        found = [float(part) for part in self.process.stdout.readline().split()]
        self.process.communicate()
        return found


def _together(*clients: Client) -> list[list[float]]:
    for client in clients:
        client.go()
    return [client.result() for client in clients]


def share() -> Iterator[Result]:
    """Latency beside trainers of three kinds; rates of trainers of weights 3 and 1; eight equal trainers against one."""
    port = _free_port()
    with ExitStack() as stack:
        server = subprocess.Popen([sys.executable, "-m", "gt.server", "-p", str(port), "--workers", "1"])
        stack.callback(server.wait)
        stack.callback(server.terminate)
        _until_up(port)
        for name, (role, wide) in LATENCY.items():
            (trained,), waits = _together(Client("gt", role, port, wide), Client("gt", "ask", port))
            (theirs,), rival = _together(Client("torch", role, port, wide), Client("torch", "ask", port))
            yield times(f"{name}-p50", waits[0] * 1e3, rival[0] * 1e3, "ms")
            yield times(f"{name}-p99", waits[1] * 1e3, rival[1] * 1e3, "ms")
            yield rates(f"{name}-trainer", trained, theirs, "steps/s")
        pair = [Client("gt", "train", port, 512, weight, LONG) for weight in (3.0, 1.0)]
        (heavy,), (light,) = _together(*pair)
        yield rates("share-weights-3-1", heavy / light, 3.0, "times as fast")
        ((alone,),) = _together(Client("gt", "train", port, 512))
        each = [found[0] for found in _together(*[Client("gt", "train", port, 512) for _ in range(8)])]
        yield rates("share-eight-sum", sum(each), alone, "steps/s")
        yield rates("share-eight-jain", sum(each) ** 2 / (8 * sum(r * r for r in each)), 1.0, "Jain's index")


CASES = {"share": share}
