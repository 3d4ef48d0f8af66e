"""Optimizers that adapt each element's rate in ways other than Adam's: one or two instructions a parameter, settings and step
counts as numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions.create import full, full_like
from gt.client.functions.dtype_info import finfo
from gt.ops.table import TABLE
from gt.optim.optimizer import Optimizer, rate

Betas = tuple[float, float]


def _check(lr: float, betas: Betas = (0.0, 0.0), **settings: float) -> None:
    rate("lr", lr)
    for i, beta in enumerate(betas):
        rate(f"betas[{i}]", beta, below=1.0)
    for name, value in settings.items():
        rate(name, value)


def _scalar(p: Tensor, value: float) -> Tensor:
    """A 0-d tensor, for state that all elements of a parameter share."""
    return full((), value, dtype=p.dtype)


class Adadelta(Optimizer):
    """Steps as large as the root mean square of earlier ones, relative to the gradient's."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0,
        foreach: bool | None = None, *, capturable: bool = False, maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        _check(lr, eps=eps, weight_decay=weight_decay)
        if not 0.0 <= rho <= 1.0:
            raise ValueError(f"rho is {rho}: expected a value from 0 to 1")
        super().__init__(params, dict(lr=lr, rho=rho, eps=eps, weight_decay=weight_decay, maximize=maximize))

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        if not state:
            state.update(step=0, square_avg=full_like(p, 0.0), acc_delta=full_like(p, 0.0))
        state["step"] += 1
        numbers = self.numbers(p, group, "lr", "rho", "eps", "weight_decay")
        operands = (p, g, state["square_avg"], state["acc_delta"], *numbers)
        found, state["square_avg"], state["acc_delta"] = apply(TABLE["adadelta"], operands, (group["maximize"],))
        return found


class Adamax(Optimizer):
    """Adam with the largest of the decayed gradients in place of the mean of their squares."""

    def __init__(
        self, params: Iterable[Any], lr: float = 2e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.0,
        foreach: bool | None = None, *, maximize: bool = False, differentiable: bool = False, capturable: bool = False,
    ) -> None:  # fmt: skip
        _check(lr, betas, eps=eps, weight_decay=weight_decay)
        super().__init__(params, dict(lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay, maximize=maximize))

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        if not state:
            state.update(step=0, exp_avg=full_like(p, 0.0), exp_inf=full_like(p, 0.0))
        state["step"] += 1
        numbers = self.numbers(p, group, "lr", "betas", "eps", "weight_decay", count=True)
        operands = (p, g, state["exp_avg"], state["exp_inf"], *numbers)
        found, state["exp_avg"], state["exp_inf"] = apply(TABLE["adamax"], operands, (group["maximize"],))
        return found


