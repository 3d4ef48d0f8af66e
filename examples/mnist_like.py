"""A small CNN learns to read digits: `python examples/mnist_like.py [--quick] [--out DIR]`.

The digits are drawn here, so nothing is downloaded: each is a 5 by 7 glyph, moved, turned, slanted, stretched and covered with
noise. The test digits are drawn from other random numbers than those learnt from."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from curve import draw

import gt
from gt import nn

GLYPHS = """
01110 00100 01110 11111 00010 11111 00110 11111 01110 01110
10001 01100 10001 00010 00110 10000 01000 00001 10001 10001
10011 00100 00001 00100 01010 11110 10000 00010 10001 10001
10101 00100 00010 00010 10010 00001 11110 00100 01110 01111
11001 00100 00100 00001 11111 00001 10001 01000 10001 00001
10001 00100 01000 10001 00010 10001 10001 01000 10001 00010
01110 01110 11111 01110 00010 01110 01110 01000 01110 01100
"""
SIZE = 20


def glyphs() -> np.ndarray:
    rows = [line.split() for line in GLYPHS.strip().splitlines()]
    return np.array([[[float(c) for c in rows[y][d]] for y in range(7)] for d in range(10)])


def drawn(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """n pictures of (1, SIZE, SIZE) and which digits they are."""
    rng, shapes = np.random.default_rng(seed), glyphs()
    labels = rng.integers(0, 10, n)
    y, x = np.mgrid[0:SIZE, 0:SIZE] - (SIZE - 1) / 2
    angle, scale = rng.uniform(-0.25, 0.25, n), rng.uniform(1.7, 2.6, (2, n))
    shift, slant = rng.uniform(-2.5, 2.5, (2, n)), rng.uniform(-0.25, 0.25, n)
    pictures = np.empty((n, 1, SIZE, SIZE), np.float32)
    for i, digit in enumerate(labels):
        c, s = np.cos(angle[i]), np.sin(angle[i])
        u = ((x - shift[0, i]) * c + (y - shift[1, i]) * s) / scale[0, i]
        v = (-(x - shift[0, i]) * s + (y - shift[1, i]) * c) / scale[1, i]
        pictures[i, 0] = sampled(shapes[digit], u + slant[i] * v + 2, v + 3)
    pictures += rng.normal(0, 0.25, pictures.shape)
    return (pictures - 0.3) / 0.5, labels


def sampled(glyph: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The glyph at places between its points; outside it is empty."""
    padded = np.pad(glyph, 2)
    u, v = np.clip(u + 2, 0, padded.shape[1] - 1.001), np.clip(v + 2, 0, padded.shape[0] - 1.001)
    i, j = v.astype(int), u.astype(int)
    a, b = v - i, u - j
    top = padded[i, j] * (1 - b) + padded[i, j + 1] * b
    return top * (1 - a) + (padded[i + 1, j] * (1 - b) + padded[i + 1, j + 1] * b) * a


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * (SIZE // 4) ** 2, 10),
    )  # fmt: skip


def accuracy(model: nn.Module, pictures: np.ndarray, labels: np.ndarray) -> float:
    model.eval()
    with gt.no_grad():
        right = [
            (model(x).argmax(dim=1) == y).sum() for x, y in gt.data.DataLoader(gt.data.TensorDataset(pictures, labels), 500)
        ]
    model.train()
    return gt.stack(right).sum().item() / len(labels)


def train(quick: bool) -> tuple[list[float], float]:
    """The losses, and the share of test digits read rightly."""
    gt.manual_seed(0)
    count, epochs = (4000, 3) if quick else (10000, 3)
    model = network()
    loader = gt.data.DataLoader(gt.data.TensorDataset(*drawn(count, 1)), 100, shuffle=True, num_workers=1)
    optimizer = gt.optim.AdamW(model.parameters(), lr=3e-3)
    total = epochs * len(loader)
    schedule = gt.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=total)
    losses: list[gt.Tensor] = []
    batches = (batch for _ in range(epochs) for batch in loader)
    for x, y in (bar := gt.progress(batches, total, "learning")):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        if len(losses) % 10 == 0:  # a read waits for the workers, so not every step
            bar.note(f"loss {losses[-1].item():.3f}")
    return gt.stack(losses).tolist(), accuracy(model, *drawn(1000 if quick else 4000, 2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer digits")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where the picture goes")
    args = parser.parse_args()
    losses, right = train(args.quick)
    draw({"training": losses}, args.out / "mnist_like.png", "Digits")
    print(f"{right:.1%} of the test digits were read rightly")
    assert right > 0.95, "a network that learnt reads more than 95%"


if __name__ == "__main__":
    main()
