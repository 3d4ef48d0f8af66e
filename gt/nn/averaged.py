"""Averages of a model's parameters over its training, and the schedule that goes with them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import tensor
from gt.client.grad_mode import no_grad
from gt.nn.module import Module
from gt.nn.norm import BatchNorm1d, BatchNorm2d, BatchNorm3d, SyncBatchNorm
from gt.optim.lr_scheduler.schedule import LRScheduler, each_group
from gt.optim.optimizer import Optimizer
from gt.spec import int64

__all__ = ["AveragedModel", "SWALR", "get_ema_avg_fn", "get_ema_multi_avg_fn", "get_swa_avg_fn", "get_swa_multi_avg_fn",
           "update_bn"]  # fmt: skip


def get_ema_avg_fn(decay: float = 0.999) -> Callable:
    """An exponential moving average with the factor `decay`."""
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"decay is {decay}: expected a value from 0 to 1")

    def mean(averaged: Tensor, current: Tensor, count: Any) -> Tensor:
        return decay * averaged + (1 - decay) * current

    return mean


def get_swa_avg_fn() -> Callable:
    """The mean of all updates."""

    def mean(averaged: Tensor, current: Tensor, count: Any) -> Tensor:
        return averaged + (current - averaged) / (count + 1)

    return mean


def _of_many(mean: Callable) -> Callable:
    def change(averaged: Any, current: Any, count: Any) -> None:
        with no_grad():
            for old, new in zip(averaged, current, strict=True):
                old.copy_(mean(old, new, count))

    return change


def get_ema_multi_avg_fn(decay: float = 0.999) -> Callable:
    """`get_ema_avg_fn` for lists, in place on the first."""
    return _of_many(get_ema_avg_fn(decay))


def get_swa_multi_avg_fn() -> Callable:
    """`get_swa_avg_fn` for lists, in place on the first."""
    return _of_many(get_swa_avg_fn())


class AveragedModel(Module):
    """A copy of a model that follows the mean of its parameters: call `update_parameters(model)` after a step.

    >>> model = gt.nn.Linear(1, 1, bias=False)
    >>> mean = gt.optim.swa_utils.AveragedModel(model)
    >>> for value in (1.0, 2.0, 6.0):
    ...     _ = gt.nn.init.constant_(model.weight, value)
    ...     mean.update_parameters(model)
    >>> mean.module.weight.item(), mean.n_averaged.item()
    (3.0, 3)
    """

    n_averaged: Tensor

    def __init__(
        self, model: Module, device: Any = None, avg_fn: Callable | None = None, multi_avg_fn: Callable | None = None,
        use_buffers: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise AssertionError("give one of avg_fn and multi_avg_fn, not both")
        self.module = copy.deepcopy(model)
        self.register_buffer("n_averaged", tensor(0, dtype=int64))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers
        self._count: int | None = 0  # as a number at the client, so that no update waits for a read
        self.register_load_state_dict_post_hook(_forget_count)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def _pairs(self, model: Module) -> list[tuple[Tensor, Tensor]]:
        own, theirs = [(m.parameters(), m.buffers() if self.use_buffers else ()) for m in (self.module, model)]
        return [(p.detach(), q.detach()) for p, q in zip(chain(*own), chain(*theirs))]

    def update_parameters(self, model: Module) -> None:
        """Add the model's parameters to the mean. The first call copies them."""
        if self._count is None:
            self._count = int(self.n_averaged.item())
        pairs = self._pairs(model)
        if self._count == 0:
            for old, new in pairs:
                old.copy_(new)
        elif self.avg_fn is not None:
            for old, new in pairs:
                old.copy_(self.avg_fn(old, new, self.n_averaged))
        else:
            change = self.multi_avg_fn or get_swa_multi_avg_fn()
            for dtype in dict.fromkeys(old.dtype for old, _ in pairs):
                alike = [pair for pair in pairs if pair[0].dtype is dtype]
                change([old for old, _ in alike], [new for _, new in alike], self.n_averaged)
        if not self.use_buffers:
            for old, new in zip(self.module.buffers(), model.buffers(), strict=True):
                old.detach().copy_(new.detach())
        self._count += 1
        self.n_averaged += 1


def _forget_count(module: Any, keys: Any) -> None:
    module._count = None


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Recompute the statistics of a model's batch norms by one pass over the data."""
    norms = [m for m in model.modules() if isinstance(m, (BatchNorm1d, BatchNorm2d, BatchNorm3d, SyncBatchNorm))]
    if not norms:
        return
    momenta = [m.momentum for m in norms]
    training = model.training
    model.train()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    with no_grad():
        for batch in loader:
            model(batch[0] if isinstance(batch, (list, tuple)) else batch)
    for norm, momentum in zip(norms, momenta):
        norm.momentum = momentum
    model.train(training)


def _cosine(t: float) -> float:
    return (1 - math.cos(math.pi * t)) / 2


class SWALR(LRScheduler):
    """From the current rate to `swa_lr` in `anneal_epochs` steps, then constant."""

    def __init__(
        self, optimizer: Optimizer, swa_lr: Any, anneal_epochs: int = 10, anneal_strategy: str = "cos", last_epoch: int = -1
    ) -> None:
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy: expected 'cos' or 'linear', got {anneal_strategy!r}")
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs: expected 0 or more, got {anneal_epochs}")
        for group, lr in zip(optimizer.param_groups, each_group(swa_lr, len(optimizer.param_groups), "swa_lr")):
            group["swa_lr"] = lr
        self.anneal_epochs, self._anneal_strategy = anneal_epochs, anneal_strategy
        super().__init__(optimizer, last_epoch)

    def _share(self, step: int) -> float:
        """The finished share of the annealing."""
        t = max(0.0, min(1.0, step / max(1, self.anneal_epochs)))
        return _cosine(t) if self._anneal_strategy == "cos" else t

    def get_lr(self) -> list[float]:
        step = max(1, self._step_count - 1) if self.anneal_epochs == 0 else self._step_count - 1
        before, now = self._share(step - 1), self._share(step)
        rates = []
        for group in self.optimizer.param_groups:
            lr, goal = float(group["lr"]), group["swa_lr"]
            began = goal if before == 1 else (lr - before * goal) / (1 - before)
            rates.append(goal * now + began * (1 - now))
        return rates
