"""Schedules in which the rate falls, or warms up, by a formula."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from gt.optim.lr_scheduler.schedule import LRScheduler
from gt.optim.optimizer import Optimizer


class StepLR(LRScheduler):
    """Multiplies the rate by `gamma` every `step_size` steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def first(self, lr: float, base: float) -> float:
        return self.change(lr, base, self.last_epoch)

    def change(self, lr: float, base: float, epoch: int) -> float:
        return lr * self.gamma if epoch and epoch % self.step_size == 0 else lr

    def at(self, base: float, epoch: int) -> float:
        return base * self.gamma ** (epoch // self.step_size)


class MultiStepLR(LRScheduler):
    """Multiplies the rate by `gamma` at each milestone."""

    def __init__(self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def first(self, lr: float, base: float) -> float:
        return self.change(lr, base, self.last_epoch)

    def change(self, lr: float, base: float, epoch: int) -> float:
        return lr * self.gamma ** self.milestones[epoch]

    def at(self, base: float, epoch: int) -> float:
        return base * self.gamma ** bisect_right(sorted(self.milestones.elements()), epoch)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "milestones": dict(self.milestones)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "milestones": Counter(state_dict["milestones"])})


class ConstantLR(LRScheduler):
    """Multiplies the rate by `factor` for the first `total_iters` steps."""

    def __init__(self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1) -> None:
        if not 0 <= factor <= 1:
            raise ValueError(f"expected a factor from 0 to 1, got {factor}")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def first(self, lr: float, base: float) -> float:
        return lr * self.factor if self.last_epoch == 0 else lr

    def change(self, lr: float, base: float, epoch: int) -> float:
        return lr * (1.0 / self.factor) if epoch == self.total_iters else lr

    def at(self, base: float, epoch: int) -> float:
        return base * (self.factor if epoch < self.total_iters else 1.0)


class LinearLR(LRScheduler):
    """A warm-up: linearly from `start_factor` to `end_factor` times the rate over `total_iters` steps."""

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1.0 / 3, end_factor: float = 1.0, total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        if not 0 < start_factor <= 1 or not 0 <= end_factor <= 1:
            raise ValueError(f"factors are from 0 to 1, the first above 0: not {start_factor} and {end_factor}")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def first(self, lr: float, base: float) -> float:
        return lr * self.start_factor if self.last_epoch == 0 else lr

    def change(self, lr: float, base: float, epoch: int) -> float:
        if epoch > self.total_iters:
            return lr
        rise = self.end_factor - self.start_factor
        return lr * (1.0 + rise / (self.total_iters * self.start_factor + (epoch - 1) * rise))

    def at(self, base: float, epoch: int) -> float:
        share = min(self.total_iters, epoch) / self.total_iters
        return base * (self.start_factor + (self.end_factor - self.start_factor) * share)


class ExponentialLR(LRScheduler):
    """Multiplies the rate by `gamma` each step."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def change(self, lr: float, base: float, epoch: int) -> float:
        return lr * self.gamma

    def at(self, base: float, epoch: int) -> float:
        return base * self.gamma**epoch


class CosineAnnealingLR(LRScheduler):
    """Down to `eta_min` along half a cosine, over `T_max` steps, and up again."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def change(self, lr: float, base: float, epoch: int) -> float:
        if (epoch - 1 - self.T_max) % (2 * self.T_max) == 0:
            return lr + (base - self.eta_min) * (1 - math.cos(math.pi / self.T_max)) / 2
        here, before = (1 + math.cos(math.pi * e / self.T_max) for e in (epoch, epoch - 1))
        return here / before * (lr - self.eta_min) + self.eta_min

    def at(self, base: float, epoch: int) -> float:
        return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * epoch / self.T_max)) / 2


class _PerGroup(LRScheduler):
    """A function for all groups, or one for each."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Any, last_epoch: int = -1) -> None:
        n = len(optimizer.param_groups)
        self.lr_lambdas: list[Callable[[int], float]] = [lr_lambda] * n if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != n:
            raise ValueError(f"expected {n} functions, one for each group, got {len(self.lr_lambdas)}")
        super().__init__(optimizer, last_epoch)


class LambdaLR(_PerGroup):
    """The initial rate times a function of the step."""

    def _begin(self) -> None:
        self.last_epoch += 1
        self._set([f(self.last_epoch) * base for f, base in zip(self.lr_lambdas, self.base_lrs)])

    def _next(self, i: int, lr: float, base: float) -> float:
        return base * self.lr_lambdas[i](self.last_epoch)


class MultiplicativeLR(_PerGroup):
    """The current rate times a function of the step."""

    def _next(self, i: int, lr: float, base: float) -> float:
        return lr * self.lr_lambdas[i](self.last_epoch)


class PolynomialLR(LRScheduler):
    """Down to zero over `total_iters` steps, by a power of the remaining share of steps."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def change(self, lr: float, base: float, epoch: int) -> float:
        if epoch == 0 or epoch > self.total_iters:
            return lr
        left, before = (1.0 - e / self.total_iters for e in (epoch, epoch - 1))
        return lr * (left / before) ** self.power

    def at(self, base: float, epoch: int) -> float:
        return base * (1.0 - min(self.total_iters, epoch) / self.total_iters) ** self.power
