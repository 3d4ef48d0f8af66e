"""The base class of schedules.

Most multiply the current rate by a factor, as in PyTorch, so that several schedules of one optimizer combine."""

from __future__ import annotations

from typing import Any

from gt.optim.optimizer import Optimizer


class LRScheduler:
    """`change(lr, base, epoch)` returns a group's next rate from its current one; `at(base, epoch)` the rate in closed form. A
    user's schedule may define `get_lr()` instead, which returns the rates of all groups, as in PyTorch."""

    _step_count = 1  # steps so far, including the initial one

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"a schedule: expected an optimizer, got {type(optimizer).__name__}")
        self.optimizer, self.last_epoch = optimizer, last_epoch
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group["initial_lr"] = group.get("initial_lr", float(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(f"group {i} has no initial_lr: to resume, load the state of an optimizer that had a schedule")
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self._begin()

    def _begin(self) -> None:
        self.last_epoch += 1
        if type(self).get_lr is not LRScheduler.get_lr:
            self._set(self.get_lr())
        else:
            self._set([self.first(float(g["lr"]), b) for g, b in zip(self.optimizer.param_groups, self.base_lrs)])

    def get_lr(self) -> list[float]:
        """The next rates of all groups, at `last_epoch`."""
        groups = zip(self.optimizer.param_groups, self.base_lrs)
        return [self._next(i, float(group["lr"]), base) for i, (group, base) in enumerate(groups)]

    def first(self, lr: float, base: float) -> float:
        """The rate before any step."""
        return lr

    def change(self, lr: float, base: float, epoch: int) -> float:
        raise NotImplementedError

    def at(self, base: float, epoch: int) -> float | None:
        return None

    def step(self, epoch: int | None = None) -> None:
        """Advance by one step, or to the given step."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._step_count += 1
        if epoch is None:
            self._set(self.get_lr())
            return
        closed = [self.at(base, epoch) for base in self.base_lrs]
        known = [rate for rate in closed if rate is not None]
        self._set(known if len(known) == len(closed) else self.get_lr())

    def _next(self, i: int, lr: float, base: float) -> float:
        return self.change(lr, base, self.last_epoch)

    def _set(self, rates: list[float]) -> None:
        for group, lr in zip(self.optimizer.param_groups, rates):
            group["lr"] = lr
        self._last_lr = rates

    def get_last_lr(self) -> list[float]:
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "optimizer" and not _calls(v)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.__dict__.update(state_dict)


def _calls(value: Any) -> bool:
    """Functions are not part of the state."""
    return callable(value) or (isinstance(value, list) and any(callable(v) for v in value))


def each_group(value: Any, n: int, name: str) -> list[float]:
    if isinstance(value, (list, tuple)):
        if len(value) != n:
            raise ValueError(f"{name} is one number or {n}, not {len(value)}")
        return [float(v) for v in value]
    return [float(value)] * n
