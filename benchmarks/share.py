"""Clients that share one worker: how long one waits beside another that keeps the worker busy, and how time is divided. The
rival is two processes with plain PyTorch on the same device."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

from measure import Result, rates, times
from stream import _free_port, _until_up

# Both roles in both libraries: `train` makes steps until it is told to stop, `ask` reads a small product again and again.
SCRIPT = """
import sys, threading, time
library, role, server, wide, weight, seconds = sys.argv[1:]
if library == "gt":
    import gt as torch
    torch.connect(server, weight=float(weight))
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
    n, F = int(wide), torch.nn.functional
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    model = torch.nn.Sequential(linear(n, n), relu(), linear(n, n), relu(), linear(n, 10))
    if device: model.cuda()
    optimizer = torch.optim.Adam(model.parameters())
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
SECONDS = 6.0


class Client:
    def __init__(self, library: str, role: str, port: int, wide: int = 256, weight: float = 1.0) -> None:
        arguments = [library, role, f"localhost:{port}", str(wide), str(weight), str(SECONDS)]
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
    """Latency beside trainers of two sizes; rates of trainers of weights 3 and 1; eight equal trainers against one."""
    port = _free_port()
    with ExitStack() as stack:
        server = subprocess.Popen([sys.executable, "-m", "gt.server", "-p", str(port), "--workers", "1"])
        stack.callback(server.wait)
        stack.callback(server.terminate)
        _until_up(port)
        for wide in (256, 1024):
            (trained,), waits = _together(Client("gt", "train", port, wide), Client("gt", "ask", port))
            (theirs,), rival = _together(Client("torch", "train", port, wide), Client("torch", "ask", port))
            yield times(f"share-{wide}-p50", waits[0] * 1e3, rival[0] * 1e3, "ms")
            yield times(f"share-{wide}-p99", waits[1] * 1e3, rival[1] * 1e3, "ms")
            yield rates(f"share-{wide}-trainer", trained, theirs, "steps/s")
        (heavy,), (light,) = _together(Client("gt", "train", port, 512, 3.0), Client("gt", "train", port, 512, 1.0))
        yield rates("share-weights-3-1", heavy / light, 3.0, "times as fast")
        ((alone,),) = _together(Client("gt", "train", port, 512))
        each = [found[0] for found in _together(*[Client("gt", "train", port, 512) for _ in range(8)])]
        yield rates("share-eight-sum", sum(each), alone, "steps/s")
        yield rates("share-eight-jain", sum(each) ** 2 / (8 * sum(r * r for r in each)), 1.0, "Jain's index")


CASES = {"share": share}
