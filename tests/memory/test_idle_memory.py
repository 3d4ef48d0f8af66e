"""A full device: memory of idle clients is moved to host memory, and back when used. On CPUs the device is a limit that is
given and the host's part is a file; the code that decides, counts and moves is the same as on a GPU."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import gt
from gt import environment
from gt.client.scope import HERE, Scope
from gt.client.session import Session
from gt.errors import GTError, OutOfMemory
from gt.testing import Cluster, cluster
from gt.worker.client_values import Moved

KB = 1 << 10
ENGINES = ["numpy", "pytorch"]


@contextmanager
def full_device(engine: str, device: int, host: int = 1 << 30, workers: int = 1) -> Iterator[Cluster]:
    with cluster(workers, engine) as made:
        for worker in made.workers:
            worker.host.limit(device, host)
        yield made


@contextmanager
def client(session: Session) -> Iterator[None]:
    before, HERE.scope = HERE.scope, Scope(session)
    try:
        yield
    finally:
        HERE.scope = before


def tensors(first: float, n: int = 3) -> list[Any]:
    """So many tensors of 64 KB each, which the worker has made."""
    made = [gt.ones(128, 128) * (first + i) for i in range(n)]
    assert made[-1][0, 0].item() == first + n - 1
    return made


def sums(held: list[Any]) -> list[float]:
    return [x.sum().item() / 128**2 for x in held]


@pytest.mark.parametrize("engine", ENGINES)
def test_idle_memory_goes_to_the_host_and_comes_back_when_it_is_used(engine: str) -> None:
    with full_device(engine, 320 * KB) as made:
        worker, other = made.workers[0], made.session()
        first = tensors(1.0)
        assert worker.host.stats()["moved_to_host"] == 0, "alone there is nothing to move"
        with client(other):
            second = tensors(10.0)
            assert sums(second) == [10.0, 11.0, 12.0]
        before = worker.host.stats()
        assert before["moved_to_host"] > 0 and before["host_bytes"] >= 64 * KB and before["moved_back"] == 0
        shown = {row["number"]: row for row in gt.debug.clients()}
        assert shown[1]["moved"] == before["host_bytes"] and shown[1]["bytes"] == 192 * KB and shown[2]["moved"] == 0
        assert sums(first) == [1.0, 2.0, 3.0]
        assert worker.host.stats()["moved_back"] > 0
        with client(other):
            assert sums(second) == [10.0, 11.0, 12.0]
            del second
        del first
        made.settle()
        assert worker.stats()["host_bytes"] == 0, "a freed tensor takes no room in the host, either"


@pytest.mark.parametrize("engine", ENGINES)
def test_who_was_served_longest_ago_makes_room_first(engine: str) -> None:
    with full_device(engine, 448 * KB) as made:
        sessions = [made.sessions[0], made.session(), made.session()]
        held = []
        for n, session in enumerate(sessions[:2]):
            with client(session):
                held.append(tensors(10.0 * n, 2))
        assert sums(held[0]) == [0.0, 1.0], "the first was served last"
        with client(sessions[2]):
            tensors(20.0, 3)
        moved = [made.workers[0].spaces[s.link.name].moved for s in sessions]
        assert moved[0] == 0 and moved[1] > 0, moved
        for n, session in enumerate(sessions[:2]):
            with client(session):
                assert sums(held[n]) == [10.0 * n, 10.0 * n + 1]
        held.clear()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_read_is_answered_from_host_memory(engine: str) -> None:
    with full_device(engine, 320 * KB) as made:
        first, other = tensors(1.0), made.session()
        views = [first[0].T, first[1][:, 5]]
        made.settle()
        with client(other):
            second = tensors(10.0)
        table = made.workers[0].spaces[made.sessions[0].link.name].table
        assert sum(isinstance(a, Moved) for a in table.values()) >= 3
        assert [float(x.numpy().mean()) for x in (*first, *views)] == [1.0, 2.0, 3.0, 1.0, 2.0]
        assert made.workers[0].host.stats()["moved_back"] == 0
        del first, second


@pytest.mark.parametrize("engine", ENGINES)
def test_views_of_a_buffer_move_together_and_share_it_afterwards(engine: str) -> None:
    with full_device(engine, 320 * KB) as made:
        x = gt.tensor(np.arange(128 * 128, dtype=np.float32).reshape(128, 128)) + 0.0
        views = [x.T, x[3:5, ::2], x.reshape(-1)]
        want = [np.asarray(v.numpy()) for v in (x, *views)]
        other = made.session()
        with client(other):
            second = tensors(10.0, 4)
            assert made.workers[0].host.stats()["moved_to_host"] > 0
        space = made.workers[0].spaces[made.sessions[0].link.name]
        assert all(isinstance(a, Moved) for a in space.table.values())
        for got, right in zip((x, *views), want):
            assert ((got + 0.0).numpy() == right).all()
        engine_ = made.workers[0].engine
        made.settle()
        assert len({engine_.buffer(a)[0] for a in space.table.values()}) == 1
        del second, x, views


@pytest.mark.parametrize("engine", ENGINES)
def test_only_when_the_host_is_full_too_there_is_an_error_on_the_line(engine: str) -> None:
    with full_device(engine, 320 * KB, host=192 * KB) as made:
        first, other = tensors(1.0), made.session()
        with client(other):
            second = tensors(10.0, 3)
            lost, line = gt.ones(128, 256) * 2.0, inspect.currentframe().f_lineno  # type: ignore[union-attr]
            with pytest.raises(OutOfMemory, match=f"GT_HOST_MEMORY(.|\n)*test_idle_memory.py.*line {line}"):
                lost.sum().item()
            assert sums(second) == [10.0, 11.0, 12.0]
            del lost, second
        assert sums(first) == [1.0, 2.0, 3.0], "others notice nothing"
        assert made.workers[0].host.stats()["no_room"] > 0
        del first


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_that_is_alone_may_use_the_device_and_the_host(engine: str) -> None:
    with full_device(engine, 320 * KB, host=320 * KB):
        many = [gt.ones(128, 128) * n for n in range(8)]
        assert sums(many) == list(map(float, range(8))), "its own tensors move when none of others is left"
        with pytest.raises(OutOfMemory):
            gt.ones(512, 512).sum().item()
        del many


def train(steps: int) -> list[float]:
    gt.manual_seed(0)
    model = gt.nn.Sequential(gt.nn.Linear(128, 128), gt.nn.ReLU(), gt.nn.Linear(128, 1))
    optimizer = gt.optim.Adam(model.parameters(), lr=0.01)
    x, losses = gt.randn(32, 128), []
    for _ in range(steps):
        loss = ((model(x) - 1.0) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("engine", ENGINES)
def test_trainers_that_do_not_fit_together_learn_as_if_alone(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_EARLY", "0")  # steps sent ahead take room, and are taken back where there is none
    with cluster(1, engine):
        alone = train(12)
    with full_device(engine, 768 * KB) as made:
        sessions = [made.sessions[0], *(made.session() for _ in range(2))]
        idle = []
        for session in sessions:
            with client(session):
                idle.append(tensors(5.0, 4))
        for session in sessions:
            with client(session):
                assert train(12) == alone
        for session, held in zip(sessions, idle):
            with client(session):
                assert sums(held) == [5.0, 6.0, 7.0, 8.0]
        stats = made.workers[0].stats()
        assert stats["moved_to_host"] > 3 and stats["moved_back"] > 3 and stats["no_room"] == 0
        assert (stats["traces"].get("calls", 0) > 0) == environment.TRACE.value(), "programs ran, too"
        idle.clear()


@pytest.mark.parametrize("engine", ENGINES)
def test_steps_sent_ahead_that_do_not_fit_are_taken_back(engine: str) -> None:
    with cluster(1, engine):
        alone = train(12)
    with full_device(engine, 768 * KB) as made:
        idle = tensors(5.0, 4)
        if made.sessions[0].steps is not None:
            made.sessions[0].steps.clock = float  # no step takes too long
        assert train(12) == alone
        assert sums(idle) == [5.0, 6.0, 7.0, 8.0]
        idle.clear()


def test_collectives_find_their_operands() -> None:
    with full_device("numpy", 320 * KB, workers=2) as made:
        rows = gt.SignalConfig(shard=gt.ShardConfig(axis=0))
        gt.register_config("rows", rows)
        with gt.signal.context("rows"):
            x = gt.ones(512, 128)  # 128 KB on each
        assert x.sum().item() == 512 * 128.0
        other = made.session()
        with client(other):
            gt.register_config("rows", rows)
            with gt.signal.context("rows"):
                held = [gt.ones(512, 128) * n for n in range(2)]
            assert held[1].sum().item() == 512 * 128.0
        assert all(worker.host.stats()["moved_to_host"] > 0 for worker in made.workers)
        assert (x.T @ x)[0, 0].item() == 512.0 and x.sum(1).sum().item() == 512 * 128.0
        del held, x


class Device:
    """A device of its own that raises when it is full, as CUDA does: the bytes really held are checked before each kernel."""

    def __init__(self, worker: Any, nbytes: int) -> None:
        self.worker, self.nbytes, self.refused = worker, nbytes, 0
        self.made, worker.engine.kernel = worker.engine.kernel, self.kernel

    def kernel(self, kind: Any) -> Any:
        run, adds = self.made(kind), sum(s.nbytes for s in kind.outs)

        def kernel(*operands: Any) -> Any:
            engine, arrays = self.worker.engine, [a for s in self.worker.spaces.values() for a in s.table.values()]
            there = dict(engine.buffer(a) for a in arrays if hasattr(a, "shape"))
            if sum(there.values()) + adds > self.nbytes:
                self.refused += 1
                raise RuntimeError("CUDA out of memory. Tried to allocate")
            return run(*operands)

        return kernel


@pytest.mark.parametrize("engine", ENGINES)
def test_a_kernel_that_the_device_has_no_room_for_is_tried_again(engine: str) -> None:
    with cluster(1, engine) as made:
        worker = made.workers[0]
        worker.host.limit(0, 1 << 30)  # no size is known: only the device's own word
        device = Device(worker, 448 * KB)
        first, other = tensors(1.0, 4), made.session()
        with client(other):
            assert sums(tensors(10.0, 4)) == [10.0, 11.0, 12.0, 13.0]
        assert device.refused > 0 and worker.host.stats()["moved_to_host"] > 0
        assert sums(first) == [1.0, 2.0, 3.0, 4.0]
        with client(other), pytest.raises(OutOfMemory, match="CUDA out of memory"):
            gt.ones(512, 512).sum().item()
        del first


@pytest.mark.parametrize("engine", ENGINES)
def test_a_kind_that_cannot_be_prepared_fails_for_its_user_alone(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with full_device(engine, 320 * KB) as made:
        worker, other, kept = made.workers[0], made.session(), tensors(1.0, 1)
        kernel = worker.engine.kernel

        def all_but_one(kind: Any) -> Any:
            if kind.row.name == "tanh":
                raise NotImplementedError
            return kernel(kind)

        monkeypatch.setattr(worker.engine, "kernel", all_but_one)
        with client(other):
            with pytest.raises(GTError, match="cannot be prepared on this worker"):
                tensors(10.0, 1)[0].tanh().numpy()
            assert sums(tensors(20.0, 1)) == [20.0]
        assert sums(kept) == [1.0]
