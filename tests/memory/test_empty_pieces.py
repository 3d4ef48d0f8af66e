"""Every engine computes ops on empty pieces of an uneven shard."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gt
from gt.client.apply import apply
from gt.ops import TABLE
from gt.testing import cluster


@pytest.mark.parametrize("engine", ["numpy", "pytorch"])
def test_the_gradient_of_batch_norm_of_no_channels_is_empty(engine: str) -> None:
    """By the function, which asks no worker for it, and by the op, which a worker may be asked for all the same."""
    with cluster(1, engine) as made:
        x = gt.randn(4, 0, 4, requires_grad=True)
        gt.nn.functional.batch_norm(x, None, None, training=True).sum().backward()
        assert x.grad is not None and x.grad.numpy().shape == (4, 0, 4)
        y, *_ = apply(TABLE["batch_norm_train"], (x, 1e-5))
        (y * 2).sum().backward()
        assert x.grad.sum().item() == 0.0
        assert made.workers[0].stats()["ops"]["batch_norm_grad"] == 1


@pytest.mark.parametrize("engine", ["numpy", "pytorch"])
def test_batch_norm_of_two_channels_on_three_workers_is_pytorch_s(engine: str) -> None:
    values, slope = np.random.default_rng(0).normal(size=(2, 5, 2, 3, 3)).astype("float32")
    theirs = torch.tensor(values, requires_grad=True)
    (torch.nn.BatchNorm2d(2)(theirs) * torch.tensor(slope)).sum().backward()
    with cluster(3, engine):
        gt.register_config("channels", gt.SignalConfig(shard=gt.ShardConfig(axis=1)))
        with gt.signal.context("channels"):
            ours = gt.tensor(values, requires_grad=True)
            (gt.nn.BatchNorm2d(2)(ours) * gt.tensor(slope)).sum().backward()
        assert ours.grad is not None and theirs.grad is not None
        np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-4, atol=1e-5)
