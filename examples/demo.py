"""A tour of GT: a product, a gradient, a small training run, and where it all ran. `make demo` runs it."""

from __future__ import annotations

import time

from rich.console import Console

import gt
from gt.nn import SGD, Linear, Module

console = Console()


class Classifier(Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = Linear(2, 64)
        self.fc2 = Linear(64, 2)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        return self.fc2(self.fc1(x).tanh())


def product() -> None:
    console.rule("A product")
    console.print("The first op starts a dispatcher and a worker; this script goes on without waiting.")
    start = time.perf_counter()
    a = gt.randn(1000, 1000)
    b = gt.randn(1000, 1000)
    c = a @ b
    written = time.perf_counter() - start
    print(c[:4, :4])
    read = time.perf_counter() - start
    console.print(f"written after {written * 1e3:.0f} ms (start-up included), read after {read * 1e3:.0f} ms")


def gradient() -> None:
    console.rule("A gradient")
    x = gt.tensor([1.0, 2.0, 3.0], requires_grad=True)
    loss = (x * x).sum()
    loss.backward()
    print("loss", loss.item(), " gradient", x.grad)


def training(steps: int = 400) -> float:
    """Tell the inside of a ring from its outside; gives the share that the model tells right."""
    console.rule("A training run")
    gt.manual_seed(0)
    points = gt.rand(512, 2) * 4 - 2
    inside = ((points * points).sum(dim=1) < 1.6).float()  # (512,)
    targets = gt.stack([inside, 1 - inside], dim=1)  # (512, 2)
    model = Classifier()
    optimizer = SGD(model.parameters(), lr=0.2, momentum=0.9)
    for step in (bar := gt.progress(range(1, steps + 1), label="training")):
        loss = ((model(points) - targets) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            bar.note(f"loss {loss.item():.4f}")
    right = (model(points).argmax(dim=1) == targets.argmax(dim=1)).float().mean().item()
    console.print(f"told right: {right:.1%}")
    return right


def where() -> None:
    console.rule("Where it ran")
    gt.debug.print_worker_stats()


def main() -> None:
    product()
    gradient()
    training()
    where()


if __name__ == "__main__":
    main()
