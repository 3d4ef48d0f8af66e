"""Sparse gradients of tables: PyTorch's, and updates that touch only the rows of a step."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import gt
from gt.worker.engine.torch import training
from tests.nn.compare import ENGINES, numbers

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # of PyTorch's own optimizers
BATCHES = ([[0, 2], [2, 5]], [[5, 0], [1, 1]], [[2, 3], [3, 3]], [[4, 0], [0, 4]])


def _table(m: Any, **settings: Any) -> Any:
    return m.nn.Embedding(6, 3, sparse=True, _weight=m.tensor(numbers(6, 3).copy()), **settings)


def _loss(m: Any, table: Any, rows: Any) -> Any:
    found = table(m.tensor(rows))
    return (found * m.tensor(numbers(*found.shape, seed=3).copy())).pow(2).sum()


def _trained(m: Any, name: str, keywords: dict, steps: int = 4, **settings: Any) -> list[np.ndarray]:
    table = _table(m, **settings)
    optimizer = getattr(m.optim, name)(table.parameters(), **keywords)
    found = []
    for i in range(steps):
        optimizer.zero_grad()
        _loss(m, table, BATCHES[i % len(BATCHES)]).backward()
        assert table.weight.grad.is_sparse
        optimizer.step()
        found.append(np.array(table.weight.tolist()))
    return found


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name, keywords", [
    ("SGD", {"lr": 0.1}), ("SGD", {"lr": 0.1, "maximize": True}), ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}), ("Adagrad", {"lr": 0.1}), ("SparseAdam", {"lr": 0.1}),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("padding", [None, 2])
def test_an_optimizer_takes_sparse_gradients_as_pytorchs(engine: str, name: str, keywords: dict, padding: int | None) -> None:
    theirs = _trained(torch, name, keywords, padding_idx=padding)
    with gt.testing.cluster(1, engine):
        np.testing.assert_allclose(_trained(gt, name, keywords, padding_idx=padding), theirs, rtol=2e-5, atol=2e-6)


def test_a_repeated_step_updates_the_rows_in_place() -> None:
    theirs = _trained(torch, "SGD", {"lr": 0.01}, steps=60)
    with gt.testing.cluster(1, "pytorch"):
        ours = _trained(gt, "SGD", {"lr": 0.01}, steps=60)
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


def test_rows_of_a_table_on_several_workers_are_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_AUTO_SHARD", "1")
    theirs = _trained(torch, "SGD", {"lr": 0.1})
    with gt.testing.cluster(2, "numpy"):
        np.testing.assert_allclose(_trained(gt, "SGD", {"lr": 0.1}), theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name, keywords, words", [
    ("Adam", {}, "Adam does not support sparse gradients, please consider SparseAdam instead"),
    ("RMSprop", {}, "RMSprop does not support sparse gradients"),
    ("SGD", {"weight_decay": 0.1}, "sparse"), ("Adagrad", {"weight_decay": 0.1}, "weight_decay option is not compatible"),
])  # fmt: skip
def test_an_optimizer_refuses_sparse_gradients_where_pytorchs_does(name: str, keywords: dict, words: str) -> None:
    with pytest.raises(RuntimeError, match=words):
        _trained(torch, name, {"lr": 0.1, **keywords})
    with gt.testing.cluster(1, "numpy"), pytest.raises(RuntimeError, match=words):
        _trained(gt, name, {"lr": 0.1, **keywords})


def _gradient(m: Any, weight: Any) -> np.ndarray:
    g = weight.grad
    return np.array((g.to_dense() if g.is_sparse else g).tolist())


def test_gradients_of_several_passes_add_up() -> None:
    found = []
    for m in (torch, gt):
        with gt.testing.cluster(1, "numpy"):
            table = _table(m)
            for rows in BATCHES[:2]:
                _loss(m, table, rows).backward()
            assert table.weight.grad.is_sparse
            (table(m.tensor([1, 2])).sum() + _loss(m, table, BATCHES[2])).backward()  # twice in one pass
            summed = table.weight.grad.coalesce()
            found.append((_gradient(m, table.weight), summed.indices().tolist()))
            if m is gt:
                kept = copy.deepcopy(table).double()
                np.testing.assert_allclose(_gradient(m, kept.weight), found[-1][0], rtol=1e-5)
                assert kept.weight.grad.is_sparse and kept.weight.grad.dtype is gt.float64
            table.weight.sum().backward()  # a dense gradient makes the sum dense
            assert not table.weight.grad.is_sparse
            np.testing.assert_allclose(_gradient(m, table.weight), found[-1][0] + 1, rtol=1e-5)
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5)
    assert found[0][1] == found[1][1]


def test_grad_returns_a_sparse_gradient_and_hooks_see_it() -> None:
    found = []
    for m in (torch, gt):
        with gt.testing.cluster(1, "numpy"):
            table, seen = _table(m), list[bool]()
            (g,) = m.autograd.grad(_loss(m, table, BATCHES[0]), [table.weight])
            table.weight.register_hook(lambda g, seen=seen: seen.append(g.is_sparse))
            _loss(m, table, BATCHES[0]).backward()
            found.append((g.is_sparse, np.array(g.to_dense().tolist()), seen))
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-5)
    assert (found[0][0], found[0][2]) == (found[1][0], found[1][2]) == (True, [True])


def test_cleared_scaled_and_clipped() -> None:
    with gt.testing.cluster(1, "numpy"):
        table = _table(gt)
        optimizer = gt.optim.SGD(table.parameters(), lr=0.1)
        _loss(gt, table, BATCHES[0]).backward()
        before = _gradient(gt, table.weight)
        assert table.weight.grad.shape == (6, 3) and before.any()
        optimizer.zero_grad(set_to_none=False)
        assert table.weight.grad._nnz() == 0 and not _gradient(gt, table.weight).any()
        table.zero_grad(set_to_none=False)
        scaler = gt.amp.GradScaler(init_scale=8.0)
        scaler.scale(_loss(gt, table, BATCHES[0])).backward()
        scaler.unscale_(optimizer)
        np.testing.assert_allclose(_gradient(gt, table.weight), before, rtol=1e-5)
        norm = gt.nn.utils.clip_grad_norm_(table.parameters(), 1e-3).item()
        assert norm == pytest.approx(np.linalg.norm(before), rel=1e-5)
        np.testing.assert_allclose(_gradient(gt, table.weight), before * 1e-3 / norm, rtol=1e-3)


def test_a_table_that_was_computed_has_a_dense_gradient() -> None:
    with gt.testing.cluster(1, "numpy"):
        weight = gt.tensor(numbers(6, 3), requires_grad=True)
        gt.nn.functional.embedding(gt.tensor([1, 4]), weight * 2, sparse=True).sum().backward()
        assert not weight.grad.is_sparse and weight.grad.tolist() == [[0] * 3, [2] * 3, [0] * 3, [0] * 3, [2] * 3, [0] * 3]


def test_bags_have_sparse_gradients() -> None:
    found = []
    for m in (torch, gt):
        with gt.testing.cluster(1, "numpy"):
            bag = m.nn.EmbeddingBag(6, 3, mode="sum", sparse=True, _weight=m.tensor(numbers(6, 3).copy()))
            bag(m.tensor([1, 2, 4, 4]), m.tensor([0, 2])).pow(2).sum().backward()
            assert bag.weight.grad.is_sparse
            found.append(_gradient(m, bag.weight))
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_rows_are_updated_in_place_as_by_pytorch_and_a_wrong_place_changes_nothing() -> None:
    table, rows, index = torch.randn(9, 5), torch.randn(2, 3, 5), torch.tensor([[0, 8, 0], [3, 0, 3]])
    for scale, found in ((-0.3, training.sgd_rows(table, rows.view(6, 5), index, 0.3, maximize=False)),
                         (0.3, training.sgd_rows(table, rows.view(6, 5), index, 0.3, maximize=True))):  # fmt: skip
        want = table.double().index_add(0, index.flatten(), rows.view(6, 5).double(), alpha=scale)
        torch.testing.assert_close(found, want.float(), rtol=1e-6, atol=1e-6)
    before = table.clone()
    for wrong in (9, -1):
        with pytest.raises((IndexError, RuntimeError)):
            training.sgd_rows_in_place([(table, rows[:1, :1, :].view(1, 5), torch.tensor([[wrong]]), 0.3)], maximize=False)
    assert training.sgd_rows(torch.zeros(0, 5), rows[0, :1], torch.tensor([[0]]), 0.3, maximize=False).shape == (0, 5)
    assert torch.equal(table, before)


def test_an_update_of_rows_can_be_traced_by_a_compiler() -> None:
    table, rows, index = torch.randn(9, 5), torch.randn(2, 5), torch.tensor([[0, 8]])
    step = partial(training.sgd_rows, maximize=False)
    traced = make_fx(step)(table, rows, index, 0.3)
    torch.testing.assert_close(traced(table, rows, index, 0.3), step(table, rows, index, 0.3))
    other = torch.randn(9, 5)
    assert not torch.equal(traced(other, rows, index, 0.3), traced(table, rows, index, 0.3)), "it reads its operands"
