"""Group norms of CUDA graphs are one kernel each, and give PyTorch's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.testing import cluster
from gt.worker.engine.torch import graph_group_norm, layers
from tests.gpu.training import await_kernels

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)


@pytest.mark.parametrize(
    ("shape", "groups"), [((8, 64, 32, 32), 8), ((3, 96, 30, 29), 32), ((5, 128, 16, 16), 8), ((2, 16, 999), 1)]
)
def test_a_group_norm_of_a_graph_gives_pytorch_s_results(shape: tuple, groups: int) -> None:
    torch.manual_seed(0)
    a, g = 3 + torch.randn(2, *shape, device="cuda")
    w, bias = torch.randn(2, shape[1], device="cuda")
    made = graph_group_norm.group_norm(a, 1e-5, w, bias, groups=groups)
    for found, right in zip(made, layers.group_norm(a, 1e-5, w, bias, groups=groups), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)
    grads = graph_group_norm.group_norm_grad(g, a, *made[1:], w, groups=groups, bias=True)
    for found, right in zip(grads, layers.group_norm_grad(g, a, *made[1:], w, groups=groups, bias=True), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-3, atol=2e-3)


def trained(lib: Any, steps: int, waits: Any = None) -> list[float]:
    torch.manual_seed(0)
    norm, wide = torch.nn.GroupNorm(8, 32), torch.nn.Conv2d(32, 32, 3, padding=1)
    x = np.random.default_rng(0).standard_normal((16, 32, 24, 24), np.float32)
    own = [lib.nn.GroupNorm(8, 32), lib.nn.Conv2d(32, 32, 3, padding=1)]
    for mine, first in zip(own, (norm, wide)):
        mine.load_state_dict(first.state_dict())
    optimizer, losses = lib.optim.SGD([p for m in own for p in m.parameters()], lr=0.1), []
    for i in range(steps):
        optimizer.zero_grad()
        loss = (own[1](own[0](lib.from_numpy(x))) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses += [loss.item()] if i % 5 == 4 else []
        if waits is not None and i == steps // 2:
            waits()
    return losses


def test_training_with_group_norms_of_graphs_gives_pytorch_s_losses() -> None:
    with cluster(1, "pytorch") as c:
        mine = trained(gt, 60, lambda: await_kernels(c.workers[0].engine))
        stats = c.workers[0].stats()["traces"]
    assert stats["group_norms"] >= 2 and not stats["chains_failed"], stats
    np.testing.assert_allclose(mine, trained(torch, 60), rtol=2e-2)
