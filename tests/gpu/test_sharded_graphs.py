"""Traces with collectives on a GPU: each segment between two collectives is a CUDA graph, with one worker's numbers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.scope import HERE
from gt.config import ShardConfig, SignalConfig
from gt.nn import SGD, Linear
from gt.testing import cluster
from gt.worker.engine.torch.engine import TorchEngine

ROUNDS = 12
pytestmark = [pytest.mark.gpu, pytest.mark.default("GT_TRACE")]

SIGNALS = {
    "batch": SignalConfig(ShardConfig(axis=0)),
    "copies": SignalConfig(ShardConfig(replicated=True)),
    "columns": SignalConfig(ShardConfig(axis=1)),
}


def train(workers: int, parameters: str, optimizer_of: Any, steps: int = 25, every: int = 0) -> tuple[list, list[Counter]]:
    """Fresh batches, a rate that changes, results that are held over several steps, an input that varies late, and a read in
    every so many steps."""
    with cluster(workers, "pytorch") as c:
        if workers == 1:
            HERE.scope.session.tracer = None
        for name, config in SIGNALS.items():
            gt.register_config(name, config)
        gt.manual_seed(0)
        with gt.signal.context(parameters):
            first, second = Linear(8, 16), Linear(16, 4)
        weights = [*first.parameters(), *second.parameters()]
        optimizer, rng = optimizer_of(weights), np.random.default_rng(0)
        losses, kept = [], []
        for i in range(steps):
            optimizer.param_groups[0]["lr"] = 0.1 / (i + 1)
            with gt.signal.context("batch"):
                x, y = (gt.from_numpy(rng.standard_normal((32, n), np.float32)) for n in (8, 4))
                h = first(x).relu()
                loss = ((second(h) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.numpy() if every and i % every == 0 else loss)
            if i % 5 == 2:
                kept += [h, weights[0].detach(), weights[2].detach().T]
        values = [v if isinstance(v, np.ndarray) else v.numpy() for v in (*losses, *kept, *weights)]
        return values, [Counter(w.stats()["traces"]) for w in c.workers]


@pytest.mark.parametrize("parameters", ["copies", "columns"])
@pytest.mark.parametrize(
    "optimizer", [lambda p: SGD(p, lr=0.1, momentum=0.9), lambda p: gt.optim.AdamW(p, lr=0.01)], ids=["momentum", "adamw"]
)
def test_graphs_between_collectives_give_one_worker_s_numbers(parameters: str, optimizer: Any) -> None:
    want, _ = train(1, parameters, optimizer)
    found, stats = train(2, parameters, optimizer)
    for worker in stats:
        assert worker["sharded_calls"] >= 10 and worker["compiled_calls"] >= 10 and not worker["fallbacks"], worker
    for a, b in zip(found, want):
        np.testing.assert_allclose(a, b, rtol=5e-4, atol=5e-5)


@pytest.mark.parametrize("parameters", ["copies", "columns"])
def test_each_worker_launches_on_its_client_s_stream_also_where_a_collective_ends(
    parameters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both workers are in this thread, whose current stream is the one that was set last."""
    wrong: list[str] = []
    seen: Counter[int] = Counter()

    def watched(name: str) -> None:
        run = getattr(TorchEngine, name)

        def call(self: Any, *operands: Any) -> Any:
            current, own = torch.cuda.current_stream(self.at), self.streams.streams.values()
            seen[id(self)] += 1
            if own and current not in [main for main, _ in own]:
                wrong.append(f"{name} on {current}")
            return run(self, *operands)

        monkeypatch.setattr(TorchEngine, name, call)

    watched("load")
    watched("store")
    train(2, parameters, lambda p: gt.optim.AdamW(p, lr=0.01))
    assert len(seen) == 2 and not wrong, wrong[:5]


def test_losses_of_a_sharded_loop_are_one_worker_s_each_time() -> None:
    """Many rounds with reads in each step, so that answers, collectives and graphs of two workers follow closely."""

    def adamw(weights: Any) -> Any:
        return gt.optim.AdamW(weights, lr=0.01)

    want, _ = train(1, "columns", adamw)
    for round in range(ROUNDS):
        found, _ = train(2, "columns", adamw, every=1 + round % 2)
        for a, b in zip(found, want):
            np.testing.assert_allclose(a, b, rtol=5e-4, atol=5e-5, err_msg=f"round {round}")
