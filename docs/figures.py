"""The pictures of docs/sharding.md, drawn from times that two workers record: python docs/figures.py [name ...]"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gt  # noqa: E402
from gt.config import ShardConfig, SignalConfig  # noqa: E402
from gt.nn import SGD, Linear, ReLU, Sequential  # noqa: E402

PICTURES = Path(__file__).parent / "pictures"
ROWS, WIDE = 1024, 512
ROW, FIRST, SECOND = ShardConfig(axis=0), ShardConfig(workers=[0]), ShardConfig(workers=[1])
SIGNALS = {
    "rows": SignalConfig(ROW),
    "columns": SignalConfig(ShardConfig(axis=1)),
    "copies": SignalConfig(ShardConfig(replicated=True)),
    "update": SignalConfig(),  # a name in the picture, and nothing else
}
for name, shard in {"batch": ROW, "layer 1": None, "layer 2": None, "stage 1": FIRST, "stage 2": SECOND}.items():
    SIGNALS[name] = SignalConfig(shard, backward_signal=f"{name} backward")
    SIGNALS[f"{name} backward"] = SignalConfig(shard)


def layers(n: int = 3) -> Sequential:
    return Sequential(*[m for _ in range(n) for m in (Linear(WIDE, WIDE), ReLU())])


def batches(parameters: str) -> Callable[[], None]:
    """A step with its batch cut in two and parameters laid out as this signal says."""
    with gt.signal(parameters):
        model = layers()
    optimizer = SGD(model.parameters(), lr=0.01)
    with gt.signal("batch"):
        x = gt.randn(ROWS, WIDE)

    def step() -> None:
        with gt.signal("batch"):
            loss = (model(x) ** 2).mean()
        loss.backward()
        with gt.signal("update"):
            optimizer.step()
        optimizer.zero_grad()
        loss.item()

    return step


def tensor_parallel() -> Callable[[], None]:
    with gt.signal("copies"):
        x = gt.randn(ROWS, WIDE)
    with gt.signal("columns"):
        a = (gt.randn(WIDE, 4 * WIDE) / 30).requires_grad_()
    with gt.signal("rows"):
        b = (gt.randn(4 * WIDE, WIDE) / 30).requires_grad_()

    def step() -> None:
        with gt.signal("layer 1"):
            h = (x @ a).relu()
        with gt.signal("layer 2"):
            loss = ((h @ b) ** 2).mean()
        loss.backward()
        a.grad = b.grad = None
        loss.item()

    return step


def pipeline() -> Callable[[], None]:
    with gt.signal("stage 1"):
        first = layers()
        x = [gt.randn(ROWS // 4, WIDE) for _ in range(4)]
    with gt.signal("stage 2"):
        second = layers()
    optimizer = SGD([*first.parameters(), *second.parameters()], lr=0.01)

    def step() -> None:
        total = 0.0
        for micro in x:
            with gt.signal("stage 1"):
                h = first(micro)
            with gt.signal("stage 2"):
                total = (second(h) ** 2).mean() + total
        total.backward()
        with gt.signal("update"):
            optimizer.step()
        optimizer.zero_grad()
        total.item()

    return step


STRATEGIES: dict[str, tuple[str, Callable[[], Callable[[], None]]]] = {
    "data_parallel": ("Data parallel: one step, the batch cut in two", lambda: batches("copies")),
    "zero": ("ZeRO: one step, batch and parameters cut in two", lambda: batches("rows")),
    "tensor_parallel": ("Tensor parallel: one step, weights cut by columns and by rows", tensor_parallel),
    "pipeline": ("Pipeline: one step, four micro-batches through two stages", pipeline),
}


def draw(name: str, folder: Path) -> None:
    """The picture of a strategy: its third step, all groups made and all plans known, but each op still a span of its own."""
    for signal, config in SIGNALS.items():
        gt.register_config(signal, config)
    title, make = STRATEGIES[name]
    step = make()
    for _ in range(2):
        step()
    with gt.debug.record() as timeline:
        step()
    timeline.draw(folder / f"{name}.svg", title)
    print(f"{name}: {len(timeline.spans)} spans, both workers busy for {timeline.together(0, 1) * 1e3:.1f} ms")


def main(names: list[str]) -> None:
    for name in names or STRATEGIES:
        gt.gpu_workers(2)
        draw(name, PICTURES)
        gt.disconnect()  # the next begins anew, so that no step of it is known from this one


if __name__ == "__main__":
    main(sys.argv[1:])
