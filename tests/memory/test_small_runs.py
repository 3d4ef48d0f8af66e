"""Loops whose programs are runs of small instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.small import NATIVE
from gt.testing import cluster

pytestmark = [
    pytest.mark.skipif(NATIVE is None, reason="the part in C was not built"),
    pytest.mark.default("GT_TRACE"),  # tests of its effect
]


def centres(lib: Any, x: Any, c: Any) -> Any:
    """One step of k-means."""
    apart = (x * x).sum(1, keepdim=True) - 2 * x @ c.T + (c * c).sum(1)
    distance, nearest = apart.min(1)
    sums = lib.zeros_like(c).index_add(0, nearest, x)
    counts = lib.zeros_like(c[:, 0]).index_add(0, nearest, lib.ones_like(x[:, 0]))
    return 0.9 * c + 0.1 * sums / counts.clamp(min=1)[:, None], distance.mean()


def looped(lib: Any, points: list[np.ndarray]) -> list[float]:
    c, read = lib.tensor(points[0][:6]), []
    for x in points:
        c, distance = centres(lib, lib.tensor(x), c)
        read.append(distance.item())
    return [*read, *c.flatten().tolist()]


def test_kmeans_runs_in_c_and_gives_pytorchs_numbers_and_those_of_single_ops(monkeypatch: Any) -> None:
    rng = np.random.default_rng(0)
    points = [rng.standard_normal((50, 4), np.float32) for _ in range(12)]
    with cluster(1, "pytorch") as c:
        found = looped(gt, points)
        traces = c.workers[0].stats()["traces"]
        assert traces["small_run_ops"] >= 15 * traces["calls"] > 0
        assert any(" ops in one call" in text for p in gt.debug.programs() for text in p.stages.values())
        assert sum(stats["replay"]["small_run_ops"] for stats in gt.debug.get_worker_stats().values()) > 0
    monkeypatch.setenv("GT_TRACE", "0")
    with cluster(1, "pytorch"):
        assert looped(gt, points) == found
    np.testing.assert_allclose(found, looped(torch, points), rtol=1e-5)


def test_single_kernels_lstms_norms_and_updates_of_rows_are_counted_outside_of_traces() -> None:
    def changed(work: Callable[[], Any]) -> dict[str, int]:
        before = c.workers[0].stats()["small_kernels"]
        work()
        c.settle()
        after = c.workers[0].stats()["small_kernels"]
        return {name: n - before[name] for name, n in after.items() if n > before[name]}

    with cluster(1, "pytorch") as c:
        x, lstm = gt.ones(4, 3), gt.nn.LSTM(3, 5, 2)
        table, norm = gt.nn.Embedding(6, 3, sparse=True), gt.nn.BatchNorm1d(3, track_running_stats=False)
        rows = gt.optim.SGD(table.parameters(), lr=0.1)
        c.settle()
        assert changed(lambda: x.softmax(1).tolist()) == {"runs": 1}
        assert changed(lambda: (x + 1).tolist()) == {}, "PyTorch's"
        assert changed(lambda: lstm(x)[0].tolist()) == {"recurrent": 2}
        assert changed(lambda: norm(x).tolist()) == {"norm": 1}
        assert changed(lambda: (norm(x) ** 2).sum().backward())["norm_gradient"] == 1
        found = changed(lambda: lstm(x.detach().requires_grad_())[0].sum().backward())
        assert (found["recurrent"], found["recurrent_gradient"]) == (2, 2)
        (table(gt.tensor([1, 2, 5])) ** 2).sum().backward()
        assert changed(rows.step)["rows"] == 1


def test_a_place_outside_fails_the_results_that_use_it_and_no_others() -> None:
    with cluster(1, "pytorch") as c:
        table, rows = gt.tensor(np.arange(12, dtype=np.float32).reshape(6, 2)), gt.tensor([1, 2, 5])
        for k in range(12):
            places = rows if k < 11 else gt.tensor([1, 2, 6])
            before = table * 2 + 1
            picked = gt.index_select(before, 0, places) * 3
            other = (before - 1) * 0.5
            assert other.sum().item() == 66
            if k < 11:
                assert picked.sum().item() == 228
        with pytest.raises(gt.errors.RemoteError, match="index"):
            picked.sum().item()
        assert c.workers[0].stats()["traces"]["small_run_ops"] > 0
        assert (table + 1).sum().item() == 78
