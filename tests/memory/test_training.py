"""Modules, SGD, and the training loop of the README, step for step against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.nn import SGD, Linear, Module, ModuleDict, ModuleList, Parameter, ParameterList, mse_loss

pytestmark = pytest.mark.usefixtures("pool")


class MLP(Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = Linear(12, 16)
        self.fc2 = Linear(16, 4)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        x = self.fc1(x).relu()
        return self.fc2(x)


class TorchMLP(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(12, 16)
        self.fc2 = torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.fc1(x).relu())


SETTINGS: list[dict[str, Any]] = [
    {"lr": 0.01},
    {"lr": 0.05, "momentum": 0.9},
    {"lr": 0.05, "weight_decay": 0.1},
    {"lr": 0.02, "momentum": 0.8, "weight_decay": 0.01, "nesterov": True},
    {"lr": 0.02, "momentum": 0.8, "dampening": 0.3},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_training_loop_matches_pytorch_step_for_step(settings: dict[str, Any]) -> None:
    model, other = MLP(), TorchMLP()
    model.load_state_dict(other.state_dict())
    optimizer, theirs = SGD(model.parameters(), **settings), torch.optim.SGD(other.parameters(), **settings)
    r = np.random.default_rng(0)
    x, y = r.normal(size=(32, 12)).astype("f4"), r.normal(size=(32, 4)).astype("f4")
    X_train, y_train = gt.from_numpy(x), gt.from_numpy(y)
    for step in range(30):
        pred = model(X_train)
        loss = ((pred - y_train) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        expected = ((other(torch.tensor(x)) - torch.tensor(y)) ** 2).mean()
        theirs.zero_grad()
        expected.backward()
        theirs.step()
        assert loss.item() == pytest.approx(expected.item(), rel=2e-5), f"step {step}"
    for (name, p), q in zip(model.named_parameters(), other.parameters()):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


def test_updates_do_not_go_on_the_tape_and_gradients_wait_for_zero_grad() -> None:
    w = Parameter(gt.ones(3))
    optimizer = SGD([w], lr=0.1)
    (w * 2).sum().backward()
    optimizer.step()
    assert w.is_leaf and w.requires_grad and gt.debug.get_tape() == []
    np.testing.assert_allclose(w.numpy(), 0.8)
    assert w.grad.tolist() == [2, 2, 2]
    optimizer.zero_grad()
    assert w.grad is None


class Nested(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = ModuleList([Linear(2, 3), Linear(3, 2, bias=False)])
        self.heads = ModuleDict({"a": Linear(2, 1), "b": ParameterList([Parameter(gt.zeros(2))])})
        self.scale = Parameter(gt.ones(1))
        self.shared = self.layers[0]
        self.register_buffer("seen", gt.zeros(1))


def test_parameters_are_found_through_containers_once_each() -> None:
    names = [name for name, _ in Nested().named_parameters()]
    assert sorted(names) == sorted(
        ["layers.0.weight", "layers.0.bias", "layers.1.weight", "heads.a.weight", "heads.a.bias", "heads.b.0", "scale"]
    )


def test_a_state_dict_moves_values_and_refuses_other_shapes_and_names() -> None:
    a, b = Nested(), Nested()
    b.load_state_dict(a.state_dict())
    for (name, p), (_, q) in zip(a.named_parameters(), b.named_parameters()):
        np.testing.assert_array_equal(p.numpy(), q.numpy(), err_msg=name)
    assert "seen" in a.state_dict()
    state = a.state_dict()
    state["more"] = gt.ones(1)
    del state["scale"]
    with pytest.raises(ValueError, match=r"missing \['scale'\], unexpected \['more'\]"):
        b.load_state_dict(state)
    with pytest.raises(ValueError, match="has shape"):
        b.load_state_dict({"scale": gt.ones(7)}, strict=False)


def test_train_and_eval_reach_every_module() -> None:
    model = Nested()
    assert model.training
    model.eval()
    assert not any(m.training for m in model.modules())
    assert all(m.training for m in model.train().modules())


def test_mse_loss_is_pytorch_s() -> None:
    a, b = np.array([1.0, 2.0, 4.0], "f4"), np.array([0.0, 2.0, 1.0], "f4")
    for reduction in ("mean", "sum", "none"):
        mine = mse_loss(gt.tensor(a), gt.tensor(b), reduction=reduction)
        theirs = torch.nn.functional.mse_loss(torch.tensor(a), torch.tensor(b), reduction=reduction)
        np.testing.assert_allclose(mine.numpy(), theirs.numpy())


def test_a_module_without_forward_and_an_optimizer_without_parameters_say_so() -> None:
    with pytest.raises(NotImplementedError, match="Nested has no forward"):
        Nested()(gt.ones(1))
    with pytest.raises(ValueError, match="at least one parameter"):
        SGD([], lr=0.1)
