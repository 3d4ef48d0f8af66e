"""Several clients of one dispatcher: their frees, and the workers' statistics."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import gt
from gt.client.scope import HERE, Scope
from gt.client.session import Session
from gt.testing import Cluster
from tests.memory.collecting import collect


@contextmanager
def using(session: Session) -> Iterator[None]:
    before, HERE.scope = HERE.scope, Scope(session)
    try:
        yield
    finally:
        HERE.scope = before


def held(pool: Cluster, client: str = "c0") -> int:
    pool.settle()
    return len(pool.workers[0].spaces[client].table)


def test_two_clients_with_the_same_ids_keep_their_own_values(pool: Cluster) -> None:
    other = pool.session()
    mine = gt.tensor([1.0, 2.0])
    with using(other):
        theirs = gt.tensor([10.0, 20.0])
        assert theirs.handle.id == mine.handle.id
        doubled = theirs * 2
    tripled = mine * 3
    assert tripled.tolist() == [3, 6] and mine.tolist() == [1, 2]
    with using(other):
        assert doubled.tolist() == [20, 40] and theirs.tolist() == [10, 20]


def test_a_client_that_leaves_frees_all_it_had_and_nothing_else(pool: Cluster) -> None:
    other = pool.session()
    mine = gt.ones(2)
    with using(other):
        theirs = [gt.ones(3) for _ in range(5)]
    assert held(pool, "c1") == 5
    from gt.transport.messages import Bye, Mail

    pool.hub.post("c1", Mail("dispatcher", Bye()))
    pool.hub.deliver()
    assert "c1" not in pool.workers[0].spaces and "c1" not in pool.dispatcher.tables.clients
    assert mine.tolist() == [1, 1] and len(theirs) == 5


def test_a_dropped_tensor_is_freed_on_the_worker(pool: Cluster) -> None:
    x = gt.ones(4)
    assert held(pool) == 1
    y = x + 1
    z = y * 2
    assert held(pool) == 3
    del y
    assert held(pool) == 2
    x = z = None  # noqa: F841
    collect()
    assert held(pool) == 0


def test_a_read_that_failed_keeps_nothing(pool: Cluster) -> None:
    def read() -> None:
        x = gt.ones(4)
        y = gt.linalg.cholesky(gt.zeros(3, 3) - 1.0)  # there is none
        with pytest.raises(gt.errors.RemoteError):
            y.numpy()
        del x

    collect()
    gc.disable()
    try:
        read()
        assert held(pool) == 0
    finally:
        gc.enable()


def test_in_place_updates_leave_nothing_behind(pool: Cluster) -> None:
    x = gt.ones(4)
    for _ in range(100):
        x -= 0.5
        x.mul_(1.0)
    assert held(pool) == 1
    x.zero_()
    assert held(pool) == 1 and x.tolist() == [0] * 4


def test_a_view_holds_its_base_and_a_copy_does_not(pool: Cluster) -> None:
    """As in PyTorch, where they share a storage."""
    x = gt.ones(10, 10)
    part = x[2:4].reshape(-1)
    copy = part.clone()
    del x
    assert held(pool) == 4 and part.shape == (20,)  # the tensor, its rows, those as one axis, the copy
    del part
    assert held(pool) == 1 and copy.shape == (20,)


def test_ten_thousand_ops_leave_one_tensor(pool: Cluster) -> None:
    x = gt.ones(2)
    for _ in range(10_000):
        x = x * 1.0
    assert held(pool) == 1 and x.tolist() == [1, 1]


def test_many_kinds_are_forgotten_and_learnt_again(pool: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.client.kinds.MOST", 50)
    kept = gt.full((3,), 2.0)
    for n in range(1, 400):
        assert (gt.ones(n) + 1).sum().item() == 2 * n
    assert (kept * 2).tolist() == [4, 4, 4]
    client = pool.dispatcher.tables.clients["c0"]
    assert len(client.uses) < 400 and len(pool.workers[0].spaces["c0"].kinds) < 400


def test_worker_stats_tell_engine_device_ops_bytes_queue_and_failures(pool: Cluster) -> None:
    a = gt.ones(4, 4)
    b = (a @ a).exp()
    b.numpy()
    [(name, stats)] = gt.debug.get_worker_stats().items()
    assert name == "w0" and stats["index"] == 0 and stats["engine"] in ("numpy", "pytorch") and stats["device"] == "cpu"
    assert stats["ops"]["matmul"] == 1 and stats["ops"]["exp"] == 1 and stats["tensors"] == 2
    assert 0 < stats["bytes"] <= stats["bytes_total"] and stats["failures"] == 0 and stats["dropped"] == 0


def test_worker_stats_print_as_a_table(pool: Cluster, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    (gt.ones(4, 4) @ gt.ones(4, 4)).numpy()
    gt.debug.print_worker_stats()
    text = capsys.readouterr().out
    for word in ("Workers", "w0", "engine", "device", "cpu", "matmul 1", "idle", "queue", "bytes"):
        assert word in text


def test_the_tape_prints_as_a_table(pool: Cluster, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    a = gt.ones(3, 2, requires_grad=True)
    loss = (a * 2.0).sum()
    entries = gt.debug.get_tape()
    assert [(e.op, e.sources) for e in entries] == [("mul", ("leaf",)), ("sum", (entries[0].order,))]
    assert entries[0].inputs[1] == 2.0 and entries[0].outputs[0].shape == (3, 2) and loss.shape == ()
    gt.debug.print_tape()
    text = capsys.readouterr().out
    for word in ("Tape: 2 ops", "mul", "sum", "float32[3, 2]", "2.0", "leaf", f"#{entries[0].order}"):
        assert word in text
    loss.backward()
    assert gt.debug.get_tape() == []
    del loss
    gt.debug.print_tape()
    assert "Tape: 0 ops" in capsys.readouterr().out


def test_where_a_tensor_lies_can_be_asked(pool: Cluster) -> None:
    x = gt.ones(2)
    assert repr(x.placement) == "Replicate() on [0]"
    assert pool.sessions[0].ask("placement", 999) is None


def test_tensor_bytes_never_pass_through_the_dispatcher(pool: Cluster) -> None:
    x = gt.from_numpy(np.zeros(10_000, "f4"))
    (x + 1).numpy()
    assert pool.hub.frames_seen.get("dispatcher", 0) == 0
