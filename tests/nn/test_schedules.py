"""Every schedule against PyTorch's, step for step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gt

CASES: list[tuple[str, dict]] = [
    ("StepLR", {"step_size": 3, "gamma": 0.5}),
    ("MultiStepLR", {"milestones": [2, 5, 5, 9], "gamma": 0.5}),
    ("ConstantLR", {"factor": 0.25, "total_iters": 4}),
    ("LinearLR", {"start_factor": 0.1, "total_iters": 6}),
    ("LinearLR", {"start_factor": 1.0, "end_factor": 0.2, "total_iters": 6}),
    ("ExponentialLR", {"gamma": 0.9}),
    ("CosineAnnealingLR", {"T_max": 7, "eta_min": 0.01}),
    ("OneCycleLR", {"max_lr": 0.5, "total_steps": 20}),
    ("OneCycleLR", {"max_lr": [0.5, 0.2], "epochs": 4, "steps_per_epoch": 5, "three_phase": True, "anneal_strategy": "linear"}),
    ("PolynomialLR", {"total_iters": 7, "power": 1.5}),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": [0.1, 0.2], "step_size_up": 3}),
    ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 2, "step_size_down": 5, "mode": "triangular2"}),
    (
        "CyclicLR",
        {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 4, "mode": "exp_range", "gamma": 0.9, "cycle_momentum": False},
    ),
    (
        "CyclicLR",
        {
            "base_lr": 0.01,
            "max_lr": 0.1,
            "step_size_up": 4,
            "scale_fn": lambda x: 1 / (5 ** (x * 0.1)),
            "scale_mode": "iterations",
        },
    ),
    ("CosineAnnealingWarmRestarts", {"T_0": 5, "eta_min": 0.01}),
    ("CosineAnnealingWarmRestarts", {"T_0": 2, "T_mult": 2}),
    ("LambdaLR", {"lr_lambda": lambda e: 0.95**e}),
    ("LambdaLR", {"lr_lambda": [lambda e: 1 / (e + 1), lambda e: 0.5]}),
    ("MultiplicativeLR", {"lr_lambda": lambda e: 0.9 + e / 100}),
]


def _optimizer(module: Any, kind: str = "SGD") -> Any:
    tensors = [module.ones(2, requires_grad=True), module.ones(3, requires_grad=True)]
    keywords = {"momentum": 0.9} if kind == "SGD" else {}
    groups = [{"params": [tensors[0]]}, {"params": [tensors[1]], "lr": 0.3}]
    return getattr(module.optim, kind)(groups, lr=0.1, **keywords)


def _seen(optimizer: Any) -> list:
    return [(g["lr"], g.get("momentum"), g.get("betas")) for g in optimizer.param_groups]


def _same(a: Any, b: Any) -> None:
    for own, theirs in zip(_seen(a), _seen(b)):
        assert own[0] == pytest.approx(theirs[0], rel=1e-12)
        assert own[1] == pytest.approx(theirs[1]) if theirs[1] is not None else own[1] is None
        assert own[2] == pytest.approx(theirs[2]) if theirs[2] is not None else own[2] is None


def _go(optimizer: Any, *schedules: Any) -> None:
    optimizer.step()
    for schedule in schedules:
        schedule.step()


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("name, keywords", CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_a_schedule_is_pytorchs(name: str, keywords: dict, kind: str) -> None:
    with gt.testing.cluster():
        a, b = _optimizer(gt, kind), _optimizer(torch, kind)
        own = getattr(gt.optim.lr_scheduler, name)(a, **keywords)
        theirs = getattr(torch.optim.lr_scheduler, name)(b, **keywords)
        _same(a, b)
        for _ in range(19):
            _go(a, own)
            _go(b, theirs)
            _same(a, b)
            assert own.get_last_lr() == pytest.approx(theirs.get_last_lr())


def test_schedules_of_one_optimizer_act_together() -> None:
    with gt.testing.cluster():
        a, b = _optimizer(gt), _optimizer(torch)
        pairs = [(m.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=4), m.optim.lr_scheduler.ExponentialLR(o, 0.9))
                 for m, o in ((gt, a), (torch, b))]  # fmt: skip
        for _ in range(9):
            _go(a, *pairs[0])
            _go(b, *pairs[1])
            _same(a, b)


@pytest.mark.filterwarnings("ignore:The epoch parameter")
def test_a_warm_up_goes_over_into_a_cosine() -> None:
    with gt.testing.cluster():
        a, b = _optimizer(gt), _optimizer(torch)
        made = []
        for m, o in ((gt, a), (torch, b)):
            s = m.optim.lr_scheduler
            parts = [s.LinearLR(o, 0.1, total_iters=4), s.CosineAnnealingLR(o, T_max=8), s.StepLR(o, 2)]
            made.append(s.SequentialLR(o, parts, milestones=[4, 10]))
        _same(a, b)
        for _ in range(16):
            _go(a, made[0])
            _go(b, made[1])
            _same(a, b)


@pytest.mark.parametrize(
    "keywords",
    [{"patience": 1}, {"mode": "max", "patience": 0, "threshold": 0.1, "threshold_mode": "abs"},
     {"patience": 1, "cooldown": 2, "factor": 0.5, "min_lr": [0.03, 0.2]}],
)  # fmt: skip
def test_a_plateau_is_pytorchs(keywords: dict) -> None:
    with gt.testing.cluster():
        a, b = _optimizer(gt), _optimizer(torch)
        own, theirs = (m.optim.lr_scheduler.ReduceLROnPlateau(o, **keywords) for m, o in ((gt, a), (torch, b)))
        for loss in (3.0, 2.0, 2.0, 2.0, 2.1, 1.9, 1.9, 1.9, 1.9, 1.9, 1.8, 1.8, 5.0, 5.0, 5.0):
            own.step(gt.tensor(loss))
            theirs.step(loss)
            _same(a, b)


@pytest.mark.parametrize("name, keywords", CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_a_schedule_goes_on_from_its_state(name: str, keywords: dict) -> None:
    with gt.testing.cluster():
        a, b = _optimizer(gt), _optimizer(gt)
        first = getattr(gt.optim.lr_scheduler, name)(a, **keywords)
        for _ in range(5):
            _go(a, first)
        second = getattr(gt.optim.lr_scheduler, name)(b, **keywords)
        b.load_state_dict(a.state_dict())
        second.load_state_dict(first.state_dict())
        for _ in range(5):
            _go(a, first)
            _go(b, second)
            _same(a, b)


def test_a_changed_rate_is_no_new_kind_of_instruction() -> None:
    with gt.testing.cluster() as cluster:
        p = gt.ones(2, requires_grad=True)
        optimizer = gt.optim.AdamW([p], lr=0.1)
        schedule = gt.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        kinds = []
        for _ in range(4):
            p.grad = gt.ones(2)
            _go(optimizer, schedule)
            cluster.settle()
            kinds.append(len(cluster.workers[0].spaces["c0"].kinds))
        assert kinds[1] == kinds[3]


def test_restarts_go_to_an_epoch_that_is_named() -> None:
    with gt.testing.cluster():
        a, b = _optimizer(gt), _optimizer(torch)
        own, theirs = (m.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3, 2) for m, o in ((gt, a), (torch, b)))
        for epoch in (0.5, 2, 3, 7.25, None, 12, None):
            a.step(), b.step()
            own.step(epoch)
            theirs.step(epoch)
            _same(a, b)


def test_chained_schedules_all_act_at_each_step() -> None:
    with gt.testing.cluster():
        a, b = _optimizer(gt), _optimizer(torch)
        both = []
        for module, optimizer in ((gt, a), (torch, b)):
            s = module.optim.lr_scheduler
            parts = [s.ConstantLR(optimizer, 0.1, 3), s.ExponentialLR(optimizer, 0.9)]
            both.append(s.ChainedScheduler(parts, optimizer))
        for _ in range(6):
            _go(a, both[0])
            _go(b, both[1])
            _same(a, b)
        saved = both[0].state_dict()
        both[0].load_state_dict(saved)
        assert len(saved["_schedulers"]) == 2
        with pytest.raises(ValueError, match="another optimizer"):
            s = gt.optim.lr_scheduler
            s.ChainedScheduler([s.ExponentialLR(a, 0.9), s.ExponentialLR(_optimizer(gt), 0.9)])


def _with_own_schedule(m: Any) -> list[float]:
    class Warm(m.optim.lr_scheduler._LRScheduler):
        def __init__(self, optimizer, steps, last_epoch=-1):
            self.steps = steps
            super().__init__(optimizer, last_epoch)

        def get_lr(self):
            return [base * self.last_epoch / (self.steps + 1e-8) for base in self.base_lrs]

    optimizer = m.optim.SGD([m.ones(1, requires_grad=True)], lr=0.4)
    schedule = Warm(optimizer, 4)
    rates = [optimizer.param_groups[0]["lr"]]
    for _ in range(5):
        optimizer.step()
        schedule.step()
        rates.append(schedule.get_last_lr()[0])
    return rates


def test_a_schedule_of_ones_own_gives_all_rates_at_once() -> None:
    with gt.testing.cluster(1, "numpy"):
        assert _with_own_schedule(gt) == _with_own_schedule(torch)


@pytest.mark.parametrize("name, keywords", [("StepLR", {"step_size": 3}), ("MultiStepLR", {"milestones": [6, 8]})])
def test_a_schedule_resumed_at_a_step_that_changes_the_rate(name: str, keywords: dict) -> None:
    def rates(m: Any) -> list[float]:
        optimizer = m.optim.SGD([{"params": [m.ones(1, requires_grad=True)], "initial_lr": 0.2}], lr=0.15)
        schedule = getattr(m.optim.lr_scheduler, name)(optimizer, last_epoch=5, **keywords)
        found = [optimizer.param_groups[0]["lr"]]
        for _ in range(4):
            optimizer.step()
            schedule.step()
            found.append(optimizer.param_groups[0]["lr"])
        return found

    with gt.testing.cluster(1, "numpy"):
        assert rates(gt) == rates(torch)
