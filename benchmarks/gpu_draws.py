"""Random numbers on a GPU next to a device copy of the same bytes and to PyTorch's own, inside CUDA graphs.

    python benchmarks/gpu_draws.py results.json

A graph holds CALLS calls of one kind; graphs of all kinds take turns. `ratio` is the copy's time over GT's, `of_torch` that of
PyTorch over GT's. Below some ten million numbers the copy reads and writes the L2 cache alone.
"""

import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

SIZES = (800_000, 1 << 22, 1 << 24)
CALLS, ROUNDS = 20, 30
SEED, NUMBER, P = 12345, 7, 0.1


def graph(torch: Any, run: Callable[[], Any]) -> Any:
    """CALLS calls, recorded."""
    run()  # compile
    torch.cuda.synchronize()
    made = torch.cuda.CUDAGraph()
    with torch.cuda.graph(made):
        for _ in range(CALLS):
            run()
    return made


def microseconds(torch: Any, made: Any) -> float:
    """Of one call in a replay."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    made.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3 / CALLS


def runs(torch: Any, n: int) -> dict[str, Callable[[], Any]]:
    from gt.worker.engine.torch import random_kernels as kernels

    device = torch.device("cuda")
    x = torch.randn(n, device=device)
    out = torch.empty_like(x)
    seed, number = torch.tensor(SEED, device=device), torch.tensor(NUMBER, device=device)  # as in a worker's graphs
    return {
        "copy": lambda: out.copy_(x),
        "uniform": lambda: kernels.uniform(seed, number, 0, n, device),
        "normal": lambda: kernels.normal(seed, number, 0, n, device),
        "dropout": lambda: kernels.dropout(x, P, seed, number, 0),
        "torch uniform": lambda: out.uniform_(),
        "torch normal": lambda: out.normal_(),
        "torch dropout": lambda: torch.nn.functional.dropout(x, P),
    }


def measure() -> list[dict[str, Any]]:
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("expected a CUDA device, found none")
    results = []
    for n in SIZES:
        graphs = {name: graph(torch, run) for name, run in runs(torch, n).items()}
        took: dict[str, list[float]] = {name: [] for name in graphs}
        for _ in range(ROUNDS):
            for name, made in graphs.items():
                took[name].append(microseconds(torch, made))
        middle = {name: statistics.median(times) for name, times in took.items()}
        for name in ("uniform", "normal", "dropout"):
            mine, theirs = middle[name], middle[f"torch {name}"]
            results.append({
                "case": f"{name} {n}", "gt": mine, "rival": middle["copy"], "unit": "us", "ratio": middle["copy"] / mine,
                "torch": theirs, "of_torch": theirs / mine,
            })  # fmt: skip
    return results


def main() -> None:
    found = measure()
    for result in found:
        print(json.dumps(result))
    if sys.argv[1:]:
        with open(sys.argv[1], "w") as file:
            json.dump({"command": "python benchmarks/gpu_draws.py FILE", "rows": found}, file, indent=1)


if __name__ == "__main__":
    main()
