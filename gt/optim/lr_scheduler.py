"""Schedules: how the rates of an optimizer's groups change from step to step.

Most change the rate there is by a factor, as PyTorch's do, so that several schedules of one optimizer act together."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from gt.optim.optimizer import Optimizer


class LRScheduler:
    """`change(lr, base, epoch)` gives a group's next rate from the one it has; `at(base, epoch)` the rate by itself."""

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"a schedule wants an optimizer, not {type(optimizer).__name__}")
        self.optimizer, self.last_epoch = optimizer, last_epoch
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group["initial_lr"] = group.get("initial_lr", float(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(f"group {i} has no initial_lr: resuming wants the groups of an optimizer that had a schedule")
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self._begin()

    def _begin(self) -> None:
        self.last_epoch += 1
        self._set([self.first(float(g["lr"]), b) for g, b in zip(self.optimizer.param_groups, self.base_lrs)])

    def first(self, lr: float, base: float) -> float:
        """The rate before any step."""
        return lr

    def change(self, lr: float, base: float, epoch: int) -> float:
        raise NotImplementedError

    def at(self, base: float, epoch: int) -> float | None:
        return None

    def step(self, epoch: int | None = None) -> None:
        """Go on by one, or to a step named."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        rates = []
        for i, (group, base) in enumerate(zip(self.optimizer.param_groups, self.base_lrs)):
            named = None if epoch is None else self.at(base, epoch)
            rates.append(self._next(i, float(group["lr"]), base) if named is None else named)
        self._set(rates)

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
    """Functions are no state."""
    return callable(value) or (isinstance(value, list) and any(callable(v) for v in value))


class StepLR(LRScheduler):
    """Times `gamma` every `step_size` steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def change(self, lr: float, base: float, epoch: int) -> float:
        return lr * self.gamma if epoch and epoch % self.step_size == 0 else lr

    def at(self, base: float, epoch: int) -> float:
        return base * self.gamma ** (epoch // self.step_size)


class MultiStepLR(LRScheduler):
    """Times `gamma` at each milestone."""

    def __init__(self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def change(self, lr: float, base: float, epoch: int) -> float:
        return lr * self.gamma ** self.milestones[epoch]

    def at(self, base: float, epoch: int) -> float:
        return base * self.gamma ** bisect_right(sorted(self.milestones.elements()), epoch)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "milestones": dict(self.milestones)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "milestones": Counter(state_dict["milestones"])})


class ConstantLR(LRScheduler):
    """Times `factor` for the first `total_iters` steps."""

    def __init__(self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1) -> None:
        if not 0 <= factor <= 1:
            raise ValueError(f"factor is from 0 to 1, not {factor}")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def first(self, lr: float, base: float) -> float:
        return lr * self.factor if self.last_epoch == 0 else lr

    def change(self, lr: float, base: float, epoch: int) -> float:
        return lr * (1.0 / self.factor) if epoch == self.total_iters else lr

    def at(self, base: float, epoch: int) -> float:
        return base * (self.factor if epoch < self.total_iters else 1.0)


class LinearLR(LRScheduler):
    """A warm-up: from `start_factor` of the rate to `end_factor` of it, evenly over `total_iters` steps."""

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
    """Times `gamma` each step."""

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
            raise ValueError(f"{n} groups want as many functions, not {len(self.lr_lambdas)}")
        super().__init__(optimizer, last_epoch)


class LambdaLR(_PerGroup):
    """The first rate times a function of the step."""

    def _begin(self) -> None:
        self.last_epoch += 1
        self._set([f(self.last_epoch) * base for f, base in zip(self.lr_lambdas, self.base_lrs)])

    def _next(self, i: int, lr: float, base: float) -> float:
        return base * self.lr_lambdas[i](self.last_epoch)


class MultiplicativeLR(_PerGroup):
    """The rate there is times a function of the step."""

    def _next(self, i: int, lr: float, base: float) -> float:
        return lr * self.lr_lambdas[i](self.last_epoch)


def _each(value: Any, n: int, name: str) -> list[float]:
    if isinstance(value, (list, tuple)):
        if len(value) != n:
            raise ValueError(f"{name} is one number or {n}, not {len(value)}")
        return [float(v) for v in value]
    return [float(value)] * n


class OneCycleLR(LRScheduler):
    """Up from a small rate to `max_lr` and down to a much smaller one, the momentum going the other way."""

    def __init__(
        self, optimizer: Optimizer, max_lr: Any, total_steps: int | None = None, epochs: int | None = None,
        steps_per_epoch: int | None = None, pct_start: float = 0.3, anneal_strategy: str = "cos", cycle_momentum: bool = True,
        base_momentum: Any = 0.85, max_momentum: Any = 0.95, div_factor: float = 25.0, final_div_factor: float = 1e4,
        three_phase: bool = False, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("OneCycleLR wants total_steps, or epochs and steps_per_epoch")
            total_steps = epochs * steps_per_epoch
        if total_steps <= 0 or not 0 <= pct_start <= 1:
            raise ValueError(f"total_steps is above 0 and pct_start from 0 to 1, not {total_steps} and {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"no strategy {anneal_strategy!r}: known are cos, linear")
        self.total_steps, self.strategy, self.cycle_momentum = total_steps, anneal_strategy, cycle_momentum
        groups = optimizer.param_groups
        for group, top in zip(groups, _each(max_lr, len(groups), "max_lr")):
            if last_epoch == -1:
                first = top / div_factor
                group.update(initial_lr=first, max_lr=top, min_lr=first / final_div_factor)
        if cycle_momentum:
            self._momenta(optimizer, base_momentum, max_momentum, last_epoch)
        up = pct_start * total_steps - 1
        # (last step of the phase, rate from, to, momentum from, to)
        self.phases = [(up, "initial_lr", "max_lr", "max_momentum", "base_momentum")]
        if three_phase:
            self.phases.append((2 * pct_start * total_steps - 2, "max_lr", "initial_lr", "base_momentum", "max_momentum"))
            self.phases.append((total_steps - 1, "initial_lr", "min_lr", "max_momentum", "max_momentum"))
        else:
            self.phases.append((total_steps - 1, "max_lr", "min_lr", "base_momentum", "max_momentum"))
        super().__init__(optimizer, last_epoch)

    def _momenta(self, optimizer: Optimizer, base: Any, top: Any, last_epoch: int) -> None:
        if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
            raise ValueError("this optimizer has no momentum to cycle: use cycle_momentum=False")
        n = len(optimizer.param_groups)
        for group, low, high in zip(optimizer.param_groups, _each(base, n, "base_momentum"), _each(top, n, "max_momentum")):
            if last_epoch == -1:
                group.update(max_momentum=high, base_momentum=low)

    def _begin(self) -> None:
        self.last_epoch += 1
        self._set([self._next(i, 0.0, 0.0) for i in range(len(self.optimizer.param_groups))])

    def _between(self, start: float, end: float, share: float) -> float:
        if self.strategy == "linear":
            return (end - start) * share + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)

    def _next(self, i: int, lr: float, base: float) -> float:
        step, group = self.last_epoch, self.optimizer.param_groups[i]
        if step > self.total_steps:
            raise ValueError(f"step {step} of a schedule of {self.total_steps}")
        at = next((i for i, phase in enumerate(self.phases) if step <= phase[0]), len(self.phases) - 1)
        begin = self.phases[at - 1][0] if at else 0.0
        end, *names = self.phases[at]
        share = (step - begin) / (end - begin)
        if self.cycle_momentum:
            moved = self._between(group[names[2]], group[names[3]], share)
            if "betas" in group:
                group["betas"] = (moved, *group["betas"][1:])
            else:
                group["momentum"] = moved
        return self._between(group[names[0]], group[names[1]], share)


class SequentialLR(LRScheduler):
    """One schedule after another: each begins at its milestone."""

    def __init__(
        self, optimizer: Optimizer, schedulers: list[LRScheduler], milestones: list[int], last_epoch: int = -1
    ) -> None:
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(f"{len(schedulers)} schedules want {len(schedulers) - 1} milestones, not {len(milestones)}")
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

    def state_dict(self) -> dict[str, Any]:
        own = {k: v for k, v in self.__dict__.items() if k not in ("optimizer", "_schedulers")}
        return {**own, "_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.__dict__.update({k: v for k, v in state_dict.items() if k != "_schedulers"})
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"]):
            scheduler.load_state_dict(state)


class ReduceLROnPlateau:
    """Times `factor` when what is measured has not got better for `patience` steps."""

    def __init__(
        self, optimizer: Optimizer, mode: str = "min", factor: float = 0.1, patience: int = 10, threshold: float = 1e-4,
        threshold_mode: str = "rel", cooldown: int = 0, min_lr: Any = 0, eps: float = 1e-8,
    ) -> None:  # fmt: skip
        if factor >= 1.0:
            raise ValueError(f"factor is below 1, not {factor}")
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ValueError(f"mode is min or max and threshold_mode rel or abs, not {mode!r} and {threshold_mode!r}")
        self.optimizer, self.mode, self.factor, self.patience, self.threshold = optimizer, mode, factor, patience, threshold
        self.threshold_mode, self.cooldown, self.eps = threshold_mode, cooldown, eps
        self.min_lrs = _each(min_lr, len(optimizer.param_groups), "min_lr")
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
        """Tell what was measured."""
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
