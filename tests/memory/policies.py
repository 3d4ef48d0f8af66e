"""A policy that an agent asks for an action."""

from __future__ import annotations

import numpy as np

import gt


def array(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype("f4")


class Policy:
    def __init__(self) -> None:
        gt.manual_seed(1)
        nn = gt.nn
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        self.act, self.value = nn.Linear(8, 3), nn.Linear(8, 1)

    def __call__(self, x: np.ndarray) -> tuple[gt.Tensor, gt.Tensor]:
        h = self.body(gt.tensor(x))
        return self.act(h), self.value(h).squeeze(-1)
