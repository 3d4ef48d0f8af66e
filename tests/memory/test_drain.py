"""Workers that leave move their tensors to other workers."""

from __future__ import annotations

import numpy as np
import pytest

import gt
from gt.errors import WorkerLost
from gt.testing import cluster

SIGNALS = {
    "rows": {"shard": {"axis": 0}},
    "columns": {"shard": {"axis": 1}},
    "pair": {"shard": {"axis": 0, "workers": [0, 1]}},
}


def configure() -> None:
    for name, how in SIGNALS.items():
        shard = how["shard"]
        gt.register_config(name, gt.SignalConfig(shard=gt.ShardConfig(**shard)))


def test_a_tensor_of_one_worker_moves_to_another() -> None:
    with cluster(3) as made:
        x = gt.arange(12).reshape(3, 4)
        made.settle()
        made.drain(0)
        assert (x.numpy() == np.arange(12).reshape(3, 4)).all() and (x + x).sum().item() == 132
        assert made.dispatcher.tables.drained == 1 and made.dispatcher.tables.moved >= 1


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("gone", [(0,), (1,), (2, 0), (1, 2)])
def test_a_tensor_in_pieces_moves_and_computes_on(signal: str, gone: tuple[int, ...]) -> None:
    a = np.arange(42, dtype="f4").reshape(7, 6)
    with cluster(3) as made:
        configure()
        with gt.signal(signal):
            x = gt.from_numpy(a)
        w = gt.from_numpy(a.T.copy())
        partial = x.sum(0) if signal != "columns" else x.sum(1)  # terms that nobody has added up yet
        for worker in gone:
            made.drain(worker)
        assert (x.numpy() == a).all() and (x @ w).numpy().shape == (7, 7)
        np.testing.assert_allclose((x @ w).numpy(), a @ a.T)
        np.testing.assert_allclose(partial.numpy(), a.sum(1 if signal == "columns" else 0))


def test_values_go_with_the_last_worker_and_say_why() -> None:
    with cluster(1) as made:
        x = gt.ones(2, 2)
        made.drain(0)
        with pytest.raises(WorkerLost, match="was lost: it was asked to end"):
            x.numpy()
        made.workers[0].spaces.clear()  # as the process ends


def test_nothing_is_placed_on_a_worker_that_leaves() -> None:
    with cluster(2) as made:
        x = gt.ones(2, 2)
        made.settle()
        made.drain(0)
        y = [gt.ones(4, 4) + i for i in range(4)]
        assert sum(t.sum().item() for t in y) == 16 * 10 and x.sum().item() == 4
        assert made.workers[0].spaces == {} or not any(s.table for s in made.workers[0].spaces.values())
