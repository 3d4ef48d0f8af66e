"""Attention, and the layers made of it, against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gt
from tests.nn.compare import ENGINES, close, compare_modules, numbers, random_state, to_gt, to_torch

F, T = gt.nn.functional, torch.nn.functional
Q, K, V = numbers(2, 4, 5, 8), numbers(2, 4, 6, 8, seed=1), numbers(2, 4, 6, 8, seed=2)
FEW = numbers(2, 2, 5, 8, seed=4)
SEEN = numbers(2, 1, 5, 6) > -0.5
SEEN[..., 0] = True


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "inputs, keywords",
    [
        ((Q, K, V), {}),
        ((Q, K, V), {"scale": 0.3}),
        ((Q, K, V), {"is_causal": True}),
        ((Q, K, V), {"attn_mask": SEEN}),
        ((Q, K, V), {"attn_mask": numbers(5, 6, seed=8)}),
        ((Q, FEW, FEW * 2), {"enable_gqa": True}),
        ((Q, FEW, FEW * 2), {"enable_gqa": True, "is_causal": True}),
        ((Q[:, :1], K[:, :1], V[:, :1]), {}),
        ((Q[0], K[0], V[0]), {"is_causal": True}),
        ((Q, K[:1, :1], V[:1, :1]), {}),
    ],
)
def test_attention_is_pytorchs(engine: str, inputs: tuple, keywords: dict) -> None:
    with gt.testing.cluster(1, engine):
        a, b = [to_gt(x, True) for x in inputs], [to_torch(x, True) for x in inputs]
        y = F.scaled_dot_product_attention(*a, **{k: to_gt(v) for k, v in keywords.items()})
        z = T.scaled_dot_product_attention(*b, **{k: to_torch(v) for k, v in keywords.items()})
        close(y, z, "output")
        seed = numbers(*z.shape, seed=9)
        (y * to_gt(seed)).sum().backward()
        (z * to_torch(seed)).sum().backward()
        for i, (p, q) in enumerate(zip(a, b)):
            close(p.grad, q.grad, f"gradient of input {i}", 1e-4, 1e-5)


def test_a_mask_of_attention_gets_its_gradient() -> None:
    with gt.testing.cluster(1, "numpy"):
        bias = numbers(5, 6, seed=8)
        m, n = to_gt(bias, True), to_torch(bias, True)
        F.scaled_dot_product_attention(*map(to_gt, (Q, K, V)), attn_mask=m).sum().backward()
        T.scaled_dot_product_attention(*map(to_torch, (Q, K, V)), attn_mask=n).sum().backward()
        close(m.grad, n.grad, "mask", 1e-4, 1e-5)


def test_dropped_attention_keeps_its_mean() -> None:
    with gt.testing.cluster(1, "numpy"):
        gt.manual_seed(1)
        q, one = gt.zeros(1, 1, 64, 4), gt.ones(1, 1, 64, 4)
        y = F.scaled_dot_product_attention(q, q, one, dropout_p=0.5)
        assert abs(y.mean().item() - 1) < 0.05 and y.std().item() > 0.05


S, MEM = numbers(2, 5, 8), numbers(2, 3, 8, seed=6)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "keywords, call, inputs",
    [
        ({}, {}, (S, S, S)),
        ({"batch_first": True}, {}, (S, MEM, MEM)),
        ({"batch_first": True, "bias": False}, {"need_weights": False}, (S, S, S)),
        ({"batch_first": True}, {"average_attn_weights": False}, (S, S, S)),
        ({"kdim": 4, "vdim": 3}, {}, (numbers(5, 2, 8), numbers(6, 2, 4), numbers(6, 2, 3))),
        ({"add_bias_kv": True, "add_zero_attn": True}, {"attn_mask": numbers(5, 5) > 0.8}, (numbers(5, 2, 8),) * 3),
        ({"batch_first": True}, {"key_padding_mask": np.array([[False] * 4 + [True], [False] * 5])}, (S, S, S)),
        (
            {"batch_first": True},
            {
                "key_padding_mask": np.array([[False] * 4 + [True], [False] * 5]),
                "need_weights": False,
                "attn_mask": np.triu(np.ones((5, 5), bool), 1),
            },
            (S, S, S),
        ),  # fmt: skip
        (
            {"batch_first": True},
            {"need_weights": False, "is_causal": True, "attn_mask": np.triu(np.ones((5, 5), bool), 1)},
            (S, S, S),
        ),  # fmt: skip
        ({}, {}, (S[0], S[0], S[0])),
    ],
)
def test_multihead_attention_is_pytorchs(engine: str, keywords: dict, call: dict, inputs: tuple) -> None:
    with gt.testing.cluster(1, engine):
        own, theirs = (n.MultiheadAttention(8, 2, **keywords) for n in (gt.nn, torch.nn))
        compare_modules(_With(own, call, to_gt), _With(theirs, call, to_torch), inputs, 1e-4, 1e-5)


class _With:
    """A module called with some keywords more."""

    def __init__(self, module, keywords: dict, change) -> None:
        self.module, self.keywords, self.change = module, keywords, change

    def __call__(self, *inputs):
        return self.module(*inputs, **{k: self.change(v) for k, v in self.keywords.items()})

    def __getattr__(self, name: str):
        return getattr(self.module, name)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "keywords", [{}, {"norm_first": True, "activation": "gelu", "batch_first": True}, {"bias": False, "batch_first": True}]
)
def test_an_encoder_layer_is_pytorchs(engine: str, keywords: dict) -> None:
    with gt.testing.cluster(1, engine):
        own, theirs = (n.TransformerEncoderLayer(8, 2, 16, dropout=0.0, **keywords) for n in (gt.nn, torch.nn))
        compare_modules(own, theirs, (S,), 1e-4, 1e-5)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_an_encoder_is_pytorchs() -> None:
    with gt.testing.cluster(1, "pytorch"):
        own, theirs = (
            n.TransformerEncoder(n.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2, n.LayerNorm(8))
            for n in (gt.nn, torch.nn)
        )
        mask = np.triu(np.ones((5, 5), bool), 1)
        compare_modules(_With(own, {"mask": mask}, to_gt), _With(theirs, {"mask": mask}, to_torch), (S,), 1e-4, 1e-5)
        copies = [id(p) for p in own.parameters()]
        assert len(copies) == len(set(copies)) == len(list(theirs.parameters()))


def test_attention_refuses_wrong_shapes() -> None:
    with gt.testing.cluster():
        q, few = gt.ones(1, 4, 2, 8), gt.ones(1, 2, 2, 8)
        with pytest.raises(ValueError, match="enable_gqa"):
            F.scaled_dot_product_attention(q, few, few)
        with pytest.raises(AssertionError, match="heads"):  # PyTorch's type
            gt.nn.MultiheadAttention(8, 3)


def test_weights_of_attention_move_to_pytorch_and_back() -> None:
    with gt.testing.cluster(1, "numpy"):
        theirs = torch.nn.MultiheadAttention(8, 2)
        random_state(theirs)
        own = gt.nn.MultiheadAttention(8, 2)
        own.load_state_dict(theirs.state_dict())
        again = torch.nn.MultiheadAttention(8, 2)
        again.load_state_dict({k: v.torch() for k, v in own.state_dict().items()})
        for name, value in theirs.state_dict().items():
            assert torch.equal(again.state_dict()[name], value)
