"""A training loop on one worker, half of which runs when the kernels of its CUDA graphs are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gt
from gt.testing import cluster

EVERY = 5  # steps after which the loss is read
Begun = tuple[list[Any], Callable[[], Any]]  # the parameters, and a function that gives a step's loss


def trained(begin: Callable[[], Begun], steps: int = 60) -> tuple[list[float], dict[str, Any]]:
    """The losses read, and the worker's statistics of traces. `begin` is called when the worker is there."""
    with cluster(1, "pytorch") as c:
        parameters, loss_of_step = begin()
        optimizer, losses = gt.optim.Adam(parameters, lr=1e-3), []
        for i in range(steps):
            optimizer.zero_grad()
            loss = loss_of_step()
            loss.backward()
            optimizer.step()
            if i % EVERY == EVERY - 1:
                losses.append(loss.item())
            if i == steps // 2:
                await_kernels(c.workers[0].engine)
        return losses, c.workers[0].stats()["traces"]


def await_kernels(engine: Any) -> None:
    """Wait until Triton has compiled the kernels that graphs asked for."""
    if engine.chains is not None:
        while (thread := engine.chains.thread) is not None:
            thread.join()
