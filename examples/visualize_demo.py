"""A timeline of two workers: a script is captured, and drawn as a picture and as a page to look around in."""

from __future__ import annotations

import tempfile
from pathlib import Path

import gt
from gt.watch.capture import CaptureFile, read
from gt.watch.chart import chart
from gt.watch.visualize import draw, page


def train(steps: int, rows: int = 512, width: int = 256) -> None:
    """Steps on a batch that is cut over both workers, so that they compute and then reduce together."""
    gt.register_config("batch", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
    model = gt.nn.Sequential(gt.nn.Linear(width, width), gt.nn.ReLU(), gt.nn.Linear(width, 1))
    optimizer = gt.optim.SGD(model.parameters(), lr=0.01)
    with gt.signal("batch"):
        x = gt.randn(rows, width)
    for _ in range(steps):
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"loss {loss.item():.4f}")


def main(folder: Path) -> None:
    gt.gpu_workers(2)
    train(2)
    path = folder / "run.capture"
    with CaptureFile(path) as file, gt.debug.watch(file.write):
        train(6)
    gt.disconnect()
    drawn = chart(read(path))
    draw(drawn, folder / "timeline.png")
    (folder / "timeline.html").write_text(page(drawn, "Two workers"))
    print(f"{len(drawn.bars)} bars and {len(drawn.arrows)} arrows on {', '.join(drawn.lanes)}")
    print(f"{folder / 'timeline.png'}, {folder / 'timeline.html'}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
