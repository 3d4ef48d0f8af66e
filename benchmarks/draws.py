"""Random draws on a CPU against torch: uniform, normal, a mask and dropout, float32, 2^10 to 2^22 numbers, one thread and all.

The worker's own functions and torch's run alternately in one process; `ratio` is how many times as fast GT's are, best of many.
A burst lasts BURST seconds, or three calls: a Xeon takes a third of a millisecond after a pause to run instructions of 512 bits
at full speed, so that ten calls (normal, 1,024 numbers) measured 6.9 us where later ones take 4.2; torch's take 5.4 and 4.9.
`python benchmarks/run.py draws`; GT's numbers are the same on every engine and processor, torch's are not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from measure import times
from tensor_ops_torch import PAUSE, threads

from gt.tensor_ops.measure import alternately

SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 22)
SEED, NUMBER, P = 12345, 7, 0.3
BURST, ROUNDS = 0.003, 5


def pairs(torch: Any, n: int) -> Iterator[tuple[str, Callable, Callable]]:
    """Each distribution: its name, GT's call and torch's."""
    from gt.worker.engine.torch.namespace import TorchNamespace

    ours = TorchNamespace(torch.device("cpu"))
    x, least = torch.randn(n), round(P * (1 << 16))
    yield "uniform", lambda: ours.fractions(SEED, NUMBER, 0, n), lambda: torch.rand(n)
    yield "normal", lambda: ours.normals(SEED, NUMBER, 0, n), lambda: torch.randn(n)
    mask = lambda: torch.empty(n, dtype=torch.bool).bernoulli_(1 - P)
    yield "mask", lambda: ours.bernoulli(SEED, NUMBER, 0, n, least), mask
    yield "dropout", lambda: ours.dropped(x, P, SEED, NUMBER, 0), lambda: torch.nn.functional.dropout(x, P)


def calls(*runs: Callable) -> int:
    """How many calls a burst has, the same for both: as many as the faster one makes in BURST seconds."""
    took = []
    for run in runs:
        run()
        began = time.perf_counter()
        run()
        took.append(time.perf_counter() - began)
    return max(3, round(BURST / min(took)))


def cases() -> Iterator[dict[str, Any]]:
    """One dict a comparison: case, gt, rival, unit, ratio."""
    import torch

    for count in threads():
        torch.set_num_threads(count)
        os.environ["OMP_NUM_THREADS"] = str(count)  # from which GT's draws take the number of their threads
        for n in SIZES:
            for name, mine, theirs in pairs(torch, n):
                pause = PAUSE if count > 1 else 0.0  # without a second thread of OpenMP's none spins on
                took = alternately({"gt": mine, "rival": theirs}, ROUNDS, pause=pause, burst=calls(mine, theirs))
                case = f"draws {count} thread{'s' * (count > 1)} {n} {name}"
                yield times(case, took["gt"] * 1e6, took["rival"] * 1e6, "us")


CASES = {"draws": cases}
