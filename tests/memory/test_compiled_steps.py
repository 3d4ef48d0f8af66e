"""`gt.compile` of whole training steps, with the optimizers as they are used: counts of steps, rates that change, groups, state
that is loaded. The oracle is PyTorch's optimizer on the same gradients, and the same step without `gt.compile`, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.testing import cluster

# A test of GT_TRACE's effect; compiled code, as with the other variables, does not round to the same bits.
pytestmark = pytest.mark.default("GT_TRACE", "GT_AUTO_COMPILE", "GT_WORKER_BATCH_SIZE")

STEPS = 14
OPTIMIZERS: dict[str, Callable[[Any, Any], Any]] = {
    "adamw": lambda lib, p: lib.optim.AdamW(p, lr=0.01),
    "amsgrad": lambda lib, p: lib.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "sgd": lambda lib, p: lib.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "rmsprop": lambda lib, p: lib.optim.RMSprop(p, lr=0.01, momentum=0.5),
    "adagrad": lambda lib, p: lib.optim.Adagrad(p, lr=0.05, lr_decay=0.1),
    "nadam": lambda lib, p: lib.optim.NAdam(p, lr=0.01, momentum_decay=0.1),
    "radam": lambda lib, p: lib.optim.RAdam(p, lr=0.01, betas=(0.8, 0.9)),
    "asgd": lambda lib, p: lib.optim.ASGD(p, lr=0.05, lambd=0.01, t0=3),
    "adafactor": lambda lib, p: lib.optim.Adafactor(p, lr=0.05),
}


def stepper(loss_of: Callable[..., Any], optimizer: Any) -> Callable[..., Any]:
    """A training step that gives its loss."""

    def step(*given: Any) -> Any:
        loss = loss_of(*given)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def train(lib: Any, name: str, compiled: bool, between: Callable[[Any, int], None]) -> tuple[list, Any, Any]:
    """Losses and parameters of a small regression, the step, and the optimizer."""
    draw = np.random.default_rng(0)
    start = [draw.standard_normal(shape).astype(np.float32) for shape in ((8, 16), (16,), (16, 4))]
    x, y = (lib.tensor(draw.standard_normal(shape).astype(np.float32)) for shape in ((32, 8), (32, 4)))
    w, b, v = (lib.tensor(a.copy(), requires_grad=True) for a in start)
    optimizer = OPTIMIZERS[name](lib, [{"params": [w, b]}, {"params": [v]}])
    step = stepper(lambda x, y: (((x @ w + b).tanh() @ v - y) ** 2).mean(), optimizer)
    run = gt.compile(step) if compiled else step
    losses = []
    for i in range(STEPS):
        losses.append(run(x, y).item())
        between(optimizer, i)
    return [np.float32(losses), *(p.detach().numpy() for p in (w, b, v))], run, optimizer


def compare(name: str, between: Callable[[Any, int], None]) -> Any:
    """The compiled step, once its numbers were compared with PyTorch's and the plain step's."""
    with cluster(1, "pytorch"):
        mine, run, optimizer = train(gt, name, True, between)
        plain, _, other = train(gt, name, False, between)
        counts = [[s.get("step") for s in o.state.values()] for o in (optimizer, other)]
    theirs, _, _ = train(torch, name, False, between)
    assert counts[0] == counts[1]
    for a, b, c in zip(mine, plain, theirs):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, rtol=2e-4, atol=2e-5)
    assert not run.why, run.why
    return run


FIRST = ("adamw", "sgd")  # the others by `make test-all`


@pytest.mark.parametrize("name", [*FIRST, *(pytest.param(n, marks=pytest.mark.slow) for n in OPTIMIZERS if n not in FIRST)])
def test_every_optimizer_is_replayed(name: str) -> None:
    run = compare(name, lambda optimizer, i: None)
    assert run.replays == STEPS - 3 and run.captures == 1 and not run.again
    [[use]] = run.uses.values()
    ending = {
        "adamw": 9,
        "amsgrad": 12,
        "sgd": 6,
        "rmsprop": 9,
        "adagrad": 6,
        "nadam": 12,
        "radam": 9,
        "asgd": 12,
        "adafactor": 8,
    }
    assert (
        len(use.trace.dies_inputs) == ending[name]
    )  # each parameter and its state end with the call, so they are written over


@pytest.mark.parametrize("name", ["adamw", pytest.param("sgd", marks=pytest.mark.slow)])
def test_a_rate_that_changes_is_captured_once_more_and_then_given(name: str) -> None:
    def decay(optimizer: Any, i: int) -> None:
        if i >= 4:
            optimizer.param_groups[0]["lr"] *= 0.9

    run = compare(name, decay)
    assert run.again == {"lr changed": 1} and run.captures == 2 and run.replays == STEPS - 6


def test_groups_whose_rates_were_equal_may_part() -> None:
    def part(optimizer: Any, i: int) -> None:
        if i in (4, 8):
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
        if i == 9:
            optimizer.param_groups[1]["lr"] *= 0.1

    run = compare("adamw", part)
    assert sum(run.again.values()) == run.captures - 1 <= 2


def test_a_learning_rate_schedule_is_followed() -> None:
    found = {}
    for compiled in (True, False):
        with cluster(1, "numpy"):
            gt.manual_seed(0)
            w, x = gt.randn(4, 4, requires_grad=True), gt.randn(8, 4)
            optimizer = gt.optim.AdamW([w], lr=0.1)
            schedule = gt.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
            step = stepper(lambda x, w=w: ((x @ w).relu() ** 2).mean(), optimizer)
            run = gt.compile(step) if compiled else step
            losses = []
            for _ in range(12):
                losses.append(run(x).item())
                schedule.step()
            found[compiled] = losses
            if compiled:
                assert run.replays >= 6 and not run.why, (run.replays, run.why)
    assert found[True] == found[False]


def test_state_that_is_loaded_anew_is_used() -> None:
    found = {}
    for compiled in (True, False):
        with cluster(1, "numpy"):
            gt.manual_seed(0)
            w, x = gt.randn(4, 4, requires_grad=True), gt.randn(8, 4)
            optimizer = gt.optim.AdamW([w], lr=0.1)
            step = stepper(lambda x, w=w: ((x @ w).relu() ** 2).mean(), optimizer)
            run = gt.compile(step) if compiled else step
            for _ in range(2):
                run(x)
            saved = optimizer.state_dict()
            saved = {**saved, "state": {n: {k: _copied(v) for k, v in s.items()} for n, s in saved["state"].items()}}
            losses = [run(x).item() for _ in range(5)]
            held = optimizer.state[w]  # someone still looks at the old state
            optimizer.load_state_dict(saved)
            losses += [run(x).item() for _ in range(6)]
            found[compiled] = losses, optimizer.state[w]["step"], held["step"]
    assert found[True] == found[False]


def test_modules_in_training_and_not_are_told_apart() -> None:
    with cluster(1, "pytorch") as c:
        model = gt.nn.Sequential(gt.nn.Linear(4, 64), gt.nn.Dropout(0.5), gt.nn.Linear(64, 64))
        x = gt.ones(2, 4)

        @gt.compile
        def forward(x: Any) -> Any:
            with gt.no_grad():
                return (model(x) * 2.0 + 1.0) * 0.5

        model.eval()
        want = forward(x).numpy()
        for _ in range(2):
            model.eval()
            for _ in range(5):
                np.testing.assert_array_equal(forward(x).numpy(), want)
            model.train()
            for _ in range(5):
                assert not np.array_equal(forward(x).numpy(), want)
        assert not forward.again and forward.replays > 2, (forward.replays, forward.why)
        del c


@pytest.mark.parametrize("seed_at", [7, pytest.param(None, marks=pytest.mark.slow)])
def test_random_numbers_go_on_as_without_it(seed_at: int | None) -> None:
    """Dropout, noise and draws outside the function: all as in the plain step, bit by bit."""
    found = {}
    for compiled in (True, False):
        with cluster(1, "pytorch"):
            gt.manual_seed(3)
            model = gt.nn.Sequential(gt.nn.Linear(4, 16), gt.nn.Dropout(0.3), gt.nn.Linear(16, 4), gt.nn.Dropout(0.1))
            optimizer, x = gt.optim.AdamW(model.parameters(), lr=0.01), gt.randn(8, 4)
            step = stepper(lambda x, model=model: (model(x + gt.randn(8, 4) * 0.1) ** 2).mean(), optimizer)
            run = gt.compile(step) if compiled else step
            losses = []
            for i in range(12):
                losses.append(run(x).item())
                if i % 3 == 0:
                    losses.append(gt.rand(2).sum().item())
                if i == seed_at:
                    gt.manual_seed(11)
            found[compiled] = [losses, *(p.tolist() for p in model.parameters())]
            if compiled:
                assert run.replays >= 6 and not run.why, (run.replays, run.why)
                assert run.again == ({"another seed": 1} if seed_at else {})
    assert found[True] == found[False]


def test_autocast_is_told_apart() -> None:
    with cluster(1, "pytorch"):
        w, x = gt.randn(8, 8), gt.randn(8, 8)
        f = gt.compile(lambda x: (x @ w) @ (x @ w) @ x @ w @ w)
        for _ in range(5):
            assert f(x).dtype is gt.float32
            with gt.autocast("cpu", dtype=gt.bfloat16):
                assert f(x).dtype is gt.bfloat16
        assert f.captures == 2 and f.replays == 4


@pytest.mark.slow
def test_the_captures_of_a_function_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from gt.client import compile as module

    monkeypatch.setattr(module, "KNOWN", 4)
    with cluster(1, "numpy") as c:
        f = gt.compile(lambda x: ((x * 2.0 + 1.0).relu() - 0.5).exp().sum())
        for n in range(1, 12):
            for _ in range(5):
                np.testing.assert_allclose(f(gt.ones(n)).item(), n * np.exp(2.5), rtol=1e-5)
        assert f.captures == 11 and len(f.uses) == 4
        [space] = c.workers[0].spaces.values()
        assert sum(1 for _, _, ready in space.kinds.values() if hasattr(ready, "trace")) <= 6


def _copied(value: Any) -> Any:
    return value.detach() * 1.0 if isinstance(value, gt.Tensor) else value
