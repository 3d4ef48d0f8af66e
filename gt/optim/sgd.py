"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.client.autograd import Tensor
from gt.optim.optimizer import Optimizer


class SGD(Optimizer):
    """With momentum, Nesterov's form and weight decay, as PyTorch computes them."""

    def __init__(self, params: Iterable[Any], lr: float = 0.001, momentum: float = 0.0, dampening: float = 0.0,
                 weight_decay: float = 0.0, nesterov: bool = False, maximize: bool = False) -> None:  # fmt: skip
        if lr < 0:
            raise ValueError(f"a learning rate is not negative: {lr}")
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov's form wants a momentum and no dampening")
        super().__init__(params, dict(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay,
                                      nesterov=nesterov, maximize=maximize))  # fmt: skip

    def update(self, p: Tensor, g: Any, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        if group["maximize"]:
            g = -g
        if group["weight_decay"]:
            g = g.add_scaled(p, float(group["weight_decay"]))
        if group["momentum"]:
            before = state.get("momentum_buffer")
            moved = g if before is None else (before * group["momentum"]).add_scaled(g, 1.0 - group["dampening"])
            state["momentum_buffer"] = moved
            g = g.add_scaled(moved, float(group["momentum"])) if group["nesterov"] else moved
        return p.add_scaled(g, -float(group["lr"]))
