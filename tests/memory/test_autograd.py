"""The tape: gradients equal PyTorch's, and nodes are freed with their tensors."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.autograd import Node
from gt.client.scope import HERE, Scope
from gt.testing import Cluster
from tests.memory.collecting import collect

R = np.random.default_rng(0)
X = (np.abs(R.normal(size=(3, 4))) + 0.5).astype("f4")
Y = (np.abs(R.normal(size=(3, 4))) + 0.5).astype("f4")
ROW = (np.abs(R.normal(size=(4,))) + 0.5).astype("f4")
COL = (np.abs(R.normal(size=(3, 1))) + 0.5).astype("f4")


def gradients(f: Callable, *arrays: np.ndarray) -> None:
    """The gradients of f's sum, here and in PyTorch."""
    mine = [gt.tensor(a, requires_grad=True) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    f(gt, *mine).sum().backward()
    f(torch, *theirs).sum().backward()
    for a, b in zip(mine, theirs):
        assert (a.grad is None) == (b.grad is None)
        if b.grad is not None:
            assert a.grad.shape == tuple(b.grad.shape)
            np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-4, atol=1e-5)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda t, x, y: x + y,
    "sub": lambda t, x, y: x - y,
    "mul": lambda t, x, y: x * y,
    "div": lambda t, x, y: x / y,
    "pow": lambda t, x, y: x**2 + y**3.0,
    "pow of two": lambda t, x, y: x**y,
    "a number on the left": lambda t, x, y: 2 / x + 3 - y + 2**y,
    "neg and abs": lambda t, x, y: -x * abs(-y),
    "exp and log": lambda t, x, y: x.exp() * y.log(),
    "sqrt": lambda t, x, y: x.sqrt() * y,
    "relu": lambda t, x, y: (x - 1).relu() * y,
    "sigmoid and tanh": lambda t, x, y: x.sigmoid() * y.tanh(),
    "matmul": lambda t, x, y: x @ y.T,
    "mean": lambda t, x, y: x.mean() * y.mean(dim=0),
    "sum along an axis": lambda t, x, y: x.sum(dim=1, keepdim=True) * y,
    "max": lambda t, x, y: x.max() * y.max(dim=1).values.sum() + y.min(),
    "reshape": lambda t, x, y: x.reshape(4, 3).T * y,
    "permute": lambda t, x, y: x.permute(1, 0) @ y,
    "squeeze": lambda t, x, y: x.unsqueeze(1).squeeze(1) * y.unsqueeze(0),
    "expand": lambda t, x, y: x.unsqueeze(1).expand(3, 5, 4) * y.unsqueeze(1),
    "cat": lambda t, x, y: t.cat([x, y * 2, x], 0) ** 2,
    "stack": lambda t, x, y: t.stack([x, y, x], 1) ** 2,
    "int index": lambda t, x, y: x[1] * y[-1],
    "slices": lambda t, x, y: x[1:, ::2] * y[:2, 1::2],
    "ellipsis and None": lambda t, x, y: x[..., 0] * y[None, :, 1],
    "an overlap": lambda t, x, y: x[:2] * x[1:] + y[0],
    "cast": lambda t, x, y: (x.double() * y.double()).float(),
    "clone": lambda t, x, y: x.clone() * y,
    "detach": lambda t, x, y: x.detach() * y + x,
    "used often": lambda t, x, y: x * x + x * y + x,
    "where": lambda t, x, y: t.where(x > y, x * 2, y * 3),
    "nothing of the second": lambda t, x, y: x * 2,
}


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_pytorch_s(name: str) -> None:
    gradients(FUNCTIONS[name], X, Y)


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("other", [ROW, COL, ROW[:1], Y[0, :1].reshape(())], ids=lambda a: str(a.shape))
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_gradients_of_broadcast_operands_have_their_shape(name: str, other: np.ndarray) -> None:
    gradients(FUNCTIONS[name], X, other)
    gradients(lambda t, a, b: FUNCTIONS[name](t, b, a), X, other)


@pytest.mark.usefixtures("pool")
def test_a_gradient_may_be_given() -> None:
    x, y = gt.tensor(X, requires_grad=True), torch.tensor(X, requires_grad=True)
    (x * 2).backward(gt.tensor(Y))
    (y * 2).backward(gradient=torch.tensor(Y))
    np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy())
    with pytest.raises(ValueError, match=r"expected that shape, got \(2,\)"):
        (x * 2).backward(gt.ones(2))
    with pytest.raises(RuntimeError, match="expected a gradient of that shape"):
        (x * 2).backward()


@pytest.mark.usefixtures("pool")
def test_gradients_accumulate_until_they_are_cleared() -> None:
    x = gt.ones(2, requires_grad=True)
    for n in (1, 2, 3):
        (x * 3).sum().backward()
        assert x.grad.tolist() == [3.0 * n] * 2
    x.grad = None
    (x * 3).sum().backward()
    assert x.grad.tolist() == [3, 3]


@pytest.mark.usefixtures("pool")
def test_several_losses_share_a_part_of_the_tape() -> None:
    x = gt.full((2,), 3.0, requires_grad=True)
    h = x * x
    (h * 2).sum().backward(retain_graph=True)
    h.sum().backward()
    assert x.grad.tolist() == [18, 18]


