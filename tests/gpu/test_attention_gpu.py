"""Attention of CUDA graphs by tensor cores is as exact as PyTorch's in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.worker.engine.torch import graph_attention, training
from tests.gpu.training import Begun, trained

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)
if torch.cuda.get_device_capability()[0] != 9:
    pytest.skip("products of pieces are for compute capability 9", allow_module_level=True)

SHAPES = [((8, 6, 256, 64), 256), ((4, 8, 1024, 64), 1024), ((2, 3, 100, 32), 333), ((3, 2, 500, 16), 70)]


def operands(shape: tuple[int, ...], keys: int) -> list[torch.Tensor]:
    batch, heads, rows, wide = shape
    q, g = (torch.randn(batch, rows, heads, wide, device="cuda").transpose(1, 2) for _ in range(2))
    k, v = torch.randn(batch, keys, 2, heads, wide, device="cuda").permute(2, 0, 3, 1, 4)
    return [g, q, k, v]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("shape", "keys"), SHAPES)
def test_attention_by_pieces_errs_no_more_than_pytorch_s(shape: tuple[int, ...], keys: int, causal: bool) -> None:
    torch.manual_seed(0)
    g, q, k, v = operands(shape, keys)
    scale = shape[-1] ** -0.5
    exact = training.attention(q.double(), k.double(), v.double(), scale, causal=causal)
    right = [*exact, *training.attention_grad(*(t.double() for t in (g, q, k, v, *exact)), scale, causal=causal)]
    ours, theirs = ([*made, *grads(g, q, k, v, *made, scale, causal=causal)] for made, grads in (
        (graph_attention.attention(q, k, v, scale, causal=causal), graph_attention.attention_grad),
        (training.attention(q, k, v, scale, causal=causal), training.attention_grad),
    ))  # fmt: skip
    for mine, other, want in zip(ours, theirs, right, strict=True):
        assert mine.shape == want.shape
        first, second = ((a.double() - want).pow(2).mean().sqrt().item() for a in (mine, other))
        assert first <= 1.1 * second, first / second


def test_weights_of_keys_that_are_not_there_are_none_however_low_the_scores() -> None:
    g, q, k, v = operands((1, 2, 128, 16), 90)
    q, k = q + 10, k - 10
    exact = training.attention(q.double(), k.double(), v.double(), 0.3, causal=False)
    right = training.attention_grad(*(t.double() for t in (g, q, k, v, *exact)), 0.3, causal=False)
    made = graph_attention.attention(q, k, v, 0.3, causal=False)
    for found, want in zip(graph_attention.attention_grad(g, q, k, v, *made, 0.3, causal=False), right, strict=True):
        torch.testing.assert_close(found.double(), want, rtol=1e-3, atol=1e-3)


def test_gradients_have_the_same_bits_each_time() -> None:
    g, q, k, v = operands((4, 8, 512, 64), 512)
    made = graph_attention.attention(q, k, v, 0.125, causal=True)
    found = [graph_attention.attention_grad(g, q, k, v, *made, 0.125, causal=True) for _ in range(3)]
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other))


def test_infinities_and_nans_come_out_as_defined() -> None:
    """PyTorch's kernel in float32 gives others."""
    _, q, k, v = operands((2, 2, 256, 64), 256)
    q[0, 0, 3, 5], k[1, 0, 7, 9], v[1, 1, 2, 4], v[0, 1, 200, 1] = torch.nan, -torch.inf, torch.inf, 1e-40
    k[1, 0, :70, 9] = -torch.inf  # more than a tile of keys
    q[1, 0] = q[1, 0].abs()  # so that its scores for those keys are all -inf
    for causal in (False, True):
        scores = q.double() @ k.double().mT * 0.125
        if causal:
            scores.masked_fill_(~torch.ones(256, 256, dtype=torch.bool, device="cuda").tril(), -torch.inf)
        lse = scores.logsumexp(-1, keepdim=True)
        want = ((scores - torch.where(lse == -torch.inf, 0.0, lse)).exp() @ v.double()).float()
        found = graph_attention.attention(q, k, v, 0.125, causal=causal)[0]
        torch.testing.assert_close(found, want, equal_nan=True, rtol=1e-5, atol=1e-5)


def begun() -> Begun:
    rng = np.random.default_rng(0)
    x, y = (gt.tensor(a) for a in rng.standard_normal((2, 4, 512, 128), np.float32))
    own, out = (gt.nn.Parameter(gt.tensor(rng.standard_normal((n, 128), np.float32) / 11)) for n in (384, 128))
    F = gt.nn.functional

    def loss() -> Any:
        q, k, v = F.linear(x, own).reshape(4, 512, 3, 4, 32).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(4, 512, 128)
        return ((F.linear(seen, out) - y) ** 2).mean()

    return [own, out], loss


def test_training_with_attention_by_pieces_gives_the_losses_without(monkeypatch: pytest.MonkeyPatch) -> None:
    losses, stats = trained(begun)
    monkeypatch.setenv("GT_SPLIT_PRODUCTS", "0")
    others, plain = trained(begun)
    assert stats["attentions"] >= 2 and not stats["chains_failed"], stats
    assert plain["attentions"] == 0 and plain["compiled_calls"], plain
    np.testing.assert_allclose(losses, others, rtol=1e-4)