class NAdam(Optimizer):
    """Adam with Nesterov's momentum, which grows from step to step."""

    def __init__(
        self, params: Iterable[Any], lr: float = 2e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3, decoupled_weight_decay: bool = False, *, foreach: bool | None = None,
        maximize: bool = False, capturable: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        _check(lr, betas, eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay)
        super().__init__(params, dict(lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay,
                                      momentum_decay=momentum_decay, decoupled_weight_decay=decoupled_weight_decay,
                                      maximize=maximize))  # fmt: skip

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        if not state:
            state.update(step=0, mu_product=_scalar(p, 1.0), exp_avg=full_like(p, 0.0), exp_avg_sq=full_like(p, 0.0))
        state["step"] += 1
        shared = self.numbers(p, group, "betas", "momentum_decay", count=True)
        state["mu_product"] = apply(TABLE["nadam_product"], (state["mu_product"], *shared), ())
        numbers = self.numbers(p, group, "lr", "betas", "eps", "weight_decay", "momentum_decay", count=True, again=True)
        operands = (p, g, state["exp_avg"], state["exp_avg_sq"], state["mu_product"], *numbers)
        statics = (group["decoupled_weight_decay"], group["maximize"])
        found, state["exp_avg"], state["exp_avg_sq"] = apply(TABLE["nadam"], operands, statics)
        return found


class RAdam(Optimizer):
    """Adam without its second mean until that has seen enough gradients."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False, *, foreach: bool | None = None, maximize: bool = False, capturable: bool = False,
        differentiable: bool = False,
    ) -> None:  # fmt: skip
        _check(lr, betas, eps=eps, weight_decay=weight_decay)
        super().__init__(params, dict(lr=lr, betas=tuple(betas), eps=eps, weight_decay=weight_decay, maximize=maximize,
                                      decoupled_weight_decay=decoupled_weight_decay))  # fmt: skip

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        if not state:
            state.update(step=0, exp_avg=full_like(p, 0.0), exp_avg_sq=full_like(p, 0.0))
        state["step"] += 1
        numbers = self.numbers(p, group, "lr", "betas", "eps", "weight_decay", count=True)
        operands = (p, g, state["exp_avg"], state["exp_avg_sq"], *numbers)
        statics = (group["decoupled_weight_decay"], group["maximize"])
        found, state["exp_avg"], state["exp_avg_sq"] = apply(TABLE["radam"], operands, statics)
        return found


class Rprop(Optimizer):
    """A step size for each element, larger while the gradient keeps its sign, smaller when it turns."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, etas: Betas = (0.5, 1.2), step_sizes: Betas = (1e-6, 50.0), *,
        capturable: bool = False, foreach: bool | None = None, maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        rate("lr", lr)
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ValueError(f"etas is {etas}: expected a factor between 0 and 1, and one above 1")
        super().__init__(params, dict(lr=lr, etas=tuple(etas), step_sizes=tuple(step_sizes), maximize=maximize))

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        if not state:
            state.update(step=0, prev=full_like(p, 0.0), step_size=full_like(p, float(group["lr"])))
        state["step"] += 1
        operands = (p, g, state["prev"], state["step_size"], *self.numbers(p, group, "etas", "step_sizes"))
        found, state["prev"], state["step_size"] = apply(TABLE["rprop"], operands, (group["maximize"],))
        return found


class ASGD(Optimizer):
    """Descent with a falling rate, and in `state[p]["ax"]` the mean of the parameters since step `t0`."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, lambd: float = 1e-4, alpha: float = 0.75, t0: float = 1e6,
        weight_decay: float = 0.0, foreach: bool | None = None, maximize: bool = False, differentiable: bool = False,
        capturable: bool = False,
    ) -> None:  # fmt: skip
        _check(lr, weight_decay=weight_decay)
        super().__init__(params, dict(lr=lr, lambd=lambd, alpha=alpha, t0=t0, weight_decay=weight_decay, maximize=maximize))

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        if not state:
            state.update(step=0, eta=_scalar(p, float(group["lr"])), mu=_scalar(p, 1.0), ax=full_like(p, 0.0))
        state["step"] += 1
        operands = (p, g, state["ax"], state["eta"], state["mu"], *self.numbers(p, group, "lambd", "weight_decay"))
        found, state["ax"] = apply(TABLE["asgd"], operands, (group["maximize"],))
        numbers = self.numbers(p, group, "lr", "lambd", "alpha", "t0", count=True, again=True)
        state["eta"], state["mu"] = apply(TABLE["asgd_rates"], (state["eta"], state["mu"], *numbers), ())
        return found


class Adafactor(Optimizer):
    """Adam with one variance for each row and each column of a matrix instead of one for each element."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3), d: float = 1.0, weight_decay: float = 0.0, *,
        foreach: bool | None = None, maximize: bool = False,
    ) -> None:  # fmt: skip
        _check(lr, weight_decay=weight_decay)
        rate("d", d, low=1.0)
        rate("eps[1]", eps[1])
        if beta2_decay > 0:
            raise ValueError(f"beta2_decay is {beta2_decay}: expected 0 or less")
        super().__init__(params, dict(lr=lr, beta2_decay=beta2_decay, eps=tuple(eps), d=d, weight_decay=weight_decay,
                                      maximize=maximize))  # fmt: skip

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        names = ("row_var", "col_var") if p.ndim > 1 else ("variance",)
        if not state:
            shapes = ((*p.shape[:-1], 1), (*p.shape[:-2], 1, p.shape[-1])) if p.ndim > 1 else (p.shape,)
            state.update(step=0, **{n: full(s, 0.0, dtype=p.dtype) for n, s in zip(names, shapes)})
        state["step"] += 1
        least, relative = group["eps"]
        least = finfo(p.dtype).eps if least is None else least
        numbers = self.numbers(p, group, "lr", "beta2_decay", "d", "weight_decay", count=True)
        operands = (p, g, *numbers, *(state[n] for n in names))
        found = apply(TABLE["adafactor"], operands, (least, relative, group["maximize"]))
        state.update(zip(names, found[1:]))
        return found[0]
