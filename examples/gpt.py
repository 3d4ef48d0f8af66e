"""A GPT learns the text of this repository, letter by letter: `python examples/gpt.py [--quick] [--out DIR]`.

The model is written once, for a library `lib`: with `gt` it is GT's, with `torch` PyTorch's. Where PyTorch is installed both
learn side by side from the same weights and the same batches, and the losses must agree; then GT's goes on and writes."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
from curve import draw

import gt

ROOT = Path(__file__).resolve().parents[1]
TOGETHER = 50  # steps in which GT and PyTorch are compared
AGREE = 1e-3


class Size:
    """How large the model is, and how long it learns."""

    def __init__(self, quick: bool) -> None:
        self.layers, self.width, self.heads, self.tokens = (2, 64, 4, 64) if quick else (4, 128, 4, 128)
        self.batch, self.steps, self.letters = (8, TOGETHER, 80) if quick else (16, 1000, 400)


def text() -> str:
    """GT's own pages and sources."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "gt").rglob("*.py"))]
    return "\n\n".join(f.read_text() for f in files if f.exists())


def model_of(lib: Any, size: Size, letters: int) -> Any:
    nn, F = lib.nn, lib.nn.functional
    width, heads = size.width, size.heads

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            b, t, _ = x.shape
            qkv = self.qkv(self.norm1(x)).reshape(b, t, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)  # (b, heads, t, width / heads)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, width))
            return x + self.mlp(self.norm2(x))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(size.tokens, width)
            self.blocks = nn.ModuleList([Block() for _ in range(size.layers)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)
            for p in self.parameters():
                if p.ndim == 2:
                    nn.init.normal_(p, std=0.02)

        def forward(self, ids: Any) -> Any:
            x = self.letter(ids) + self.place(lib.arange(ids.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return GPT()


class Learner:
    """A model, its optimizer and its schedule, in one library."""

    def __init__(self, lib: Any, size: Size, letters: int) -> None:
        self.lib, self.model = lib, model_of(lib, size, letters)
        self.optimizer = lib.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.1)
        schedules = lib.optim.lr_scheduler
        self.schedule = schedules.LambdaLR(self.optimizer, lambda step: rate(step, size.steps))

    def step(self, ids: np.ndarray) -> Any:
        """Learn from a batch; the loss, unread."""
        x, y = self.lib.tensor(ids[:, :-1].copy()), self.lib.tensor(ids[:, 1:].copy())
        logits = self.model(x)
        loss = self.lib.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))
        self.optimizer.zero_grad()
        loss.backward()
        self.lib.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()


def rate(step: int, steps: int) -> float:
    """Up over the first tenth, then down along a cosine."""
    warm = max(steps // 10, 1)
    return (step + 1) / warm if step < warm else 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / max(steps - warm, 1)))


def rival(size: Size, own: Learner, letters: int) -> Learner | None:
    """The same in PyTorch, from the same weights; None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    other = Learner(torch, size, letters)
    other.model.load_state_dict({k: v.torch() for k, v in own.model.state_dict().items()})
    return other


def learn(size: Size, ids: np.ndarray, letters: int) -> tuple[Any, dict[str, list[float]]]:
    """GT's model, and the losses of GT and, as long as they are compared, of PyTorch."""
    gt.manual_seed(1)
    own = Learner(gt, size, letters)
    other = rival(size, own, letters)
    rng = np.random.default_rng(0)
    unread, theirs = [], []
    for step in (bar := gt.progress(range(size.steps), label="learning")):
        starts = rng.integers(0, len(ids) - size.tokens - 1, size.batch)
        batch = np.stack([ids[s : s + size.tokens + 1] for s in starts])
        unread.append(own.step(batch))
        if other is not None and step < TOGETHER:
            theirs.append(other.step(batch).item())
        if step % 10 == 9:
            bar.note(f"loss {unread[-1].item():.3f}")
    losses = {"GT": gt.stack(unread).tolist()}
    return own.model, {**losses, "PyTorch": theirs} if theirs else losses


def write(model: Any, size: Size, alphabet: list[str], start: str, n: int) -> str:
    """Letters, each drawn by the probabilities that the model gives it."""
    ids = [alphabet.index(c) for c in start]
    model.eval()
    with gt.no_grad():
        for _ in gt.progress(range(n), label="writing "):
            seen = ids[-size.tokens :]
            filled = seen + [0] * (size.tokens - len(seen))  # one shape for all: no letter sees those behind it
            shares = (model(gt.tensor([filled]))[0, len(seen) - 1] / 0.8).softmax(dim=-1)
            ids.append(gt.multinomial(shares, 1).item())
    return "".join(alphabet[i] for i in ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small model, and only the steps that are compared")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where the picture goes")
    args = parser.parse_args()
    size, letters = Size(args.quick), text()
    alphabet = sorted(set(letters))
    number = {c: i for i, c in enumerate(alphabet)}
    ids = np.array([number[c] for c in letters[:400_000]])
    model, losses = learn(size, ids, len(alphabet))
    draw(losses, args.out / "gpt.png", "A GPT on the text of this repository")
    if "PyTorch" in losses:
        apart = max(abs(a - b) for a, b in zip(losses["GT"], losses["PyTorch"]))
        print(f"over {len(losses['PyTorch'])} steps the losses of GT and PyTorch differ by at most {apart:.1e}")
        assert apart < AGREE, f"the losses are apart by {apart}"
    print(f"the loss went from {losses['GT'][0]:.2f} to {losses['GT'][-1]:.2f}; the model writes:\n")
    print(write(model, size, alphabet, "def ", size.letters))


if __name__ == "__main__":
    main()
