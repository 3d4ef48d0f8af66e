"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import full_like
from gt.client.functions.sparse import SparseTensor
from gt.optim.optimizer import Optimizer, States, column, rate


class SGD(Optimizer):
    """With momentum, Nesterov's form and weight decay, as PyTorch computes them."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, momentum: float = 0, dampening: float = 0, weight_decay: float = 0,
        nesterov: bool = False, *, maximize: bool = False, foreach: bool | None = None, differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:  # fmt: skip
        rate("lr", lr)
        rate("momentum", momentum)
        rate("weight_decay", weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError(
                f"nesterov=True needs a momentum above 0 and dampening=0, not momentum={momentum} and dampening={dampening}"
            )
        super().__init__(
            params,
            dict(
                lr=lr,
                momentum=momentum,
                dampening=dampening,
                weight_decay=weight_decay,
                nesterov=nesterov,
                maximize=maximize,
                foreach=foreach,
                differentiable=differentiable,
                fused=fused,
            ),
        )

    apart_by = "momentum_buffer"

    def update_many(self, params: list[Tensor], grads: list[Tensor], states: States, group: dict[str, Any]) -> None:
        if not group["momentum"]:
            numbers = self.numbers(params, states, group, "lr", "weight_decay")
            self.write("sgd", (params, grads, *numbers), [params], (group["maximize"],))
            return
        *rates, dampening = self.numbers(params, states, group, "lr", "weight_decay", "momentum", "dampening")
        if states[0].get("momentum_buffer") is None:  # the first gradient is the buffer, undampened
            dampening = 0.0
            for p, state in zip(params, states):
                state["momentum_buffer"] = full_like(p, 0.0)
        buffers = column(states, "momentum_buffer")
        operands = (params, grads, buffers, *rates, dampening)
        self.write("sgd_momentum", operands, [params, buffers], (group["nesterov"], group["maximize"]))

    def update_sparse(self, params: list[Tensor], grads: list[SparseTensor], states: States, group: dict[str, Any]) -> None:
        """Without momentum an update reads and writes only the rows of the gradient."""
        if group["weight_decay"]:
            raise RuntimeError(
                "SGD with weight_decay does not support sparse gradients: use weight_decay=0 for these parameters"
            )
        if group["momentum"] or any(g.sparse_dim() != 1 for g in grads):
            self.update_many(params, [g.to_dense() for g in grads], states, group)
            return
        (lr,) = self.numbers(params, states, group, "lr")
        places, rows = map(list, zip(*[g.parts for g in grads]))
        self.write("sgd_rows", (params, rows, places, lr), [params], (group["maximize"],))
