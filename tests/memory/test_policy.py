"""The workers of tensors outside signals, the counts, and their display to users."""

from __future__ import annotations

import numpy as np
import pytest

import gt
from gt.client.scope import HERE, Scope
from gt.testing import cluster


def loads(made) -> list[int]:
    made.settle()
    return [w.bytes for w in made.dispatcher.tables.living()]


def held(made) -> list[int]:
    """Bytes that the workers really hold."""
    made.settle()
    return [sum(a.nbytes for s in w.spaces.values() for a in s.table.values()) for w in made.workers]


def test_independent_tensors_go_to_the_least_loaded_worker():
    with cluster(3) as made:
        kept = [gt.ones(512, 1024) for _ in range(6)]  # 2 MiB each
        assert loads(made) == held(made) == [4 << 20] * 3
        assert [t.placement.workers[0] for t in kept] == [0, 1, 2, 0, 1, 2]


def test_results_stay_with_their_inputs():
    with cluster(3) as made:
        a = gt.ones(512, 1024)
        b = gt.ones(512, 1024)
        assert (a + 1).placement.workers == a.placement.workers == [0]
        assert (b * b).sum().placement.workers == b.placement.workers == [1]
        made.check()


def test_an_op_on_two_workers_moves_the_smaller():
    with cluster(2) as made:
        a = gt.ones(512, 1024)
        b = gt.ones(1024, 512 * 2)
        assert a.placement.workers == [0] and b.placement.workers == [1]
        before = made.hub.frames_seen.get("w1", 0)
        y = a @ b
        assert y.placement.workers == [1]
        assert made.hub.frames_seen["w1"] - before == a.handle.spec.nbytes
        assert y.numpy()[0, 0] == 1024


def test_tensors_that_could_not_be_made_drive_others_from_no_worker():
    """A client that makes nothing but mistakes, and asks for no word of them, would else decide where others compute."""
    with cluster(2) as made:
        kept = [gt.zeros(1 << 47)]
        assert loads(made) == [0, 0]
        HERE.scope = Scope(made.session())  # of the other home
        HERE.scope = Scope(made.session())
        assert gt.ones(512, 1024).placement.workers == [0]
        assert kept


def test_small_tensors_stay_at_home():
    with cluster(2) as made:
        kept = [gt.ones(16) for _ in range(8)]
        assert {t.placement.workers[0] for t in kept} == {0}
        made.check()


def test_clients_have_different_homes():
    with cluster(2) as made:
        a = gt.ones(4)
        mine = HERE.scope
        HERE.scope = Scope(made.session())
        b = gt.ones(4)
        assert b.placement.workers == [1]
        del b
        HERE.scope = mine
        assert a.placement.workers == [0]


def test_a_freed_tensor_is_not_counted():
    with cluster(2) as made:
        gt.register_config("b", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
        gt.register_config("r", gt.SignalConfig(shard=gt.ShardConfig(replicated=True)))
        with gt.signal.context("b"):
            x = gt.ones(512, 1024)
        with gt.signal.context("r"):
            w = gt.ones(1024, 8)
        assert loads(made) == held(made) == [(1 << 20) + (1 << 15)] * 2
        y = x @ w
        assert loads(made) == held(made)
        del x, y, w
        assert loads(made) == held(made) == [0, 0]


def test_a_client_that_goes_is_not_counted():
    with cluster(2) as made:
        mine = HERE.scope
        HERE.scope = Scope(made.session())
        x = gt.ones(512, 1024)
        assert sum(loads(made)) == 2 << 20
        made.dispatcher.lose("c1", "it left")
        HERE.scope = mine
        assert sum(w.bytes for w in made.dispatcher.tables.living()) == 0
        made.sessions[1].close()
        del x


def test_auto_shard_cuts_large_tensors_and_copies_small_ones():
    with cluster(2) as made:
        made.dispatcher.rewriter.auto_shard = True
        gt.manual_seed(3)
        large, small, flat = gt.randn(1024, 512), gt.randn(16), gt.randn(1, 1 << 20)
        assert repr(large.placement) == "Shard(0) on [0, 1]"
        assert repr(small.placement) == "Replicate() on [0, 1]"
        assert repr(flat.placement) == "Replicate() on [0, 1]"
        y = (large * 2).relu().sum()
        assert np.isclose(y.item(), (large.numpy() * 2).clip(0).sum(), rtol=1e-4)


def test_placements_are_shown(capsys):
    with cluster(3):
        gt.register_config("b", gt.SignalConfig(shard=gt.ShardConfig(axis=1)))
        with gt.signal.context("b"):
            x = gt.ones(2, 5)
        gt.debug.placement(x)
        assert capsys.readouterr().out.splitlines() == [
            "Shard(1) on [0, 1, 2]",
            "  worker 0: [2, 2]",
            "  worker 1: [2, 2] from [0, 2]",
            "  worker 2: [2, 1] from [0, 4]",
        ]
        assert x.placement.pieces[2] == (2, (0, 4), (2, 1))


def test_missing_workers_are_told_of_once():
    with cluster(2):
        gt.register_config("far", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[1, 7])))
        with gt.signal.context("far"):
            x = gt.ones(4)
        with pytest.warns(
            UserWarning, match="'far' asks for workers that are not there .there are 2.: it uses the existing ones"
        ):
            assert x.tolist() == [1, 1, 1, 1]
        assert repr(x.placement) == "Replicate() on [1]"
        with gt.signal.context("far"):
            assert gt.ones(2).tolist() == [1, 1]