@pytest.mark.usefixtures("pool")
def test_a_tape_is_freed_by_backward_unless_it_is_retained() -> None:
    x = gt.full((2,), 3.0, requires_grad=True)
    loss = (x * x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert x.grad.tolist() == [12, 12]
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        loss.backward()


@pytest.mark.usefixtures("pool")
def test_no_grad_keeps_ops_off_the_tape_as_context_and_as_decorator() -> None:
    x = gt.ones(2, requires_grad=True)
    with gt.no_grad():
        assert not gt.is_grad_enabled() and not (x * 2).requires_grad
        with gt.enable_grad():
            assert (x * 2).requires_grad
        assert not (x * 2).requires_grad

    @gt.no_grad()
    def twice(t: gt.Tensor) -> gt.Tensor:
        return t * 2

    @gt.no_grad
    def thrice(t: gt.Tensor) -> gt.Tensor:
        return t * 3

    assert not twice(x).requires_grad and not thrice(x).requires_grad and twice.__name__ == "twice"
    assert (x * 2).requires_grad and gt.is_grad_enabled()


@pytest.mark.usefixtures("pool")
def test_no_grad_ends_also_where_something_is_raised() -> None:
    with pytest.raises(ZeroDivisionError), gt.no_grad():
        raise ZeroDivisionError
    assert gt.is_grad_enabled()


@pytest.mark.usefixtures("pool")
def test_is_leaf_and_grad_fn_of_leaves_and_results() -> None:
    x = gt.ones(2, requires_grad=True)
    y = x * 2
    assert x.is_leaf and not y.is_leaf and y.requires_grad and not y.detach().requires_grad
    assert not (gt.ones(2) * 2).requires_grad and not (x > 0).requires_grad
    with pytest.raises(RuntimeError, match="no gradient leads to"):
        gt.ones(2).sum().backward()
    with pytest.raises(TypeError, match="only floating-point and complex tensors have gradients, not int64"):
        gt.tensor([1, 2], requires_grad=True)


@pytest.mark.usefixtures("pool")
def test_in_place_changes_of_a_leaf_are_refused_and_those_of_results_are_on_the_tape() -> None:
    x = gt.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="cannot change in place"):
        x -= 1
    y = x * 2
    y *= 3
    y.sum().backward()
    assert x.grad.tolist() == [6, 6]
    with gt.no_grad():
        x -= 0.5 * x.grad
    assert x.tolist() == [-2, -2] and x.requires_grad and x.is_leaf


@pytest.mark.usefixtures("pool")
def test_changing_a_variable_after_its_use_does_not_change_gradients() -> None:
    """Values never change, so the tape holds the values that were used: `x.data` changes without a word, as in PyTorch."""
    x = gt.full((2,), 3.0, requires_grad=True)
    loss = (x * x).sum()
    x.data.zero_()
    loss.backward()
    assert x.grad.tolist() == [6, 6]


def test_the_tape_is_gone_when_its_tensors_are(pool: Cluster) -> None:
    x = gt.ones(4, requires_grad=True)
    pool.settle()

    def nodes() -> int:
        collect()
        return sum(type(o) is Node for o in gc.get_objects())

    before = nodes()
    y = x
    for _ in range(50):
        y = y * 1.5
    assert nodes() >= before + 50
    del y
    pool.settle()
    assert nodes() == before and len(pool.workers[0].spaces["c0"].table) == 1


@pytest.mark.parametrize("engine", ["numpy", "pytorch"])
def test_each_thread_has_a_tape_of_its_own(engine: str) -> None:
    with gt.testing.cluster(engine=engine) as c:
        x = gt.ones(2, requires_grad=True)
        held = x * 2
        found: list[Any] = []

        def work() -> None:
            HERE.scope = Scope(c.sessions[0])
            y = gt.full((2,), 2.0, requires_grad=True)
            loss = (y * y).sum()
            found.append([e.op for e in gt.debug.get_tape()])
            loss.backward()
            found.append(y.grad.tolist())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert found == [["mul", "sum"], [4, 4]]
        assert [e.op for e in gt.debug.get_tape()] == ["mul"] and held.requires_grad
        del held, x
        c.settle()


def test_training_does_not_grow(pool: Cluster) -> None:
    w = gt.ones(8, 8, requires_grad=True)
    x = gt.ones(4, 8)

    def step() -> None:
        loss = ((x @ w).relu() ** 2).mean()
        loss.backward()
        with gt.no_grad():
            w.data = (w - 0.01 * w.grad).data
        w.grad = None

    def held() -> tuple[int, int]:
        pool.settle()
        collect()
        return len(pool.workers[0].spaces["c0"].table), len(pool.dispatcher.tables.clients["c0"].entries)

    for _ in range(20):
        step()
    early = held()
    for _ in range(200):
        step()
    assert held() == early == (2, 2)


@pytest.mark.parametrize(("function", "other"), [("conv2d", "conv_transpose"), ("conv_transpose2d", "conv")])
def test_a_convolution_computes_no_gradient_of_an_image_that_wants_none(function: str, other: str) -> None:
    x, w = R.normal(size=(2, 3, 6, 6)).astype("f4"), R.normal(size=(3, 3, 2, 2)).astype("f4")
    with gt.testing.cluster(engine="pytorch") as made:
        ours, theirs = gt.tensor(w, requires_grad=True), torch.tensor(w, requires_grad=True)
        getattr(gt.nn.functional, function)(gt.tensor(x), ours).sum().backward()
        getattr(torch.nn.functional, function)(torch.tensor(x), theirs).sum().backward()
        np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-4, atol=1e-4)
        done = made.workers[0].stats()["ops"]
        assert done["conv_weight_grad"] == 1 and other not in done
