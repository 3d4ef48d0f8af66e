"""Ops on lists of tensors: one instruction of the client's stream, sent as one for each item."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.foreach import foreach
from gt.config import ShardConfig, SignalConfig
from gt.ops.table import TABLE
from gt.program.code import is_client_kind, is_free, number_of
from gt.testing import Cluster, cluster
from tests.nn.compare import ENGINES, close, numbers

SHAPES = [(7, 5), (5,), (3, 2, 4), (), (6, 3)]
OPTIMIZERS = [
    ("SGD", {"momentum": 0.9, "weight_decay": 0.1}), ("AdamW", {"amsgrad": True}), ("NAdam", {}), ("ASGD", {"t0": 2}),
    ("Adafactor", {"lr": 0.05}), ("RMSprop", {"centered": True, "momentum": 0.5}),
]  # fmt: skip


def written(c: Cluster, work: Any) -> list[tuple]:
    """The instructions that the client writes meanwhile, before any is taken for part of a trace."""
    session = c.sessions[0]
    session.flush()
    work()
    return list(session.code)


def train(lib: Any, name: str, settings: dict, steps: int, place: Any = None) -> tuple[list, list]:
    """Parameters of many shapes, one of which has no gradient at first; gradients clipped, a rate that changes."""
    arrays = [numbers(*shape, seed=i) for i, shape in enumerate(SHAPES)]
    params = [(place or lib.tensor)(a) for a in arrays]
    for p in params:
        p.requires_grad_()
    groups = [{"params": params[:3]}, {"params": params[3:], "weight_decay": 0.2}]
    optimizer = getattr(lib.optim, name)(groups, **settings)
    norms = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (step + 1)
        optimizer.zero_grad()
        used = params if step > 1 else [*params[:1], *params[2:]]
        sum(((p - 0.3) ** 2 * (i + 1)).sum() + p.sin().sum() for i, p in enumerate(used)).backward()
        held = params[0].grad
        norms.append(lib.nn.utils.clip_grad_norm_(params, 1.5))
        assert params[0].grad is held
        optimizer.step()
    return params, norms


@pytest.mark.parametrize("engine, workers", [("numpy", 1), ("pytorch", 1), ("numpy", 3), ("pytorch", 3)])
@pytest.mark.parametrize("name, settings", OPTIMIZERS, ids=lambda v: v if isinstance(v, str) else "")
def test_updates_and_clipping_of_many_shapes_are_pytorchs(engine: str, workers: int, name: str, settings: dict) -> None:
    with cluster(workers, engine):
        gt.register_config("whole", SignalConfig(ShardConfig(replicated=True)))
        for axis in (0, 1):
            gt.register_config(f"cut{axis}", SignalConfig(ShardConfig(axis=axis)))

        def place(array: np.ndarray) -> Any:
            """Cut along one axis or the other where there are several workers, or in one piece."""
            with gt.signal.context(("whole", "cut0", "cut1")[array.ndim % 3]):
                return gt.tensor(array)

        own, norms = train(gt, name, settings, 7, place if workers > 1 else None)
        theirs, wanted = train(torch, name, settings, 7)
        for p, q in zip(own, theirs):
            close(p.detach(), q.detach(), name, 2e-4, 2e-5)
        close(gt.stack(norms), torch.stack(wanted), "norms", 2e-5, 2e-5)


@pytest.mark.default("GT_TRACE")
@pytest.mark.parametrize("workers", [1, 3])
def test_a_step_of_forty_parameters_is_a_few_instructions_and_replays(workers: int) -> None:
    with cluster(workers, "numpy") as c:
        params = [gt.ones(3, requires_grad=True) for _ in range(40)]
        optimizer = gt.optim.AdamW(params)

        def step() -> None:
            optimizer.step()
            gt.nn.utils.clip_grad_norm_(params, 1.0)

        def gradients() -> None:
            for p in params:
                p.grad = gt.full((3,), 0.5)

        gradients()
        step()
        gradients()
        code = written(c, step)
        assert len([ins for ins in code if is_client_kind(number_of(ins))]) <= 10
        for _ in range(8):
            gradients()
            step()
            params[0].numpy()
        assert c.sessions[0].tracer.hits > 3 and c.sessions[0].tracer.saved > 40 * 3  # type: ignore[union-attr]


@pytest.mark.default("GT_TRACE")
def test_an_overwritten_value_is_freed_after_its_own_update() -> None:
    sent: list[tuple] = []
    with cluster(1, "numpy") as c:
        params = [gt.ones(4, requires_grad=True) for _ in range(20)]
        for p in params:
            p.grad = gt.ones(4)
        optimizer = gt.optim.SGD(params, lr=0.5)
        c.settle()
        send = c.sessions[0].link.send
        c.sessions[0].link.send = lambda m: (sent.extend(getattr(m, "code", ())), send(m))[1]  # type: ignore[method-assign]
        optimizer.step()
        c.settle()
        alive = most = 0
        for ins in sent:
            alive += -1 if is_free(ins) else 1
            most = max(most, alive)
        assert len(sent) == 40 and most == 1
        assert all(p.tolist() == [0.5] * 4 for p in params)


def test_state_keeps_its_variables_over_a_step_and_loaded_tensors_are_not_written_to() -> None:
    with cluster(1, "numpy"):
        p = gt.ones(2, requires_grad=True)
        p.grad = gt.ones(2)
        optimizer = gt.optim.Adam([p])
        optimizer.step()
        mean = optimizer.state[p]["exp_avg"]
        before = mean.tolist()
        loaded = {**optimizer.state[p], "exp_avg": gt.full((2,), 5.0)}
        saved = {"state": {0: loaded}, "param_groups": optimizer.state_dict()["param_groups"]}
        optimizer.step()
        assert optimizer.state[p]["exp_avg"] is mean and mean.tolist() != before
        other = gt.optim.Adam([p])
        other.load_state_dict(saved)
        other.step()
        assert loaded["exp_avg"].tolist() == [5.0, 5.0] and other.state[p]["exp_avg"].tolist() != [5.0, 5.0]


@pytest.mark.parametrize("engine", ENGINES)
def test_parameters_that_are_views_and_other_dtypes_and_autocast(engine: str) -> None:
    with cluster(1, engine):
        whole = gt.zeros(4, 3)
        view = whole[1:3]
        view.requires_grad_()
        double, single = gt.ones(2, dtype=gt.float64, requires_grad=True), gt.ones(2, requires_grad=True)
        optimizer = gt.optim.SGD([view, double, single], lr=1.0)
        with gt.autocast("cpu", dtype=gt.bfloat16):
            for p in (view, double, single):
                p.grad = gt.ones_like(p)
            total = gt.nn.utils.clip_grad_norm_([view, double, single], 1.0)
            optimizer.step()
        assert whole.sum().item() == pytest.approx(-6 / 10**0.5, rel=1e-5) and total.item() == pytest.approx(10**0.5)
        assert double.dtype is gt.float64 and double[0].item() == pytest.approx(1 - 10**-0.5, rel=1e-5)


def test_a_users_own_optimizer_updates_one_by_one() -> None:
    class Halve(gt.optim.Optimizer):
        def update(self, p: Any, g: Any, state: dict, group: dict) -> Any:
            return p - g * group["lr"] / 2

    with cluster(1, "numpy"):
        params = [gt.ones(2, requires_grad=True) for _ in range(3)]
        for p in params:
            p.grad = gt.ones(2)
        Halve(params, {"lr": 1.0}).step()
        assert [p.tolist() for p in params] == [[0.5, 0.5]] * 3


def test_lists_of_different_lengths_are_refused() -> None:
    with cluster(1, "numpy"), gt.no_grad(), pytest.raises(AssertionError, match="one length"):
        foreach(TABLE["add"], ([gt.ones(2)], [gt.ones(2), gt.ones(2)]))
