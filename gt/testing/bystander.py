"""A client that computes while hostile ones send messages, and compares all that it reads with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import numpy as np

import gt
from gt.client.scope import HERE, Scope
from gt.testing.cluster import Cluster

START = np.arange(12.0, dtype="float32").reshape(3, 4)


class Bystander:
    """`x` lies on one worker, `cut` on all of them; `kept` are results of earlier programs with their values."""

    def __init__(self, pool: Cluster, random: Random) -> None:
        self.random, self.scope = random, Scope(pool.session())
        self.kept: list[tuple[gt.Tensor, np.ndarray]] = []
        self.reads = 0
        with self.here():
            self.x = gt.tensor(START)
            gt.register_config("fuzz", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
            with gt.signal.context("fuzz"):
                self.cut = self.x * 1.0

    @contextmanager
    def here(self) -> Iterator[None]:
        before, HERE.scope = HERE.scope, self.scope
        try:
            yield
        finally:
            HERE.scope = before

    def compute(self) -> None:
        """Send a collective whose result nobody reads, behind others and before others."""
        with self.here():
            (self.cut * self.cut).sum(0).max()
            self.scope.session.flush(wait=False)

    def read(self) -> None:
        """Run one of the programs, chosen at random, and compare its result, and an earlier one."""
        with self.here():
            made, expected = self.random.choice(PROGRAMS)(self)
            self.reads += 1
            np.testing.assert_allclose(made.numpy(), expected, rtol=1e-5)
            self.kept.append((made, expected))
            before, value = self.kept.pop(0) if len(self.kept) > 8 else self.kept[0]
            np.testing.assert_allclose(before.numpy(), value, rtol=1e-5)

    def check(self) -> None:
        """Its first tensors are as they were."""
        with self.here():
            np.testing.assert_array_equal((self.x + self.x).numpy(), START * 2)
            np.testing.assert_allclose((self.cut @ self.cut.T).sum(0).numpy(), (START @ START.T).sum(0), rtol=1e-6)
            assert self.x.sum().item() == 66.0

    # Programs: each returns a tensor and its value

    def uploaded(self) -> tuple[gt.Tensor, np.ndarray]:
        value = np.array([self.random.random() for _ in range(6)], dtype="float32").reshape(2, 3)
        return gt.tensor(value) * 2.0, value * 2.0

    def product(self) -> tuple[gt.Tensor, np.ndarray]:
        scale = self.random.randrange(1, 100)
        return (self.cut * scale) @ self.x.T, START * scale @ START.T

    def reduced(self) -> tuple[gt.Tensor, np.ndarray]:
        add = float(self.random.randrange(100))
        return (self.cut + add).sum(0), (START + add).sum(0)

    def repeated(self) -> tuple[gt.Tensor, np.ndarray]:
        """A loop, which becomes a trace."""
        y, value = self.cut, START
        for _ in range(self.random.randrange(1, 12)):
            y, value = y * 0.5 + 1.0, value * np.float32(0.5) + 1.0
        return y, value

    def written(self) -> tuple[gt.Tensor, np.ndarray]:
        """Writes through a view."""
        y, value = self.x.clone(), START.copy()
        row, number = self.random.randrange(3), float(self.random.randrange(100))
        y[row] += number
        value[row] += number
        return y, value


PROGRAMS: tuple[Callable[[Bystander], tuple[gt.Tensor, np.ndarray]], ...] = (
    Bystander.uploaded, Bystander.product, Bystander.reduced, Bystander.repeated, Bystander.written,
)  # fmt: skip
