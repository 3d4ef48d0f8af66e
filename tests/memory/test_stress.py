"""Random programs over overlapping sets of workers: no order of events leaves a process waiting or a tensor unfreed."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

import gt
from gt.config import ShardConfig, SignalConfig
from gt.dispatcher import core, rewrite
from gt.dispatcher.tables import Tables
from gt.testing import cluster

MOVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "exchange")
COLLECTIVES = int(os.environ.get("TEST_COLLECTIVES", 2000))  # a long run asks for 10,000


def program(rng: random.Random, signals: list[str], ops: int, bad: tuple[type[Exception], ...] = ()) -> int:
    """Ops on random operands under random signals, checked against NumPy at the end. How many could be read: all, unless
    reading may raise the errors in `bad`."""
    pool: list[tuple[gt.Tensor, np.ndarray]] = []
    for i in range(4):
        a = np.random.default_rng(i).integers(-3, 4, (5, 6)).astype("f4")
        with gt.signal.context(rng.choice(signals)):
            pool.append((gt.from_numpy(a), a))
    for _ in range(ops):
        (x, a), (y, b) = rng.choice(pool), rng.choice(pool)
        with gt.signal.context(rng.choice(signals)):
            made = [
                lambda: (x + y, a + b),
                lambda: ((x * y).relu(), (a * b).clip(0)),
                lambda: ((x.T @ y).sum(axis=0, keepdims=True) + x, (a.T @ b).sum(0, keepdims=True) + a),
                lambda: (gt.signal.tensor(x, name=rng.choice(signals)), a),
                lambda: (x - x.amax(axis=0), a - a.max(0)),
                lambda: (x.sum(axis=1, keepdims=True) + y, a.sum(1, keepdims=True) + b),
            ]
            t, want = rng.choice(made)()
            pool[rng.randrange(4)] = ((t / (t.abs().amax() + 1.0)).relu() * 4.0, (want / (np.abs(want).max() + 1)).clip(0) * 4)
    read = 0
    for t, want in pool:
        try:
            np.testing.assert_allclose(t.numpy(), want, rtol=1e-3, atol=1e-4)
            read += 1
        except bad:
            pass
    return read


@pytest.mark.parametrize("seed", range(2))
def test_random_programs_over_overlapping_workers_end(seed):
    rng = random.Random(seed)
    done = 0
    while done < COLLECTIVES // 2:
        with cluster(4) as made:
            names = []
            for i in range(6):
                workers = rng.sample(range(4), rng.randint(1, 4))
                gt.register_config(f"s{i}", SignalConfig(ShardConfig(rng.randint(0, 1), workers, rng.random() < 0.3)))
                names.append(f"s{i}")
            program(rng, names, 40)
            made.settle()
            done += sum(n for w in made.workers for k, n in w.stats()["ops"].items() if k in MOVES)


def test_random_programs_are_the_same_where_the_dispatcher_serves_clients_in_small_turns(monkeypatch):
    monkeypatch.setattr(core, "SLICE", 6)
    monkeypatch.setattr(rewrite, "LONG", 3)
    rng = random.Random(7)
    with cluster(3):
        for i in range(4):
            workers = rng.sample(range(3), rng.randint(1, 3))
            gt.register_config(f"s{i}", SignalConfig(ShardConfig(rng.randint(0, 1), workers, rng.random() < 0.3)))
        cut, cut_short = [], Tables.cut_short
        monkeypatch.setattr(Tables, "cut_short", lambda self, client: (cut.append(client.name), cut_short(self, client)))
        program(rng, [f"s{i}" for i in range(4)], 40)
        assert len(cut) > 20
