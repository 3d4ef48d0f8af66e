"""PyTorch refuses a gradient that reads a tensor that was changed in place after it was saved; GT does too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import gt


def _no_grad(m: Any, change: Callable[[], Any]) -> None:
    with m.no_grad():
        change()


def _step(m: Any, w: Any) -> None:
    w.grad = m.ones(3, 3)
    m.optim.SGD([w], lr=0.1).step()


def _swap(x: Any) -> None:
    x += 1


# The writes between the forward pass and backward(): m, the leaf w, y = w * 2, and the loss made of y before.
CASES: dict[str, Callable[[Any], Any]] = {
    "square": lambda m: _after(m, lambda w, y: (y * y).sum(), lambda w, y: y.add_(1)),
    "square of a view": lambda m: _after(m, lambda w, y: (y.t() * y.t()).sum(), lambda w, y: y.add_(1)),
    "view written": lambda m: _after(m, lambda w, y: (y * y).sum(), lambda w, y: y[0].zero_()),
    "row of the other": lambda m: _after(m, lambda w, y: (y[0] * y[0]).sum(), lambda w, y: y[1].zero_()),
    "operator": lambda m: _after(m, lambda w, y: y.exp().sum() + (y * y).sum(), lambda w, y: _swap(y)),
    "sum saves nothing": lambda m: _after(m, lambda w, y: y.sum(), lambda w, y: y.add_(1)),
    "add saves nothing": lambda m: _after(m, lambda w, y: (y + y).sum(), lambda w, y: y.mul_(2)),
    "result of exp": lambda m: _result(m, lambda y: y.exp()),
    "result of sigmoid": lambda m: _result(m, lambda y: y.sigmoid()),
    "result of tanh": lambda m: _result(m, lambda y: y.tanh()),
    "result of softmax": lambda m: _result(m, lambda y: y.softmax(0)),
    "result of mul": lambda m: _result(m, lambda y: y * 3),
    "result of relu": lambda m: _result(m, lambda y: y.relu()),
    "detached": lambda m: _after(m, lambda w, y: (y * y).sum(), lambda w, y: y.detach().zero_()),
    "clone": lambda m: _after(m, lambda w, y: (y.clone() * y.clone()).sum(), lambda w, y: y.zero_()),
    "copied": lambda m: _after(m, lambda w, y: (m.zeros(3, 3).copy_(y) * m.ones(3, 3)).sum(), lambda w, y: y.zero_()),
    "leaf": lambda m: _after(m, lambda w, y: (w * w).sum(), lambda w, y: _no_grad(m, lambda: w.add_(1))),
    "weight by an optimizer": lambda m: _after(m, lambda w, y: (y @ w).sum(), lambda w, y: _step(m, w)),
    "weight of no gradient": lambda m: _after(m, lambda w, y: (m.ones(3, 3) @ w).sum(), lambda w, y: _step(m, w)),
    "in place itself": lambda m: _after(m, lambda w, y: y.mul_(w).sum(), lambda w, y: None),
    "in place twice": lambda m: _after(m, lambda w, y: y.mul_(w).mul_(w).sum(), lambda w, y: None),
    "write before use": lambda m: _after(m, lambda w, y: (y.add_(1) * y).sum(), lambda w, y: None),
    "set": lambda m: _after(m, lambda w, y: (y * y).sum(), lambda w, y: y.__setitem__(0, 5.0)),
    "relu in place": lambda m: _after(m, lambda w, y: m.nn.functional.relu(y, inplace=True).sum(), lambda w, y: None),
    "loss of other ops": lambda m: _after(m, lambda w, y: m.nn.functional.mse_loss(y, w.detach()), lambda w, y: y.zero_()),
    "divisor": lambda m: _after(m, lambda w, y: (y / (w + 1)).sum(), lambda w, y: y.zero_()),
    "dividend alone": lambda m: _after(m, lambda w, y: (y / m.ones(3, 3)).sum(), lambda w, y: y.zero_()),
    "number by tensor": lambda m: _after(
        m, lambda w, y: (1 / (y + 1)).sum() + (2 / (y := y + 1)).sum(), lambda w, y: y.add_(1)
    ),
    "own function": lambda m: _after(m, lambda w, y: _own(m).apply(y).sum(), lambda w, y: y.zero_()),
    "own function, unchanged": lambda m: _after(m, lambda w, y: _own(m).apply(y).sum(), lambda w, y: None),
    "normalised twice": lambda m: _normalised_twice(m),
    "attention's value": lambda m: _after(
        m, lambda w, y: m.nn.functional.scaled_dot_product_attention(w, w, y).sum(), lambda w, y: y.zero_()
    ),
    "attention's query": lambda m: _after(
        m, lambda w, y: m.nn.functional.scaled_dot_product_attention(y, w, w).sum(), lambda w, y: y.zero_()
    ),
    "cut reshape": lambda m: _after(m, lambda w, y: (y.t().reshape(-1) ** 2).sum(), lambda w, y: y.zero_()),
}


def _after(m: Any, loss: Callable[[Any, Any], Any], change: Callable[[Any, Any], Any]) -> Any:
    w = m.arange(9.0).view(3, 3).clone().requires_grad_()
    y = w * 2
    total = loss(w, y)
    change(w, y)
    w.grad = None
    total.backward()
    return w.grad.reshape(-1).tolist()


def _own(m: Any) -> Any:
    class Square(m.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2 * ctx.saved_tensors[0]

    return Square


def _normalised_twice(m: Any) -> Any:
    """The running statistics, which PyTorch saves, move in the second forward pass: no write that gradients are refused for."""
    norm = m.nn.BatchNorm1d(3)
    w = m.arange(12.0).view(4, 3).clone().requires_grad_()
    (norm(w * w) + norm(w)).square().sum().backward()
    return w.grad.reshape(-1).tolist()


def _result(m: Any, make: Callable[[Any], Any]) -> Any:
    w = m.ones(3, requires_grad=True)
    y = make(w * 2)
    with m.no_grad():
        y.mul_(2)
    y.sum().backward()
    return w.grad.reshape(-1).tolist()


def _outcome(m: Any, case: Callable[[Any], Any]) -> Any:
    try:
        return case(m)
    except RuntimeError as wrong:
        assert "modified by an inplace operation" in str(wrong)
        return "refused"


@pytest.mark.parametrize("name", CASES)
def test_backward_raises_where_pytorch_raises(pool: Any, name: str) -> None:
    mine, theirs = _outcome(gt, CASES[name]), _outcome(torch, CASES[name])
    assert mine == theirs if "refused" in (mine, theirs) else mine == pytest.approx(theirs, abs=1e-3)


def test_a_training_loop_is_not_looked_at(pool: Any) -> None:
    """Ops that were made after the last write are passed by."""
    model = gt.nn.Linear(3, 3)
    optimizer = gt.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(gt.ones(2, 3)).square().sum()
        assert loss.handle.session.overwritten.last < loss.node.order
        loss.backward()
        optimizer.step()


def test_the_record_of_writes_is_bounded(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from gt.client import overwritten

    monkeypatch.setattr(overwritten, "MOST", 10)
    x = gt.zeros(2)
    for _ in range(50):
        x.add_(1)
    assert len(x.handle.session.overwritten.since) <= 11
