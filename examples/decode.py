"""A small Llama learns the text of this repository, then a PersistentKernel writes: `python examples/decode.py [--quick]`.

It is trained with GT's modules, whose parameters have Hugging Face's names, so that `load_model` takes its state dict. Several
beginnings are continued in one batch, and tokens a second are shown while they grow. `--backend` is PersistentKernel's."""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from gpt import Learner, text

import gt
from gt import nn

BEGINNINGS = ["def ", "class ", "import ", "The "]


class Size:
    def __init__(self, quick: bool) -> None:
        self.layers, self.width, self.inner, self.heads, self.kv_heads = (2, 48, 96, 4, 2) if quick else (4, 128, 344, 8, 4)
        self.tokens, self.batch, self.steps, self.letters = (48, 8, 30, 120) if quick else (128, 16, 1000, 600)


class Attention(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = size.heads, size.kv_heads, size.width // size.heads
        kv = self.kv_heads * self.head_dim
        self.q_proj, self.o_proj = (nn.Linear(size.width, size.width, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (nn.Linear(size.width, kv, bias=False) for _ in range(2))

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        b, t, width = x.shape

        def split(y: Any, heads: int) -> Any:
            return y.reshape(b, t, heads, self.head_dim).transpose(1, 2)  # (b, heads, t, head_dim)

        def turn(y: Any) -> Any:
            half = self.head_dim // 2
            return y * cos + gt.cat([-y[..., half:], y[..., :half]], dim=-1) * sin

        q, k, v = turn(split(self.q_proj(x), self.heads)), *(split(p(x), self.kv_heads) for p in (self.k_proj, self.v_proj))
        group = self.heads // self.kv_heads
        k, v = (y.repeat_interleave(group, dim=1) for y in (turn(k), v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, width))


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = (nn.RMSNorm(size.width, eps=1e-6) for _ in range(2))
        self.self_attn, self.mlp = Attention(size), nn.Module()
        self.mlp.gate_proj, self.mlp.up_proj = (nn.Linear(size.width, size.inner, bias=False) for _ in range(2))
        self.mlp.down_proj = nn.Linear(size.inner, size.width, bias=False)

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        y = self.post_attention_layernorm(x)
        return x + self.mlp.down_proj(nn.functional.silu(self.mlp.gate_proj(y)) * self.mlp.up_proj(y))


class Llama(nn.Module):
    def __init__(self, size: Size, letters: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(letters, size.width)
        self.layers = nn.ModuleList([Block(size) for _ in range(size.layers)])
        self.norm = nn.RMSNorm(size.width, eps=1e-6)
        head_dim = size.width // size.heads
        angles = np.arange(size.tokens)[:, None] * 10000.0 ** (-np.arange(0, head_dim, 2) / head_dim)
        self.tables = [gt.tensor(np.concatenate([f(angles)] * 2, axis=1).astype(np.float32)) for f in (np.cos, np.sin)]
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.05)

    def forward(self, ids: Any) -> Any:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, *(table[: ids.shape[1]] for table in self.tables))
        return self.norm(x) @ self.embed_tokens.weight.T  # the head is tied


class LlamaLearner(Learner):
    """Learns as the GPT does."""

    def __init__(self, size: Size, letters: int) -> None:
        self.lib, self.model = gt, Llama(size, letters)
        self.optimizer = gt.optim.AdamW(self.model.parameters(), lr=3e-3, weight_decay=0.1)
        self.schedule = gt.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0)


def learn(size: Size, ids: np.ndarray, letters: int) -> tuple[Llama, float, float]:
    gt.manual_seed(1)
    learner, rng, losses = LlamaLearner(size, letters), np.random.default_rng(0), []
    for step in (bar := gt.progress(range(size.steps), label="learning")):
        starts = rng.integers(0, len(ids) - size.tokens - 1, size.batch)
        loss = learner.step(np.stack([ids[s : s + size.tokens + 1] for s in starts]))
        if step % 10 == 9 or step == 0:
            losses.append(loss.item())
            bar.note(f"loss {losses[-1]:.3f}")
    return learner.model, losses[0], losses[-1]


def config_of(size: Size, letters: int) -> dict[str, Any]:
    return dict(
        model_type="llama", vocab_size=letters, hidden_size=size.width, intermediate_size=size.inner,
        num_hidden_layers=size.layers, num_attention_heads=size.heads, num_key_value_heads=size.kv_heads,
        rms_norm_eps=1e-6, rope_theta=10000.0, tie_word_embeddings=True, max_position_embeddings=4096,
    )  # fmt: skip


def write(kernel: Any, prompts: list[list[int]], letters: int) -> tuple[list[list[int]], float]:
    """Continue all prompts; tokens a second while that goes on, and of the whole."""
    ids = [kernel.add_request(prompt, max_new_tokens=letters) for prompt in prompts]
    kernel()  # the prompts
    began, made, rounds = time.perf_counter(), 0, (letters - 1) // 10
    for _ in (bar := gt.progress(range(rounds), label="writing ")):
        made += sum(map(len, kernel(steps=10).values()))
        bar.note(f"{made / (time.perf_counter() - began):.0f} tokens/s")
    return [kernel.tokens(id) for id in ids], made / (time.perf_counter() - began)


def agree(model: Llama, kernel: Any, prompt: list[int], size: Size) -> None:
    """The kernel's greedy tokens are those of the model that was trained."""
    id, ids = kernel.add_request(prompt, max_new_tokens=10, temperature=0.0), list(prompt)
    kernel(steps=10)
    with gt.no_grad():
        for _ in range(10):
            ids.append(int(model(gt.tensor([ids]))[0, -1].argmax().item()))
    assert kernel.tokens(id) == ids, f"the kernel chose {kernel.tokens(id)}, the model {ids}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small model, and a few steps")
    parser.add_argument("--backend", help="openmp, cuda, ...; by default the first of openmp and cpu that can run here")
    args = parser.parse_args()
    size, letters = Size(args.quick), text()
    alphabet = sorted(set(letters))
    number = {c: i for i, c in enumerate(alphabet)}
    model, first, last = learn(size, np.array([number[c] for c in letters[:400_000]]), len(alphabet))
    print(f"the loss went from {first:.2f} to {last:.2f}")
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    choice = {"backend": args.backend} if args.backend else {"backend": "openmp", "fallback_backends": ["cpu"]}
    kernel = gt.PersistentKernel(**choice, max_seq_length=1024, temperature=0.7, top_p=0.95, seed=1)
    kernel.load_model(config_of(size, len(alphabet)), state).compile()
    agree(model, kernel, [number[c] for c in BEGINNINGS[0]], size)
    written, rate = write(kernel, [[number[c] for c in beginning] for beginning in BEGINNINGS], size.letters)
    for tokens in written:
        print("-" * 60 + "\n" + "".join(alphabet[t] for t in tokens))
    print("-" * 60 + f"\n{len(written)} texts at once, {rate:.0f} tokens/s on backend {kernel.backend}")


if __name__ == "__main__":
    main()
