"""Time the backends against each other in one process: alternately, so that a busy machine slows all of them alike."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gt.tensor_ops import calls
from gt.tensor_ops.choice import module

COLUMNS = 4096
PAUSE = 0.003
BURST = 3


def alternately(
    runs: Mapping[str, Callable[[], Any]],
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
    pause: float = PAUSE,
    burst: int = BURST,
) -> dict[str, float]:
    """The best time of each, in seconds, over rounds that run every one of them a few times in a row.

    A pause before each lets the threads of the one before go to sleep: OpenMP's spin for a while and would take a core.
    The first run after it wakes the threads.
    """
    best = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            time.sleep(pause)
            for _ in range(burst):
                began = clock()
                run()
                best[name] = min(best[name], clock() - began)
    return best


def all_backends(names: list[str], rows: int = 1024, rounds: int = 10) -> dict[str, dict[str, float]]:
    """Seconds by op, then backend, on (rows, 4096) float32."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, COLUMNS), dtype=np.float32)
    weight = rng.standard_normal(COLUMNS, dtype=np.float32)
    out = np.empty_like(x)
    ops: dict[str, Callable[[Any], Any]] = {
        "rms_norm": lambda backend: calls.rms_norm(backend, x, weight, 1e-6, out),
        "silu": lambda backend: calls.silu(backend, x, out),
        "gelu": lambda backend: calls.gelu(backend, x, "tanh", out),
    }
    backends = {name: module(name) for name in names}

    def bound(op: Callable[[Any], Any], backend: Any) -> Callable[[], Any]:
        return lambda: op(backend)

    return {name: alternately({b: bound(op, backend) for b, backend in backends.items()}, rounds) for name, op in ops.items()}


def show(results: dict[str, dict[str, float]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("op", "backend", "ms", "times NumPy's speed")
    for op, took in results.items():
        for name, seconds in took.items():
            table.add_row(op, name, f"{seconds * 1e3:.3f}", f"{took['python'] / seconds:.1f}")
    Console().print(table)


def chart(results: dict[str, dict[str, float]], path: str, title: str) -> str:
    """Write a bar chart as PNG. Raises ImportError if matplotlib is missing."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    names = list(next(iter(results.values())))
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        places = [op + i * width for op in range(len(results))]
        bars = axes.bar(places, [took[name] * 1e3 for took in results.values()], width * 0.95, label=name)
        axes.bar_label(bars, [f"{took['python'] / took[name]:.1f}x" for took in results.values()], padding=2, fontsize=9)
    axes.set_xticks([op + 0.4 - width / 2 for op in range(len(results))], list(results))
    axes.set_ylabel("milliseconds, less is better")
    axes.set_yscale("log")
    axes.margins(y=0.12)
    axes.set_title(f"{title}; above the bars, times NumPy's speed", fontsize=11, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", ncols=len(names))
    figure.savefig(path, dpi=120)
    return path
