"""Work where kernels and bytes dominate: products, training steps, transfers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from measure import Result, best, times, took
from models import MLP, torch_mlp

import gt
from gt.nn import SGD


def matmul() -> Iterator[Result]:
    """Ten products of 2048 square float32, each of the last one's result, and one read."""

    def run(a: Any) -> float:
        def work() -> None:
            y = a
            for _ in range(10):
                y = a @ y
            y[0, 0].item()

        return took(work) * 1e3 / 10

    ours, theirs = gt.randn(2048, 2048) / 2048**0.5, torch.randn(2048, 2048) / 2048**0.5
    run(ours), run(theirs)
    yield times("matmul", *best(lambda: run(ours), lambda: run(theirs), 4), "ms/op")


def steps(model: Any, optimizer: Any, x: Any, y: Any, n: int) -> float:
    """Microseconds a step, the last loss read."""

    def work() -> None:
        for _ in range(n):
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        loss.item()

    return took(work) / n * 1e6


def mlp() -> Iterator[Result]:
    """Forward, loss, backward and SGD, small and larger."""
    for case, sizes, batch, n, rounds in (
        ("mlp", (784, 256, 10), 128, 50, 8),
        ("mlp-large", (1024, 4096, 4096, 1024), 256, 3, 4),
    ):
        model, other = MLP(sizes), torch_mlp(sizes)
        mine = (model, SGD(model.parameters(), lr=0.01), gt.randn(batch, sizes[0]), gt.randn(batch, sizes[-1]), n)
        optimizer = torch.optim.SGD(other.parameters(), lr=0.01)
        theirs = (other, optimizer, torch.randn(batch, sizes[0]), torch.randn(batch, sizes[-1]), n)
        steps(*mine), steps(*theirs)
        yield times(case, *best(lambda mine=mine: steps(*mine), lambda theirs=theirs: steps(*theirs), rounds), "us/step")


def transfer() -> Iterator[Result]:
    """256 MB up and down on one host; the rival copies the same bytes once, into memory that is already there."""
    data = np.random.default_rng(0).random(64 << 20, dtype=np.float32)
    into = data.copy()

    def up() -> float:
        held: list = []

        def work() -> None:
            held.append(gt.from_numpy(data))
            held[0][0].item()

        return took(work) * 1e3

    there = gt.from_numpy(data)
    there[0].item()

    def down() -> float:
        return took(lambda: there.numpy()) * 1e3

    def copy() -> float:
        return took(lambda: np.copyto(into, data)) * 1e3

    up(), down()
    yield times("transfer-up", *best(up, copy, 5), "ms")
    yield times("transfer-down", *best(down, copy, 5), "ms")


CASES = {"matmul": matmul, "mlp": mlp, "transfer": transfer}
