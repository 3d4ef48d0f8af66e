"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.create import full_like
from gt.ops.table import TABLE
from gt.optim.optimizer import Optimizer, rate


class SGD(Optimizer):
    """With momentum, Nesterov's form and weight decay, as PyTorch computes them."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False, *, maximize: bool = False, foreach: bool | None = None, differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:  # fmt: skip
        rate("lr", lr)
        rate("momentum", momentum)
        rate("weight_decay", weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov's form wants a momentum and no dampening")
        super().__init__(params, dict(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay,
                                      nesterov=nesterov, maximize=maximize))  # fmt: skip

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        if not group["momentum"]:
            return apply(TABLE["sgd"], (p, g, *self.numbers(p, group, "lr", "weight_decay")), (group["maximize"],))
        *numbers, dampening = self.numbers(p, group, "lr", "weight_decay", "momentum", "dampening")
        before = state.get("momentum_buffer")
        if before is None:  # the first gradient is the buffer, undampened
            before, dampening = full_like(p, 0.0), 0.0
        operands = (p, g, before, *numbers, dampening)
        found, state["momentum_buffer"] = apply(TABLE["sgd_momentum"], operands, (group["nesterov"], group["maximize"]))
        return found
