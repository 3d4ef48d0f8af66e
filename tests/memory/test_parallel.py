"""Whole programs in parallel: data, tensor, ZeRO, pipeline and meshes of those, against one worker; and the bytes moved."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest

import gt
from gt.config import ShardConfig, SignalConfig
from gt.nn import SGD, Linear, Module
from gt.optim import Adam
from gt.testing import cluster

pytestmark = pytest.mark.default("GT_TRACE")  # a test of its effect

MOVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "exchange")
SIGNALS = {
    "batch": SignalConfig(ShardConfig(axis=0)),
    "copies": SignalConfig(ShardConfig(replicated=True)),
    "rows": SignalConfig(ShardConfig(axis=0)),
    "columns": SignalConfig(ShardConfig(axis=1)),
    "first": SignalConfig(ShardConfig(workers=[0])),
    "second": SignalConfig(ShardConfig(workers=[1])),
}


class MLP(Module):
    def __init__(self, wide: int = 16) -> None:
        super().__init__()
        self.fc1, self.fc2 = Linear(12, wide), Linear(wide, 5)

    def forward(self, x):
        return self.fc2(self.fc1(x).relu())


def moves(made) -> Counter:
    """Collectives so far, by name, on the worker that took part in most."""
    made.settle()
    counts = [Counter({k: v for k, v in w.stats()["ops"].items() if k in MOVES}) for w in made.workers]
    return max(counts, key=lambda c: sum(c.values()))


def under(name: str | None):
    return gt.signal.context(name) if name else nullcontext()


def train(made, parameters: str | None, batch: str | None, optimizer=SGD, steps: int = 4) -> tuple[list[float], list]:
    """Losses of a few steps, and the parameters after them."""
    gt.manual_seed(0)
    with under(parameters):
        model = MLP()
    opt = optimizer(model.parameters(), lr=0.05)
    rng, losses = np.random.default_rng(0), []
    for _ in range(steps):
        x, y = rng.normal(size=(10, 12)).astype("f4"), rng.normal(size=(10, 5)).astype("f4")
        with under(batch):
            loss = ((model(gt.from_numpy(x)) - gt.from_numpy(y)) ** 2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss)
    return [loss.item() for loss in losses], [p.numpy() for p in model.parameters()]


def on(workers: int, *args, **settings):
    with cluster(workers) as made:
        for name, config in SIGNALS.items():
            gt.register_config(name, config)
        found = train(made, *args, **settings)
        return *found, moves(made)


@pytest.mark.parametrize("optimizer", [SGD, Adam])
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_data_parallel_training_gives_one_worker_s_losses(workers, optimizer):
    want, weights, _ = on(1, None, None, optimizer)
    losses, found, moved = on(workers, "copies", "batch", optimizer)
    np.testing.assert_allclose(losses, want, rtol=1e-5)
    for a, b in zip(found, weights):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert moved["all_reduce"] == 4 + 4, moved  # a step's gradients as one, and its loss when it is read
    assert not moved["all_gather"] and not moved["exchange"] and not moved["broadcast"]


def test_zero_style_training_keeps_parameters_and_state_in_pieces():
    want, weights, _ = on(1, None, None, Adam)
    with cluster(2) as made:
        for name, config in SIGNALS.items():
            gt.register_config(name, config)
        gt.manual_seed(0)
        with gt.signal.context("rows"):
            model = MLP()
        opt = Adam(model.parameters(), lr=0.05)
        with gt.signal.context("batch"):
            x, y = gt.randn(64, 12), gt.randn(64, 5)  # more than the parameters, or those would stay and these move
            loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        opt.step()
        assert {repr(p.placement) for p in model.parameters()} == {"Shard(0) on [0, 1]"}
        state = [t for s in opt.state.values() for t in s.values() if isinstance(t, gt.Tensor) and t.ndim]
        assert state and {repr(t.placement) for t in state} == {"Shard(0) on [0, 1]"}
        moved = moves(made)
        assert moved["reduce_scatter"] == 4 and not moved["all_reduce"] and moved["all_gather"] >= 4, moved
        del x, y, loss, model, opt, state
    losses, found, _ = on(2, "rows", "batch", Adam)
    np.testing.assert_allclose(losses, want, rtol=1e-5)
    for a, b in zip(found, weights):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("workers", [2, 3])
def test_zero_style_gradients_are_scattered_together(workers):
    """Once it is known that all want pieces, one message carries all of them, uneven pieces and all."""
    with cluster(workers) as made:
        for name, config in SIGNALS.items():
            gt.register_config(name, config)
        gt.manual_seed(0)
        with gt.signal.context("rows"):
            model = MLP()
        before = [p.numpy() for p in model.parameters()]
        opt = SGD(model.parameters(), lr=1.0)
        with gt.signal.context("batch"):
            x = gt.randn(64, 12)
        counts = []
        for _ in range(6):
            with gt.signal.context("batch"):
                loss = (model(x) ** 2).mean()
            loss.backward()
            grads = [p.grad for p in model.parameters()]
            was = moves(made)["reduce_scatter"]
            opt.step()
            counts.append(moves(made)["reduce_scatter"] - was)
            opt.zero_grad()
            after = [p.numpy() for p in model.parameters()]
            for a, b, g in zip(before, after, grads):
                np.testing.assert_allclose(a - b, g.numpy(), atol=1e-5)
            before = after
        del grads, loss
        assert counts[0] == 4 and counts[1:] == [1] * 5, counts


def test_tensor_parallel_layers_need_one_all_reduce():
    rng = np.random.default_rng(0)
    x, w1, w2 = (rng.normal(size=s).astype("f4") for s in [(6, 8), (8, 12), (12, 4)])
    with cluster(2) as made:
        for name, config in SIGNALS.items():
            gt.register_config(name, config)
        with gt.signal.context("copies"):
            a = gt.from_numpy(x)
        with gt.signal.context("columns"):
            b = gt.from_numpy(w1)
        with gt.signal.context("rows"):
            c = gt.from_numpy(w2)
        h = (a @ b).relu()
        assert repr(h.placement) == "Shard(1) on [0, 1]" and not moves(made)
        y = h @ c
        assert repr(y.placement) == "Partial() on [0, 1]" and not moves(made)
        z = y.tanh()
        assert moves(made) == {"all_reduce": 1}
        np.testing.assert_allclose(z.numpy(), np.tanh((x @ w1).clip(0) @ w2), rtol=1e-4, atol=1e-5)


def test_tensor_parallel_training_gives_one_worker_s_losses():
    def run(workers: int):
        with cluster(workers) as made:
            for name, config in SIGNALS.items():
                gt.register_config(name, config)
            gt.manual_seed(0)
            with under("columns" if workers > 1 else None):
                w1 = gt.randn(8, 12, requires_grad=True)
            with under("rows" if workers > 1 else None):
                w2 = gt.randn(12, 4, requires_grad=True)
            with under("copies" if workers > 1 else None):
                x, y = gt.randn(6, 8), gt.randn(6, 4)
            losses = []
            for _ in range(3):
                loss = (((x @ w1).tanh() @ w2 - y) ** 2).mean()
                loss.backward()
                for w in (w1, w2):
                    with gt.no_grad():
                        w -= 0.01 * w.grad
                    w.grad = None
                losses.append(loss.item())
            if workers > 1:
                assert repr(w1.placement) == "Shard(1) on [0, 1]" and repr(w2.placement) == "Shard(0) on [0, 1]"
                assert not moves(made)["all_gather"] and not moves(made)["exchange"]
            return losses

    np.testing.assert_allclose(run(2), run(1), rtol=1e-5)


def test_a_mesh_combines_data_and_tensor_parallel():
    grid = {"data": 2, "model": 2}
    rng = np.random.default_rng(0)
    x, w1, w2 = (rng.normal(size=s).astype("f4") for s in [(7, 8), (8, 6), (6, 4)])
    with cluster(4) as made:
        for name, placement in {
            "x": ["shard(0)", "replicate"], "w1": ["replicate", "shard(1)"], "w2": ["replicate", "shard(0)"],
        }.items():  # fmt: skip
            gt.register_config(name, SignalConfig(mesh=grid, placement=placement))
        with gt.signal("x"):
            a = gt.from_numpy(x)
        with gt.signal("w1"):
            b = gt.from_numpy(w1).requires_grad_()
        with gt.signal("w2"):
            c = gt.from_numpy(w2).requires_grad_()
        y = (a @ b) @ c
        assert repr(y.placement) == "Shard(0), Partial() on [0, 1, 2, 3]" and not moves(made)
        (y * y).sum().backward()
        assert repr(b.grad.placement) == "Partial(), Shard(1) on [0, 1, 2, 3]"
        want = x @ w1 @ w2
        np.testing.assert_allclose(y.numpy(), want, rtol=1e-4)
        np.testing.assert_allclose(b.grad.numpy(), x.T @ (2 * want @ w2.T), rtol=1e-4)
        np.testing.assert_allclose(c.grad.numpy(), (x @ w1).T @ (2 * want), rtol=1e-4)


def test_stages_of_a_pipeline_run_on_their_own_workers():
    want, weights, _ = on(1, None, None)
    with cluster(2):
        for name, config in SIGNALS.items():
            gt.register_config(name, config)
        gt.manual_seed(0)
        model = MLP.__new__(MLP)
        Module.__init__(model)
        with gt.signal.context("first"):
            model.fc1 = Linear(12, 16)
        with gt.signal.context("second"):
            model.fc2 = Linear(16, 5)
        opt = SGD(model.parameters(), lr=0.05)
        rng, losses = np.random.default_rng(0), []
        for _ in range(4):
            x, y = rng.normal(size=(10, 12)).astype("f4"), rng.normal(size=(10, 5)).astype("f4")
            with gt.signal.context("first"):
                h = model.fc1(gt.from_numpy(x)).relu()
            with gt.signal.context("second"):
                loss = ((model.fc2(h) - gt.from_numpy(y)) ** 2).mean()
            assert h.placement.workers == [0] and loss.placement.workers == [1]
            loss.backward()
            assert [p.grad.placement.workers for p in model.parameters()] == [[0], [0], [1], [1]]
            opt.step()
            opt.zero_grad()
            losses.append(loss.item())
        np.testing.assert_allclose(losses, want, rtol=1e-5)
        for p, b in zip(model.parameters(), weights):
            np.testing.assert_allclose(p.numpy(), b, rtol=1e-5)
        del h, loss, model, opt, p


def test_gradients_run_on_the_workers_of_the_backward_signal():
    with cluster(4) as made:
        gt.register_config("stage", SignalConfig(ShardConfig(0, [0, 1]), backward_signal="stage_bwd"))
        gt.register_config("stage_bwd", SignalConfig(ShardConfig(0, [2, 3])))
        with gt.signal.context("stage"):
            x = gt.randn(8, 4)
            w = gt.randn(4, 4, requires_grad=True)
            y = (x @ w).sum()
        assert made.workers[2].runs == made.workers[3].runs == 0
        y.backward()
        assert w.grad.placement.workers == [2, 3]
        np.testing.assert_allclose(w.grad.numpy(), np.repeat(x.numpy().sum(0)[:, None], 4, 1), rtol=1e-5)


def test_signal_tensor_gives_a_placed_copy_with_gradients():
    with cluster(3):
        gt.register_config("batch", SIGNALS["batch"])
        x = gt.randn(5, 2, requires_grad=True)
        y = gt.signal.tensor(x, name="batch")
        assert repr(y.placement) == "Shard(0) on [0, 1, 2]" and repr(x.placement) == "Replicate() on [0]"
        (y * 3).sum().backward()
        assert x.grad.tolist() == [[3, 3]] * 5


def test_random_numbers_are_the_same_however_they_are_cut():
    found = []
    for signal in (None, "batch", "columns", "copies"):
        with cluster(3) as made:
            for name, config in SIGNALS.items():
                gt.register_config(name, config)
            gt.manual_seed(11)
            with under(signal):
                found.append([gt.randn(7, 5).numpy(), gt.rand(4, 9).numpy(), gt.randint(0, 99, (6, 4)).numpy()])
            made.check()
    for other in found[1:]:
        for a, b in zip(found[0], other):
            np.testing.assert_array_equal(a, b)


def test_two_clients_in_different_scopes_do_not_mix():
    from gt.client.scope import HERE, Scope

    with cluster(2) as made:
        gt.register_config("s", SIGNALS["batch"])
        with gt.signal.context("s"):
            mine = gt.ones(4, 4)
            scope = HERE.scope
            HERE.scope = Scope(made.session())
            gt.register_config("s", SIGNALS["columns"])
            with gt.signal.context("s"):
                theirs = gt.ones(4, 4)
            assert repr(theirs.placement) == "Shard(1) on [0, 1]"
            del theirs
            HERE.scope = scope
        assert repr(mine.placement) == "Shard(0) on [0, 1]"
