"""A model begun in PyTorch is trained on in GT and goes back: `python examples/finetune.py [--quick] [--out DIR]`.

PyTorch trains a network a little and saves it as safetensors. GT loads that file, freezes the first layer, trains the rest on
another task and saves; PyTorch loads the result and must give the same outputs as GT does."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from curve import draw

import gt

CLASSES = 4


def points(n: int, turns: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Arms of a spiral, wound so many turns: where each point lies, and on which arm."""
    rng = np.random.default_rng(seed)
    arm, along = rng.integers(0, CLASSES, n), rng.uniform(0.2, 1.0, n)
    angle = 2 * np.pi * (arm / CLASSES + turns * along)
    xy = along[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1) + rng.normal(0, 0.02, (n, 2))
    return xy.astype(np.float32), arm


def network(lib: Any) -> Any:
    """The same names in both libraries, so that their states fit one another."""
    nn = lib.nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(2, 64)
            self.norm = nn.BatchNorm1d(64)
            self.rest = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, CLASSES))

        def forward(self, x: Any) -> Any:
            return self.rest(nn.functional.relu(self.norm(self.first(x))))

    return Net()


def train(lib: Any, model: Any, turns: float, steps: int, what: str) -> list[float]:
    wanted = [p for p in model.parameters() if p.requires_grad]
    optimizer = lib.optim.AdamW(wanted, lr=5e-3)
    losses = []
    for step in (bar := gt.progress(range(steps), label=what)):
        x, y = (lib.tensor(a) for a in points(256, turns, step))
        loss = lib.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if step % 25 == 24:
            bar.note(f"loss {float(losses[-1]):.3f}")
    return lib.stack(losses).tolist()


def outputs(lib: Any, model: Any, x: np.ndarray) -> np.ndarray:
    model.eval()
    with lib.no_grad():
        return np.asarray(model(lib.tensor(x)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where the files go")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    steps = 150 if args.quick else 600
    begun, tuned = args.out / "begun.safetensors", args.out / "tuned.safetensors"
    torch.manual_seed(0)

    theirs = network(torch)
    first = train(torch, theirs, 0.5, steps, "PyTorch")
    safetensors.torch.save_file(theirs.state_dict(), begun)

    model = network(gt)
    model.load_state_dict(gt.load(begun))
    x, arms = points(1000, 0.8, 10**6)
    loaded = np.abs(outputs(gt, model, x) - outputs(torch, theirs, x)).max()
    model.train()
    model.first.requires_grad_(False)
    second = train(gt, model, 0.8, steps, "GT     ")
    gt.save(model.state_dict(), tuned)

    again = network(torch)
    again.load_state_dict(safetensors.torch.load_file(tuned))
    ours = outputs(gt, model, x)
    apart = np.abs(ours - outputs(torch, again, x)).max()
    right = (ours.argmax(1) == arms).mean()
    draw({"in PyTorch": first, "then in GT": second}, args.out / "finetune.png", "One model, two libraries")
    print(f"outputs differ by at most {loaded:.1e} after loading and {apart:.1e} after going back")
    print(f"{right:.1%} of the points right")
    assert loaded < 1e-4 and apart < 1e-4, "the outputs of one model are the same in both libraries"
    assert np.array_equal(model.first.weight.numpy(), theirs.first.weight.detach().numpy()), "a frozen layer stays"
    assert right > 0.9, "the model learnt the other spiral"


if __name__ == "__main__":
    main()
