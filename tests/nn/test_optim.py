"""Every optimizer against PyTorch's over several steps, and its state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from tests.nn.compare import ENGINES, close, numbers

CASES: list[tuple[str, dict]] = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.05, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.4, "weight_decay": 0.05}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("Adam", {"lr": 0.05}),
    ("Adam", {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-4, "weight_decay": 0.1, "maximize": True}),
    ("Adam", {"lr": 0.05, "amsgrad": True}),
    ("AdamW", {"lr": 0.05}),
    ("AdamW", {"lr": 0.05, "weight_decay": 0.3, "amsgrad": True, "maximize": True}),
    ("RMSprop", {"lr": 0.02}),
    ("RMSprop", {"lr": 0.02, "alpha": 0.9, "weight_decay": 0.1, "momentum": 0.8}),
    ("RMSprop", {"lr": 0.02, "centered": True, "momentum": 0.5, "maximize": True}),
    ("Adagrad", {"lr": 0.1}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.2, "weight_decay": 0.1, "initial_accumulator_value": 0.3, "maximize": True}),
]
START = [numbers(3, 4), numbers(4, seed=2), numbers(2, 2, 2, seed=3)]


def _params() -> tuple[list, list]:
    return [gt.tensor(a, requires_grad=True) for a in START], [torch.tensor(a, requires_grad=True) for a in START]


def _step(optimizer: Any, params: list) -> None:
    """A loss whose gradient changes with the parameters and differs between elements."""
    optimizer.zero_grad()
    sum(((p - 0.3) ** 2 * (i + 1)).sum() + p.sin().sum() for i, p in enumerate(params)).backward()
    optimizer.step()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name, keywords", CASES, ids=lambda v: v if isinstance(v, str) else "-".join(v))
def test_an_optimizer_is_pytorchs(engine: str, name: str, keywords: dict) -> None:
    with gt.testing.cluster(1, engine):
        own, theirs = _params()
        a, b = getattr(gt.optim, name)(own, **keywords), getattr(torch.optim, name)(theirs, **keywords)
        for _ in range(6):
            _step(a, own)
            _step(b, theirs)
            for p, q in zip(own, theirs):
                close(p, q, rtol=2e-5, atol=2e-5)
                assert p.requires_grad and p.node is None
        saved, wanted = a.state_dict(), b.state_dict()
        assert saved["state"].keys() == wanted["state"].keys()
        for i, state in wanted["state"].items():
            for key, value in state.items():
                if key == "step":
                    assert saved["state"][i][key] == int(value)
                elif value is not None:
                    close(saved["state"][i][key], value, key, 2e-5, 2e-5)


def _lion(p: np.ndarray, g: np.ndarray, m: np.ndarray, lr: float, b1: float, b2: float, decay: float) -> tuple:
    """As its paper has it."""
    c = b1 * m + (1 - b1) * g
    return p - lr * (np.sign(c) + decay * p), b2 * m + (1 - b2) * g


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("maximize", [False, True])
def test_lion_is_its_papers(engine: str, maximize: bool) -> None:
    with gt.testing.cluster(1, engine):
        p = gt.tensor(START[0], requires_grad=True)
        optimizer = gt.optim.Lion([p], lr=0.01, betas=(0.8, 0.9), weight_decay=0.1, maximize=maximize)
        want, m = START[0].copy(), np.zeros_like(START[0])
        for i in range(5):
            p.grad = gt.tensor(numbers(3, 4, seed=i))
            optimizer.step()
            want, m = _lion(want, numbers(3, 4, seed=i) * (-1 if maximize else 1), m, 0.01, 0.8, 0.9, 0.1)
            np.testing.assert_allclose(p.numpy(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name, keywords", [c for c in CASES if len(c[1]) > 1], ids=lambda v: v if isinstance(v, str) else "")
def test_state_moves_from_pytorch_and_goes_on(name: str, keywords: dict) -> None:
    with gt.testing.cluster(1, "pytorch"):
        _, theirs = _params()
        b = getattr(torch.optim, name)(theirs, **keywords)
        for _ in range(3):
            _step(b, theirs)
        own = [gt.from_torch(q.detach()).requires_grad_() for q in theirs]
        a = getattr(gt.optim, name)(own, **{**keywords, "lr": 9.0})
        a.load_state_dict(b.state_dict())
        assert a.param_groups[0]["lr"] == keywords["lr"]
        for _ in range(3):
            _step(a, own)
            _step(b, theirs)
        for p, q in zip(own, theirs):
            close(p, q, rtol=2e-5, atol=2e-5)


def test_state_moves_to_pytorch_and_goes_on() -> None:
    with gt.testing.cluster(1, "numpy"):
        own, _ = _params()
        a = gt.optim.AdamW(own, lr=0.05, amsgrad=True)
        for _ in range(3):
            _step(a, own)
        saved = a.state_dict()
        state = {i: {k: torch.tensor(float(v)) if k == "step" else v.torch() for k, v in s.items()}
                 for i, s in saved["state"].items()}  # fmt: skip
        theirs = [p.detach().torch().requires_grad_() for p in own]
        b = torch.optim.AdamW(theirs, lr=0.05, amsgrad=True)
        b.load_state_dict({"state": state, "param_groups": b.state_dict()["param_groups"]})
        _step(a, own)
        _step(b, theirs)
        for p, q in zip(own, theirs):
            close(p, q, rtol=2e-5, atol=2e-5)


def test_groups_have_settings_of_their_own() -> None:
    with gt.testing.cluster(1, "numpy"):
        own, theirs = _params()
        a, b = (
            o.SGD([{"params": p[:1], "lr": 0.3}, {"params": p[1:], "momentum": 0.5}], lr=0.1, weight_decay=0.1)
            for o, p in ((gt.optim, own), (torch.optim, theirs))
        )
        for _ in range(3):
            _step(a, own)
            _step(b, theirs)
        for p, q in zip(own, theirs):
            close(p, q)
        a.add_param_group({"params": gt.ones(2, requires_grad=True)})
        assert [g["lr"] for g in a.param_groups] == [0.3, 0.1, 0.1]
        with pytest.raises(ValueError, match="more than one group"):
            a.add_param_group({"params": own[0]})


def test_a_parameter_without_a_gradient_stays() -> None:
    with gt.testing.cluster():
        p, q = gt.ones(2, requires_grad=True), gt.ones(2, requires_grad=True)
        optimizer = gt.optim.AdamW([p, q], lr=0.1)
        p.sum().backward()
        optimizer.step()
        assert q.tolist() == [1.0, 1.0] and p.tolist() != [1.0, 1.0] and q not in optimizer.state


def test_a_step_is_one_instruction_a_parameter() -> None:
    with gt.testing.cluster(1, "numpy") as cluster:
        for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Lion"):
            params = [gt.ones(2, requires_grad=True) for _ in range(3)]
            optimizer = getattr(gt.optim, name)(params, lr=0.1)
            for _ in range(2):  # the first makes the state
                for p in params:
                    p.grad = gt.ones(2)
                cluster.settle()
                before = sum(cluster.workers[0].stats()["ops"].values())
                optimizer.step()
                cluster.settle()
            frees = cluster.workers[0].stats()["ops"]
            assert sum(frees.values()) - before == 3, f"{name}: {frees}"


def test_a_closure_computes_the_loss() -> None:
    with gt.testing.cluster():
        p = gt.ones(2, requires_grad=True)
        optimizer = gt.optim.SGD([p], lr=0.5)

        def closure():
            optimizer.zero_grad()
            loss = (p * p).sum()
            loss.backward()
            return loss

        with gt.no_grad():
            assert optimizer.step(closure).item() == 2.0
        assert p.tolist() == [0.0, 0.0]


def test_updates_leave_no_tape_and_no_tensors_behind() -> None:
    with gt.testing.cluster(1, "numpy") as cluster:
        p = gt.ones(2, requires_grad=True)
        optimizer = gt.optim.Adam([p], lr=0.1)
        counts = []
        for _ in range(4):
            optimizer.zero_grad()
            (p * p).sum().backward()
            optimizer.step()
            cluster.settle()
            counts.append(len(cluster.workers[0].spaces["c0"].table))
        assert counts[1] == counts[2] == counts[3]


@pytest.mark.parametrize(
    "make",
    [
        lambda p: gt.optim.SGD(p, lr=-1),
        lambda p: gt.optim.SGD(p, nesterov=True),
        lambda p: gt.optim.Adam(p, betas=(1.0, 0.9)),
        lambda p: gt.optim.AdamW(p, eps=-1),
        lambda p: gt.optim.RMSprop(p, momentum=-1),
        lambda p: gt.optim.Adagrad(p, lr_decay=-1),
        lambda p: gt.optim.Lion(p, weight_decay=-1),
        lambda p: gt.optim.SGD([]),
        lambda p: gt.optim.SGD([p[0] * 2]),
    ],
)
def test_a_wrong_setting_is_refused(make) -> None:
    with gt.testing.cluster(), pytest.raises(ValueError):
        make([gt.ones(2, requires_grad=True)])


def test_optimizers_are_importable_from_nn() -> None:
    from gt.nn import SGD, AdamW

    assert SGD is gt.optim.SGD and AdamW is gt.optim.AdamW
