"""One client of the cases in share.py, as a process: `python share_client.py LIBRARY ROLE SERVER WIDTH WEIGHT`. It prints
`ready`, and then, for each line with a number of seconds that it reads, works so long and prints its measurements."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

PAUSE = 0.01  # seconds between two questions of the one who asks
WARM = 30  # steps before a trainer counts as warm


def asker(lib: Any, device: dict[str, str]) -> Callable[[float], list[float]]:
    """Reads a small product again and again: the median and the 99th percentile of its seconds, and questions a second."""
    a = lib.randn(64, 64, **device)

    def once() -> float:
        start = time.perf_counter()
        (a @ a).sum().item()
        took = time.perf_counter() - start
        time.sleep(PAUSE)
        return took

    def work(seconds: float) -> list[float]:
        end, waits = time.perf_counter() + seconds, []
        while time.perf_counter() < end:
            waits.append(once())
        waits.sort()
        return [waits[len(waits) // 2], waits[len(waits) * 99 // 100], len(waits) / seconds]

    work(0.3)
    return work


def recorded(lib: Any, step: Callable[[], Any]) -> Callable[[], Any]:
    """PyTorch's step as one CUDA graph, which its user has to write."""
    aside = lib.cuda.Stream()
    aside.wait_stream(lib.cuda.current_stream())
    with lib.cuda.stream(aside):
        for _ in range(3):
            step()
    lib.cuda.current_stream().wait_stream(aside)
    graph = lib.cuda.CUDAGraph()
    with lib.cuda.graph(graph):
        loss = step()

    def replay() -> Any:
        graph.replay()
        return loss

    return replay


def trainer(lib: Any, device: dict[str, str], role: str, n: int, graph: bool) -> Callable[[float], list[float]]:
    """Trains an MLP `n` wide, or the benchmarks' GPT with `n` rows a batch: steps a second."""
    from models import gpt, gpt_step

    nn, F = lib.nn, lib.nn.functional
    layers = nn.Linear(n, n), nn.ReLU(), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, 10)
    model = gpt(lib) if role == "gpt" else nn.Sequential(*layers)
    if device:
        model.cuda()
    optimizer = lib.optim.Adam(model.parameters(), **({"capturable": True} if graph else {}))
    if role == "gpt":
        ids = [lib.randint(0, 65, (n, 256), **device) for _ in range(2)] + [lib.arange(256, **device)]
    else:
        x, y = lib.randn(128, n, **device), lib.randint(0, 10, (128,), **device)

    def step() -> Any:
        if role == "gpt":
            return gpt_step(lib, model, optimizer, *ids)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    if graph:
        step = recorded(lib, step)

    def work(seconds: float, least: int = 1) -> list[float]:
        start, steps = time.perf_counter(), 0
        while steps < least or time.perf_counter() < start + seconds:
            loss = step()
            steps += 1
        loss.item()
        return [steps / (time.perf_counter() - start)]

    work(0.5, least=WARM if role == "train" and n <= 1024 else 8)
    return work


def main() -> None:
    library, role, server, width, weight = sys.argv[1:]
    asks = role.startswith("ask")
    if role == "ask-worker":  # small questions go to the worker, too
        os.environ["GT_LOCAL_ANSWERS"] = "0"
    if library == "gt":
        import gt as lib

        lib.connect(server, weight=float(weight), priority="interactive" if asks else "normal")
        device = {}
    else:
        import torch as lib  # type: ignore[no-redef]

        device = {"device": "cuda"} if lib.cuda.is_available() else {}
    lib.manual_seed(0)
    work = asker(lib, device) if asks else trainer(lib, device, role, int(width), library == "torch-graph")
    print("ready", flush=True)
    for line in sys.stdin:
        print(*work(float(line)), flush=True)


if __name__ == "__main__":
    main()
