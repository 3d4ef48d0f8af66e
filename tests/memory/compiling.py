"""A cluster whose worker compiles, and waiting for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import numpy as np

import gt
from gt.client.scope import HERE
from gt.testing import Cluster, cluster
from gt.worker.engine.torch.inductor import Inductor, _turns
from tests.conftest import DEADLINE


@contextmanager
def compiling(replay: bool = True) -> Iterator[Cluster]:
    """The environment decides whether its worker compiles; the worker's lines about it are in `c.lines`."""
    ticks = count(0.0, 1e-6)  # as on a fast machine: clients group slow steps otherwise
    with cluster(1, "pytorch", clock=partial(next, ticks)) as c:
        c.lines = []  # type: ignore[attr-defined]
        c.workers[0].engine.clock = time.perf_counter
        c.workers[0].say = c.lines.append  # type: ignore[attr-defined]
        if HERE.scope.session.steps is not None:
            HERE.scope.session.steps.on = False  # the programs of several steps at once would be compiled, too
        if not replay:
            HERE.scope.session.tracer = None
        yield c
        settle(c)


def compilers(c: Cluster) -> list[Inductor]:
    c.settle()
    spaces = c.workers[0].spaces.values()
    found = (getattr(ready, "faster", None) for space in spaces for _, _, ready in space.kinds.values())
    return [f for f in found if isinstance(f, Inductor)]


def settle(c: Cluster) -> None:
    """Wait until nothing is being compiled."""
    for inductor in compilers(c):
        if inductor.thread is not None:
            inductor.thread.join(DEADLINE - 40)
            assert not inductor.thread.is_alive()


def stats(c: Cluster) -> dict[str, float]:
    c.settle()
    return c.workers[0].stats()["traces"]


def loop(c: Cluster, step: Callable[[int], Any], times: int, wait: int = 8) -> list[np.ndarray]:
    """The values that a step gives, read each time; nothing is compiled before step `wait`, and then all that is hot."""
    with _turns:
        found = [step(i).numpy() for i in range(wait)]
    settle(c)
    return found + [step(i).numpy() for i in range(wait, times)]


def arithmetic(x: Any, number: float) -> Any:
    """Enough ops to be a trace."""
    return ((x * 2.0 + number).tanh() @ x.T + 0.5).relu() * number


def model(optimizer_of: Any, rate: Any) -> Callable[[int], Any]:
    """A training step, and the loss it gives."""
    gt.manual_seed(0)
    first, second = gt.nn.Linear(8, 16), gt.nn.Linear(16, 4)
    optimizer = optimizer_of([*first.parameters(), *second.parameters()])
    x, y = gt.randn(32, 8), gt.randn(32, 4)

    def step(i: int) -> Any:
        optimizer.param_groups[0]["lr"] = rate(i)
        loss = ((second(first(x).relu()) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step
