"""Mixed precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import gt
from tests.nn.compare import ENGINES, numbers, random_state

F = gt.nn.functional


@pytest.fixture(params=ENGINES, autouse=True)
def cluster(request):
    with gt.testing.cluster(1, request.param) as made:
        yield made


@pytest.mark.parametrize("dtype", [gt.bfloat16, gt.float16])
def test_ops_choose_their_precision(dtype) -> None:
    x, w = gt.tensor(numbers(4, 4)), gt.tensor(numbers(4, 4, seed=1))
    img, kernel = gt.tensor(numbers(1, 2, 5, 5)), gt.tensor(numbers(3, 2, 3, 3))
    with gt.autocast("cuda", dtype=dtype):
        h = x @ w
        assert h.dtype is dtype and F.linear(x, w).dtype is dtype and F.conv2d(img, kernel).dtype is dtype
        assert F.scaled_dot_product_attention(x, w, w).dtype is dtype and gt.einsum("ij,jk->ik", x, w).dtype is dtype
        target = gt.tensor([0, 1, 2, 3])
        for wide in (h.softmax(1), F.layer_norm(h, (4,)), h.sum(), h.exp(), h.log(), F.cross_entropy(h, target),
                     F.mse_loss(h, h), h.pow(2), h + x, F.binary_cross_entropy_with_logits(h, h.sigmoid())):  # fmt: skip
            assert wide.dtype is gt.float32
        assert h.relu().dtype is dtype and (h * 2).dtype is dtype
        assert (x.double() @ w.double()).dtype is gt.float64
        with gt.autocast(enabled=False):
            assert (x @ w).dtype is gt.float32
    assert (x @ w).dtype is gt.float32 and not gt.amp.is_autocast_enabled()


def test_autocast_rounds_as_pytorch_does() -> None:
    theirs = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    own = gt.nn.Sequential(gt.nn.Linear(8, 16), gt.nn.ReLU(), gt.nn.Linear(16, 4))
    own.load_state_dict(random_state(theirs))
    x, target = numbers(6, 8), np.arange(6) % 4
    with gt.autocast("cpu", gt.bfloat16):
        loss = F.cross_entropy(own(gt.tensor(x)), gt.tensor(target))
    loss.backward()
    with torch.autocast("cpu", torch.bfloat16):
        wanted = torch.nn.functional.cross_entropy(theirs(torch.tensor(x)), torch.tensor(target))
    wanted.backward()
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-2)
    for p, q in zip(own.parameters(), theirs.parameters()):
        assert p.grad.dtype is gt.float32
        np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=0.1, atol=0.02)


def test_autocast_decorates_and_holds_in_functions() -> None:
    x = gt.ones(2, 2)

    @gt.autocast(dtype=gt.float16)
    def product(a):
        return a @ a

    assert product(x).dtype is gt.float16 and (x @ x).dtype is gt.float32
    with pytest.raises(TypeError, match="bfloat16 or float16"):
        gt.autocast(dtype=gt.float32)


def test_a_checkpoint_runs_again_in_the_same_precision() -> None:
    w = gt.tensor(numbers(4, 4), requires_grad=True)
    grads = []
    for run in (lambda f, x: f(x), gt.utils.checkpoint):
        with gt.autocast(dtype=gt.bfloat16):
            y = run(lambda x: (x @ w).tanh() @ w, gt.tensor(numbers(4, 4, seed=1), requires_grad=True))
        grads.append(gt.autograd.grad(y.float().sum(), w)[0].numpy())
    assert np.array_equal(*grads)


def test_a_scaled_step_is_the_unscaled_step() -> None:
    results = []
    for enabled in (True, False):
        p = gt.tensor([1.0, 2.0], requires_grad=True)
        optimizer = gt.optim.SGD([p], lr=0.1)
        scaler = gt.amp.GradScaler(init_scale=1024.0, growth_interval=2, enabled=enabled)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale((p * p).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        results.append(p.tolist())
        assert scaler.get_scale() == (2048.0 if enabled else 1.0)
    assert results[0] == pytest.approx(results[1])


def test_a_step_with_an_infinite_gradient_is_left_out() -> None:
    p = gt.tensor([1.0, 2.0], requires_grad=True)
    optimizer = gt.optim.SGD([p], lr=0.1)
    scaler = gt.amp.GradScaler(init_scale=8.0)
    for bad in (math.inf, math.nan):
        scaler.scale((p * gt.tensor([1.0, bad])).sum()).backward()
        assert scaler.step(optimizer) is None
        scaler.update()
        optimizer.zero_grad()
    assert p.tolist() == [1.0, 2.0] and scaler.get_scale() == 2.0


def test_gradients_are_clipped_unscaled() -> None:
    p = gt.tensor([3.0, 4.0], requires_grad=True)
    optimizer = gt.optim.SGD([p], lr=1.0)
    scaler = gt.amp.GradScaler(init_scale=64.0)
    scaler.scale((p * gt.tensor([3.0, 4.0])).sum()).backward()
    scaler.unscale_(optimizer)
    assert gt.nn.utils.clip_grad_norm_([p], 1.0).item() == pytest.approx(5.0)
    with pytest.raises(RuntimeError, match="unscaled"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert p.tolist() == pytest.approx([2.4, 3.2], rel=1e-4)
    state = scaler.state_dict()
    other = gt.amp.GradScaler()
    other.load_state_dict(state)
    assert other.state_dict() == state and state.keys() == torch.amp.GradScaler("cpu").state_dict().keys()


def test_a_product_of_bfloat16_leaves_onednn_on() -> None:
    """PyTorch turns it off where the CPU has no instructions for bfloat16, and warns with a C++ stack."""
    x = gt.ones(64, 64).to(gt.bfloat16)
    for y in (F.linear(x, x), x @ x.mT, gt.addmm(x, x, x.mT), gt.einsum("ij,kj->ik", x, x)):
        assert y.sum().item() in (64**3, 64**3 + 64**2)
        assert torch._C._get_mkldnn_enabled()
