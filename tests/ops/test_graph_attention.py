"""Attention of graphs by tensor cores gives PyTorch's results; here on the CPU, by Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest

from gt.ops import infer, row
from gt.spec import Spec, bfloat16, bool_, float32
from tests.ops.interpreted import assert_prints_right

INTERPRETED = """
import torch
import triton.language as tl
from gt.ops import infer, row
from gt.spec import Spec, float32
from gt.worker.engine.torch import graph_attention, training

graph_attention.PIECE = tl.constexpr(tl.float32)  # the interpreter has no products of bfloat16
torch.manual_seed(0)
CASES = [((1, 2, 70, 16), 70), ((2, 1, 33, 16), 90)]
for (batch, heads, rows, wide), keys in CASES:
    for causal in (False, True):
        q = torch.randn(batch, heads, rows, wide)
        k, v = torch.randn(batch, 2, keys, heads, wide).permute(1, 0, 3, 2, 4)
        if heads == 1:  # strides that no kernel takes, and keys and values with strides of their own
            q, v = q.mT.contiguous().mT, v.contiguous()
        g = torch.randn(batch, rows, heads, wide).transpose(1, 2)
        found = graph_attention.attention(q, k, v, 0.3, causal=causal)
        exact = training.attention(q.double(), k.double(), v.double(), 0.3, causal=causal)
        for a, want in zip(found, exact, strict=True):
            torch.testing.assert_close(a.double(), want.double(), rtol=1e-5, atol=1e-5)
        grads = graph_attention.attention_grad(g, q, k, v, *found, 0.3, causal=causal)
        wide_ = (t.double() for t in (g, q, k, v, *exact))
        for a, want in zip(grads, training.attention_grad(*wide_, 0.3, causal=causal), strict=True):
            torch.testing.assert_close(a.double(), want.double(), rtol=1e-4, atol=1e-5)
        if rows == keys:
            step = grads[1].storage_offset() - grads[0].storage_offset()
            assert step == heads * wide == grads[2].storage_offset() - grads[1].storage_offset(), "gradients lie side by side"
q, g, k, v = *(10 + torch.randn(2, 1, 1, 33, 16)), *torch.randn(2, 1, 1, 90, 16)
k -= 10  # scores so low that those of no key at all, zeros, would have infinite weights
exact = training.attention(q.double(), k.double(), v.double(), 0.3, causal=False)
found = graph_attention.attention(q, k, v, 0.3, causal=False)
grads = graph_attention.attention_grad(g, q, k, v, *found, 0.3, causal=False)
for a, want in zip(grads, training.attention_grad(*(t.double() for t in (g, q, k, v, *exact)), 0.3, causal=False), strict=True):
    torch.testing.assert_close(a.double(), want, rtol=1e-3, atol=1e-3)
q, k, v = torch.rand(1, 2, 33, 16), *torch.randn(2, 1, 2, 90, 16)
k[0, 0, :70, 3], k[0, 1, :, 3] = -torch.inf, -torch.inf  # the first tiles' scores are -inf, and all
for causal in (False, True):
    scores = q.double() @ k.double().mT * 0.3
    if causal:
        scores.masked_fill_(~torch.ones(33, 90, dtype=torch.bool).tril(), -torch.inf)
    lse = scores.logsumexp(-1)
    lse[lse == -torch.inf] = 0
    y, found = graph_attention.attention(q, k, v, 0.3, causal=causal)
    torch.testing.assert_close(found.double(), lse, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(y.double(), (scores - lse[..., None]).exp() @ v.double(), rtol=1e-5, atol=1e-5)
graph_attention.LEAST = 1
for keys in (64, 128):
    of, other, level = Spec((1, 1, 64, 16), float32), Spec((1, 1, keys, 16), float32), Spec((1, 1, 64), float32)
    for name, ins in (("attention", (of, other, other, float)), ("attention_grad", (of, of, other, other, of, level, float))):
        kind = infer(row(name), ins, (False,))
        kernel = graph_attention.kernel(kind, lambda key, make: make())
        kernel.compile(torch.device("cpu"))
        operands = [torch.rand(s.shape) if type(s) is Spec else 0.5 for s in ins]
        for a, want in zip(kernel(*operands), getattr(training, name)(*operands, causal=False), strict=True):
            torch.testing.assert_close(a, want, rtol=1e-3, atol=1e-4)
print("right")
"""


@pytest.mark.usefixtures("triton_loops")
def test_attention_by_pieces_gives_pytorch_s_results() -> None:
    assert_prints_right(INTERPRETED)


def is_fused(*ins: Any) -> bool:
    from gt.worker.engine.torch.graph_attention import is_fused

    return is_fused(infer(row("attention"), ins, (False,)))


@pytest.mark.usefixtures("triton_loops")
def test_attention_of_other_sizes_dtypes_and_masks_is_left_to_the_library() -> None:
    q = Spec((8, 6, 256, 64), float32)
    assert is_fused(q, q, q, float)
    assert not is_fused(q, q, q, float, Spec((256, 256), bool_))
    assert not is_fused(*[Spec(q.shape, bfloat16)] * 3, float)
    assert not is_fused(*[Spec((8, 6, 256, 128), float32)] * 3, float), "wide heads"
    assert not is_fused(*[Spec((8, 6, 256, 60), float32)] * 3, float), "not a tile"
    assert not is_fused(*[Spec((2, 6, 64, 64), float32)] * 3, float), "few scores"
    assert not is_fused(q, *[Spec((8, 2, 256, 64), float32)] * 2, float), "fewer heads of keys"
    assert not is_fused(*[Spec((6, 256, 64), float32)] * 3, float)
