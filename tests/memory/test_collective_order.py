"""Workers that serve clients in turns, each by a queue and a clock of its own, with mail that comes in any order between them:
whatever happens in between, collectives of several clients begin in one order everywhere, and no worker waits for ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

import gt
from gt.client.scope import HERE, Scope
from gt.testing import Cluster, cluster
from gt.testing.fuzz_random import FuzzRandom
from gt.testing.schedule import Schedule, ScheduledWorker

WORKERS, DISTRIBUTED, SINGLE = 3, 2, 2


@contextmanager
def in_turns(seed: int) -> Iterator[tuple[Cluster, list[ScheduledWorker]]]:
    """A cluster whose workers go on in an order drawn at random."""
    with cluster(WORKERS) as made:
        yield made, Schedule(made, FuzzRandom(seed)).workers


def rounds(seed: int, count: int) -> tuple[Cluster, list[ScheduledWorker]]:
    """Distributed clients and others, each with a few tensors that it computes with; every value is compared."""
    with in_turns(seed) as (made, sites):
        random = Random(seed + 1)
        scopes = [Scope(s) for s in (made.sessions[0], *(made.session() for _ in range(DISTRIBUTED + SINGLE - 1)))]
        for n in range(count):
            kept = []
            for place in random.sample(range(len(scopes)), len(scopes)):
                HERE.scope = scopes[place]
                value = float(random.randrange(50))
                if place < DISTRIBUTED:
                    gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(axis=0)))
                    with gt.signal("rows"):
                        x = gt.ones(6, 4) * value
                    made_here = (x.sum() + (x @ gt.ones(4, 1)).sum() + x.mean(0).sum(), value * (24 + 24 + 4))
                else:
                    x = gt.ones(4, 4) * value
                    for _ in range(random.randrange(5)):
                        x = (x @ x) * 0.0 + value
                    made_here = (x.sum(), value * 16)
                kept.append((place, *made_here))
                if random.random() < 0.5:
                    scopes[place].session.flush(wait=False)
            for place, found, want in random.sample(kept, len(kept)):
                HERE.scope = scopes[place]
                assert found.item() == want, f"round {n}"
            del kept, x, found, made_here
        HERE.scope = scopes[0]
        return made, sites


@pytest.mark.parametrize("seed", range(2))
def test_collectives_of_several_clients_never_stall(seed: int) -> None:
    _, sites = rounds(seed, 12)
    assert all(site.turns.queue.preemptions for site in sites), "runs were left for others"
    assert all(site.core.executor.collectives_begun for site in sites) and not any(s.core.parked for s in sites)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_a_thousand_rounds_never_stall(seed: int) -> None:
    rounds(seed, 50)
