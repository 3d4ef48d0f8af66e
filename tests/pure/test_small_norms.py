"""Batch norms of few elements in C: as near to the exact results as PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gt.small import NATIVE
from gt.worker.engine.torch import aten, layers, small_norms

pytestmark = pytest.mark.skipif(NATIVE is None, reason="the part in C was not built")
SHAPES = [(2, 1), (64, 16), (3, 5, 1), (8, 64, 2, 2), (2, 3, 15), (2, 3, 16), (3, 2, 17), (8, 8, 16, 16), (2, 3, 4, 5, 6)]
EPS = 1e-5


def compare(ours: Any, theirs: Any, exact: Any) -> None:
    for own, other, true in zip(ours, theirs, exact, strict=True):
        assert own.shape == true.shape and own.dtype is torch.float32
        torch.testing.assert_close(own.double(), true, rtol=2e-6, atol=1e-6 + 2 * (other.double() - true).abs().max().item())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("centre", [0.0, 30.0])
def test_a_small_batch_norm_and_its_gradients_are_as_near_as_pytorchs(shape: tuple[int, ...], centre: float) -> None:
    draw = torch.Generator().manual_seed(0)
    a, g = (torch.randn(shape, generator=draw) * 3 + c for c in (centre, 0.0))
    w, b = (torch.randn(shape[1], generator=draw) for _ in range(2))
    assert small_norms.takes(a)

    def norm(*of: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean, var = torch.zeros(shape[1], dtype=of[0].dtype), torch.zeros(shape[1], dtype=of[0].dtype)
        return *aten.native_batch_norm(*of, mean, var, True, 1.0, EPS), var

    theirs, exact = norm(a, w, b), norm(a.double(), w.double(), b.double())
    compare(layers.batch_norm_train(a, EPS, w, b), theirs, exact)

    def gradients(g: torch.Tensor, a: torch.Tensor, w: torch.Tensor) -> Any:
        saved = (s.to(a.dtype) for s in exact[1:3])
        return aten.native_batch_norm_backward(g, a, w, None, None, *saved, True, EPS, [True, True, True])

    saved = [s.float() for s in exact[1:3]]
    ours = layers.batch_norm_grad(g, a, *saved, w, bias=True)
    compare(ours, gradients(g, a, w), gradients(g.double(), a.double(), w.double()))


def test_larger_ones_and_other_layouts_are_left_to_pytorch() -> None:
    assert not small_norms.takes(torch.empty(small_norms.MOST + 1, 1)) and not small_norms.takes(torch.empty(0, 3))
    assert not small_norms.takes(torch.empty(2, 3, 4, 4).contiguous(memory_format=torch.channels_last))
