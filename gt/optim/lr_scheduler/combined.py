"""Schedules made of schedules, and ReduceLROnPlateau, which follows a measured value."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from gt.optim.lr_scheduler.schedule import LRScheduler, each_group
from gt.optim.optimizer import Optimizer


class _Schedulers(LRScheduler):
    """Schedules whose states are saved together."""

    _schedulers: Sequence[LRScheduler]

    def state_dict(self) -> dict[str, Any]:
        own = {k: v for k, v in self.__dict__.items() if k not in ("optimizer", "_schedulers")}
        return {**own, "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.__dict__.update({k: v for k, v in state_dict.items() if k != "_schedulers"})
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"]):
            scheduler.load_state_dict(state)


class SequentialLR(_Schedulers):
    """One schedule after another: each begins at its milestone."""

    def __init__(
        self, optimizer: Optimizer, schedulers: list[LRScheduler], milestones: list[int], last_epoch: int = -1
    ) -> None:
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(f"{len(schedulers)} schedules: expected {len(schedulers) - 1} milestones, got {len(milestones)}")
        self.optimizer, self.milestones, self.last_epoch = optimizer, list(milestones), last_epoch + 1
        self._schedulers = schedulers
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        for scheduler in schedulers:
            scheduler.last_epoch -= 1
        schedulers[0]._begin()
        self._last_lr = schedulers[0].get_last_lr()

    def step(self, epoch: int | None = None) -> None:
        self.last_epoch += 1
        at = bisect_right(self.milestones, self.last_epoch)
        scheduler = self._schedulers[at]
        scheduler.step(0 if at and self.milestones[at - 1] == self.last_epoch else None)
        self._last_lr = scheduler.get_last_lr()


class ChainedScheduler(_Schedulers):
    """Applies all these schedules at each step, one after the other."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        if not schedulers:
            raise ValueError("ChainedScheduler takes at least one schedule")
        self.optimizer = optimizer or schedulers[0].optimizer
        for i, scheduler in enumerate(schedulers):
            if isinstance(scheduler, ReduceLROnPlateau):
                raise ValueError(f"schedule {i} is a ReduceLROnPlateau, whose step takes a measurement: it cannot be chained")
            if scheduler.optimizer is not self.optimizer:
                raise ValueError(f"schedule {i} belongs to another optimizer")
        self._schedulers = schedulers
        self._last_lr = [float(g["lr"]) for g in self.optimizer.param_groups]

    def step(self, epoch: int | None = None) -> None:
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = [float(g["lr"]) for g in self.optimizer.param_groups]


class ReduceLROnPlateau:
    """Multiplies the rate by `factor` when the measured value has not improved for `patience` steps."""

    def __init__(
        self, optimizer: Optimizer, mode: str = "min", factor: float = 0.1, patience: int = 10, threshold: float = 1e-4,
        threshold_mode: str = "rel", cooldown: int = 0, min_lr: Any = 0, eps: float = 1e-8,
    ) -> None:  # fmt: skip
        if factor >= 1.0:
            raise ValueError(f"expected a factor below 1, got {factor}")
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ValueError(f"expected mode min or max and threshold_mode rel or abs, got {mode!r} and {threshold_mode!r}")
        self.optimizer, self.mode, self.factor, self.patience, self.threshold = optimizer, mode, factor, patience, threshold
        self.threshold_mode, self.cooldown, self.eps = threshold_mode, cooldown, eps
        self.min_lrs = each_group(min_lr, len(optimizer.param_groups), "min_lr")
        self.best = math.inf if mode == "min" else -math.inf
        self.last_epoch = self.cooldown_counter = self.num_bad_epochs = 0
        self._last_lr = [float(g["lr"]) for g in optimizer.param_groups]

    def is_better(self, value: float) -> bool:
        if self.mode == "min":
            edge = self.best * (1.0 - self.threshold) if self.threshold_mode == "rel" else self.best - self.threshold
            return value < edge
        edge = self.best * (1.0 + self.threshold) if self.threshold_mode == "rel" else self.best + self.threshold
        return value > edge

    def step(self, metrics: Any, epoch: int | None = None) -> None:
        """Take a step with the measured value."""
        value = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self.is_better(value):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            for group, least in zip(self.optimizer.param_groups, self.min_lrs):
                lr = max(float(group["lr"]) * self.factor, least)
                if float(group["lr"]) - lr > self.eps:
                    group["lr"] = lr
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = [float(g["lr"]) for g in self.optimizer.param_groups]

    def get_last_lr(self) -> list[float]:
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.__dict__.update(state_dict)
