"""Cyclic schedules: the rate rises and falls, once or repeatedly; some move the momentum in the opposite direction."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gt.optim.lr_scheduler.schedule import LRScheduler, each_group
from gt.optim.optimizer import Optimizer


def has_momentum(optimizer: Optimizer) -> None:
    if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
        raise ValueError("this optimizer has no momentum to cycle: use cycle_momentum=False")


def set_momentum(group: dict[str, Any], value: float) -> None:
    if "betas" in group:
        group["betas"] = (value, *group["betas"][1:])
    else:
        group["momentum"] = value


class OneCycleLR(LRScheduler):
    """From a small rate up to `max_lr` and down to a much smaller one; the momentum moves in the opposite direction."""

    def __init__(
        self, optimizer: Optimizer, max_lr: Any, total_steps: int | None = None, epochs: int | None = None,
        steps_per_epoch: int | None = None, pct_start: float = 0.3, anneal_strategy: str = "cos", cycle_momentum: bool = True,
        base_momentum: Any = 0.85, max_momentum: Any = 0.95, div_factor: float = 25.0, final_div_factor: float = 1e4,
        three_phase: bool = False, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("OneCycleLR: expected total_steps, or epochs and steps_per_epoch")
            total_steps = epochs * steps_per_epoch
        if total_steps <= 0 or not 0 <= pct_start <= 1:
            raise ValueError(f"expected total_steps above 0 and pct_start from 0 to 1, got {total_steps} and {pct_start}")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"no strategy {anneal_strategy!r}: known are cos, linear")
        self.total_steps, self.strategy, self.cycle_momentum = total_steps, anneal_strategy, cycle_momentum
        groups = optimizer.param_groups
        for group, top in zip(groups, each_group(max_lr, len(groups), "max_lr")):
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
        has_momentum(optimizer)
        n = len(optimizer.param_groups)
        for group, low, high in zip(
            optimizer.param_groups, each_group(base, n, "base_momentum"), each_group(top, n, "max_momentum")
        ):
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
            raise ValueError(f"OneCycleLR: expected at most total_steps={self.total_steps} steps, got step {step}")
        at = next((i for i, phase in enumerate(self.phases) if step <= phase[0]), len(self.phases) - 1)
        begin = self.phases[at - 1][0] if at else 0.0
        end, *names = self.phases[at]
        share = (step - begin) / (end - begin)
        if self.cycle_momentum:
            set_momentum(group, self._between(group[names[2]], group[names[3]], share))
        return self._between(group[names[0]], group[names[1]], share)


class CyclicLR(LRScheduler):
    """From `base_lr` up to `max_lr` and back, repeatedly, with each cycle's amplitude scaled by the mode."""

    def __init__(
        self, optimizer: Optimizer, base_lr: Any, max_lr: Any, step_size_up: int = 2000, step_size_down: int | None = None,
        mode: str = "triangular", gamma: float = 1.0, scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle", cycle_momentum: bool = True, base_momentum: Any = 0.8, max_momentum: Any = 0.9,
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        modes = ("triangular", "triangular2", "exp_range")
        if mode not in modes and scale_fn is None:
            raise ValueError(f"no mode {mode!r}: known are {', '.join(modes)}, or give scale_fn")
        groups = optimizer.param_groups
        bases = each_group(base_lr, len(groups), "base_lr")
        self.max_lrs = each_group(max_lr, len(groups), "max_lr")
        down = float(step_size_up if step_size_down is None else step_size_down)
        self.total_size = step_size_up + down
        self.step_ratio = step_size_up / self.total_size
        self.mode, self.gamma, self.custom_scale = mode, gamma, scale_fn
        self.scale_mode = scale_mode if scale_fn is not None else "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            has_momentum(optimizer)
            self.base_momentums = each_group(base_momentum, len(groups), "base_momentum")
            self.max_momentums = each_group(max_momentum, len(groups), "max_momentum")
        if last_epoch == -1:
            for i, group in enumerate(groups):
                group["lr"] = bases[i]
                if cycle_momentum:
                    group.update(max_momentum=self.max_momentums[i], base_momentum=self.base_momentums[i])
        self.base_lrs = bases
        super().__init__(optimizer, last_epoch)
        self.base_lrs = bases

    def scale_fn(self, x: float) -> float:
        """The amplitude of a cycle, or of a step, relative to the first."""
        if self.custom_scale is not None:
            return self.custom_scale(x)
        return {"triangular": 1.0, "triangular2": 2.0 ** (1 - x), "exp_range": self.gamma**x}[self.mode]

    def _begin(self) -> None:
        self.last_epoch += 1
        self._set([self._next(i, 0.0, 0.0) for i in range(len(self.optimizer.param_groups))])

    def _next(self, i: int, lr: float, base: float) -> float:
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        height = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        scale = self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            low, high = self.base_momentums[i], self.max_momentums[i]
            set_momentum(self.optimizer.param_groups[i], high - (high - low) * height * scale)
        return self.base_lrs[i] + (self.max_lrs[i] - self.base_lrs[i]) * height * scale


class CosineAnnealingWarmRestarts(LRScheduler):
    """Down to `eta_min` along half a cosine, then restarted: after `T_0` steps, then after `T_mult` times as many."""

    def __init__(self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        if T_0 <= 0 or not isinstance(T_0, int):
            raise ValueError(f"T_0 is {T_0}: expected a positive integer")
        if T_mult < 1 or not isinstance(T_mult, int):
            raise ValueError(f"T_mult is {T_mult}: expected an integer of at least 1")
        self.T_0, self.T_i, self.T_mult, self.eta_min, self.T_cur = T_0, T_0, T_mult, eta_min, float(last_epoch)
        super().__init__(optimizer, last_epoch)

    def _begin(self) -> None:
        self.step(None if self.last_epoch >= 0 else 0)

    def _next(self, i: int, lr: float, base: float) -> float:
        return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2

    def step(self, epoch: float | None = None) -> None:
        """Advance by one epoch, or to the given epoch, which may be a fraction."""
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur, self.T_i = self.T_cur % self.T_i, self.T_i * self.T_mult
        elif epoch < 0:
            raise ValueError(f"epoch is {epoch}: expected 0 or more")
        elif epoch < self.T_0:
            self.T_cur, self.T_i = epoch, self.T_0
        elif self.T_mult == 1:
            self.T_cur = epoch % self.T_0
        else:
            n = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            self.T_cur = epoch - self.T_0 * (self.T_mult**n - 1) / (self.T_mult - 1)
            self.T_i = self.T_0 * self.T_mult**n
        self.last_epoch = math.floor(epoch)
        self._set([self._next(i, 0.0, base) for i, base in enumerate(self.base_lrs)])
