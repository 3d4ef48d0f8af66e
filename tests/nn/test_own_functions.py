"""Functions of one's own that change their input in place, or whose gradient has no gradient, as in PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gt


@pytest.fixture(autouse=True)
def pool():
    with gt.testing.cluster(1, "numpy") as made:
        yield made


def _tripled(m: Any) -> Any:
    class Triple(m.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x.mul_(3)
            ctx.mark_dirty(x)
            ctx.save_for_backward(x)
            return x

        @staticmethod
        def backward(ctx, g):
            return g * 3 + 0 * ctx.saved_tensors[0]

    return Triple.apply


def test_an_input_marked_dirty_is_the_result() -> None:
    found = []
    for m in (gt, torch):
        a = m.tensor([1.0, 2.0], requires_grad=True)
        x = a * 1
        assert _tripled(m)(x) is x and x.requires_grad and not x.is_leaf
        (x * x).sum().backward()
        found.append((x.tolist(), a.grad.tolist()))
    assert found[0] == found[1]


def test_a_view_marked_dirty_changes_its_base() -> None:
    found = []
    for m in (gt, torch):
        a = m.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        x = a * 1
        _tripled(m)(x[0])
        (x * x).sum().backward()
        found.append((x.tolist(), a.grad.tolist()))
        with pytest.raises(RuntimeError, match="leaf"):
            _tripled(m)(m.ones(2, requires_grad=True))
    assert found[0] == found[1]


def test_a_gradient_marked_as_the_last_has_none() -> None:
    for m in (gt, torch):

        class Cube(m.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x**3

            @staticmethod
            @m.autograd.function.once_differentiable
            def backward(ctx, g):
                return g * 3 * ctx.saved_tensors[0] ** 2

        x = m.tensor(2.0, requires_grad=True)
        Cube.apply(x).backward()
        assert x.grad.item() == 12
        (g,) = m.autograd.grad(Cube.apply(x) ** 2, x, create_graph=True)
        assert g.item() == 192
        with pytest.raises(RuntimeError, match="once_differentiable"):
            g.backward()
