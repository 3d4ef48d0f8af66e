"""Optimizers that give each element a rate of its own: one instruction a parameter, rates and step counts as numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.create import full_like
from gt.ops.table import TABLE
from gt.optim.optimizer import Optimizer, rate


def _zeros(p: Tensor) -> Tensor:
    return full_like(p, 0.0)


class Adam(Optimizer):
    """Running means of the gradient and of its square."""

    decoupled = False

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.0, amsgrad: bool = False, *, foreach: bool | None = None, maximize: bool = False,
        capturable: bool = False, differentiable: bool = False, fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:  # fmt: skip
        rate("lr", lr)
        rate("eps", eps)
        rate("weight_decay", weight_decay)
        for i, beta in enumerate(betas):
            rate(f"betas[{i}]", beta, below=1.0)
        super().__init__(params, dict(lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay, amsgrad=amsgrad,
                                      maximize=maximize,
                                      decoupled_weight_decay=decoupled_weight_decay or self.decoupled))  # fmt: skip

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        if not state:
            state.update(step=0, exp_avg=_zeros(p), exp_avg_sq=_zeros(p))
            if group["amsgrad"]:
                state["max_exp_avg_sq"] = _zeros(p)
        state["step"] += 1
        numbers = self.numbers(p, group, "lr", "betas", "eps", "weight_decay", count=True)
        top = (state["max_exp_avg_sq"],) if group["amsgrad"] else ()
        operands = (p, g, state["exp_avg"], state["exp_avg_sq"], *numbers, *top)
        found = apply(TABLE["adam"], operands, (group["decoupled_weight_decay"], group["maximize"]))
        state["exp_avg"], state["exp_avg_sq"] = found[1], found[2]
        if top:
            state["max_exp_avg_sq"] = found[3]
        return found[0]


class AdamW(Adam):
    """Adam whose weight decay acts on the parameter, not on the gradient."""

    decoupled = True

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False, foreach: bool | None = None,
        capturable: bool = False, differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, maximize=maximize)


class RMSprop(Optimizer):
    """The gradient divided by the root of a running mean of its square."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8, weight_decay: float = 0.0,
        momentum: float = 0.0, centered: bool = False, capturable: bool = False, foreach: bool | None = None,
        maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        for name, value in dict(lr=lr, eps=eps, momentum=momentum, weight_decay=weight_decay, alpha=alpha).items():
            rate(name, value)
        super().__init__(params, dict(lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum,
                                      centered=centered, maximize=maximize))  # fmt: skip

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        kept = ["square_avg"] + ["grad_avg"] * group["centered"] + ["momentum_buffer"] * (group["momentum"] > 0)
        if not state:
            state.update(step=0, **{name: _zeros(p) for name in kept})
        state["step"] += 1
        numbers = self.numbers(p, group, "lr", "alpha", "eps", "weight_decay", "momentum")
        operands = (p, g, state["square_avg"], *numbers, *(state[n] for n in kept[1:]))
        found = apply(TABLE["rmsprop"], operands, (group["centered"], group["maximize"]))
        state.update(zip(kept, found[1:]))
        return found[0]


class Adagrad(Optimizer):
    """The gradient divided by the root of the sum of all its squares."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, lr_decay: float = 0.0, weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0, eps: float = 1e-10, foreach: bool | None = None, *, maximize: bool = False,
        differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        for name, value in dict(lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps,
                                initial_accumulator_value=initial_accumulator_value).items():  # fmt: skip
            rate(name, value)
        super().__init__(params, dict(lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps, maximize=maximize,
                                      initial_accumulator_value=initial_accumulator_value))  # fmt: skip

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        if not state:
            state.update(step=0, sum=full_like(p, float(group["initial_accumulator_value"])))
        state["step"] += 1
        numbers = self.numbers(p, group, "lr", "lr_decay", "weight_decay", "eps", count=True)
        found, state["sum"] = apply(TABLE["adagrad"], (p, g, state["sum"], *numbers), (group["maximize"],))
        return found


class Lion(Optimizer):
    """Steps of one size, in the direction of the sign of a running mean of the gradient."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0, *,
        maximize: bool = False,
    ) -> None:  # fmt: skip
        rate("lr", lr)
        rate("weight_decay", weight_decay)
        for i, beta in enumerate(betas):
            rate(f"betas[{i}]", beta, below=1.0)
        super().__init__(params, dict(lr=lr, betas=tuple(betas), weight_decay=weight_decay, maximize=maximize))

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        if not state:
            state["exp_avg"] = _zeros(p)
        operands = (p, g, state["exp_avg"], *self.numbers(p, group, "lr", "betas", "weight_decay"))
        found, state["exp_avg"] = apply(TABLE["lion"], operands, (group["maximize"],))
        return found
