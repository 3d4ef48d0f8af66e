"""The models that benchmarks train, written once: `lib` is `gt` or `torch`."""

from __future__ import annotations

from typing import Any

import torch

from gt.nn import Linear, Module, ModuleList


class MLP(Module):
    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = ModuleList([Linear(a, b) for a, b in zip(sizes, sizes[1:])])

    def forward(self, x: Any) -> Any:
        *inner, last = self.layers
        for layer in inner:
            x = layer(x).relu()
        return last(x)


def torch_mlp(sizes: tuple[int, ...]) -> torch.nn.Module:
    layers: list[torch.nn.Module] = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def gpt(lib: Any, layers: int = 6, width: int = 384, heads: int = 6, tokens: int = 256, vocabulary: int = 65,
        dropout: float = 0.0) -> Any:  # fmt: skip
    """A small GPT, pre-norm, with learnt positions."""
    nn, F = lib.nn, lib.nn.functional
    dropped = nn.Dropout if dropout else lambda p: lambda x: x

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

        def forward(self, x: Any) -> Any:
            b, t, _ = x.shape
            qkv = self.qkv(x).reshape(b, t, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)  # (b, heads, t, width / heads)
            return self.out(y.transpose(1, 2).reshape(b, t, width))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2, self.attention = nn.LayerNorm(width), nn.LayerNorm(width), Attention()
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.drop = dropped(dropout)

        def forward(self, x: Any) -> Any:
            x = x + self.drop(self.attention(self.norm1(x)))
            return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
            self.drop = dropped(dropout)

        def forward(self, ids: Any, places: Any) -> Any:
            x = self.drop(self.token(ids) + self.position(places))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return GPT()


def gpt_step(lib: Any, model: Any, optimizer: Any, ids: Any, targets: Any, places: Any) -> Any:
    """One training step; the loss."""
    logits = model(ids, places)  # (b, t, vocabulary)
    loss = lib.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
