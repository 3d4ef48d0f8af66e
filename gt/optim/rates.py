"""Optimizers that adapt each element's rate by other rules than Adam's: one or two instructions for all parameters, with
settings and step counts as numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import full, full_like
from gt.client.functions.dtype_info import finfo
from gt.optim.optimizer import Optimizer, States, column, count_step, rate

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


class _TwoMeans(Optimizer):
    """Keeps two tensors of each parameter's shape (`means`), and updates all parameters by one instruction (`op`)."""

    op: str
    means: tuple[str, str]
    settings: tuple[str, ...] = ("lr", "betas", "eps", "weight_decay")
    counted = True  # whether the step count is one of its numbers
    flags: tuple[str, ...] = ("maximize",)

    def begin(self, p: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        return dict(step=0, **{name: full_like(p, 0.0) for name in self.means})

    def update_many(self, params: list[Tensor], grads: list[Tensor], states: States, group: dict[str, Any]) -> None:
        count_step(states)
        numbers = self.numbers(params, states, group, *self.settings, count=self.counted)
        first, second = (column(states, name) for name in self.means)
        statics = tuple(group[flag] for flag in self.flags)
        self.write(self.op, (params, grads, first, second, *numbers), [params, first, second], statics)


class Adadelta(_TwoMeans):
    """Steps as large as the root mean square of earlier ones, relative to the gradient's."""

    op, means = "adadelta", ("square_avg", "acc_delta")
    settings, counted = ("lr", "rho", "eps", "weight_decay"), False

    def __init__(
        self, params: Iterable[Any], lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0,
        foreach: bool | None = None, *, capturable: bool = False, maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        _check(lr, eps=eps, weight_decay=weight_decay)
        if not 0.0 <= rho <= 1.0:
            raise ValueError(f"rho is {rho}: expected a value from 0 to 1")
        super().__init__(
            params,
            dict(
                lr=lr,
                rho=rho,
                eps=eps,
                weight_decay=weight_decay,
                maximize=maximize,
                foreach=foreach,
                capturable=capturable,
                differentiable=differentiable,
            ),
        )


class Adamax(_TwoMeans):
    """Adam with the largest of the decayed gradients in place of the mean of their squares."""

    op, means = "adamax", ("exp_avg", "exp_inf")

    def __init__(
        self, params: Iterable[Any], lr: float = 2e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None, *, maximize: bool = False, differentiable: bool = False, capturable: bool = False,
    ) -> None:  # fmt: skip
        _check(lr, betas, eps=eps, weight_decay=weight_decay)
        super().__init__(
            params,
            dict(
                lr=lr,
                betas=tuple(betas),
                eps=eps,
                weight_decay=weight_decay,
                maximize=maximize,
                foreach=foreach,
                capturable=capturable,
                differentiable=differentiable,
            ),
        )


class NAdam(Optimizer):
    """Adam with Nesterov's momentum, which grows from step to step."""

    def __init__(
        self, params: Iterable[Any], lr: float = 2e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3, decoupled_weight_decay: bool = False, *, foreach: bool | None = None,
        maximize: bool = False, capturable: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        _check(lr, betas, eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay)
        super().__init__(
            params,
            dict(
                lr=lr,
                betas=tuple(betas),
                eps=eps,
                weight_decay=weight_decay,
                momentum_decay=momentum_decay,
                decoupled_weight_decay=decoupled_weight_decay,
                maximize=maximize,
                foreach=foreach,
                capturable=capturable,
                differentiable=differentiable,
            ),
        )

    def begin(self, p: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        return dict(step=0, mu_product=_scalar(p, 1.0), exp_avg=full_like(p, 0.0), exp_avg_sq=full_like(p, 0.0))

    def update_many(self, params: list[Tensor], grads: list[Tensor], states: States, group: dict[str, Any]) -> None:
        count_step(states)
        products, means, squares = (column(states, name) for name in ("mu_product", "exp_avg", "exp_avg_sq"))
        shared = self.numbers(params, states, group, "betas", "momentum_decay", count=True)
        self.write("nadam_product", (products, *shared), [products])
        names = ("lr", "betas", "eps", "weight_decay", "momentum_decay")
        numbers = self.numbers(params, states, group, *names, count=True, again=True)
        operands = (params, grads, means, squares, products, *numbers)
        self.write("nadam", operands, [params, means, squares], (group["decoupled_weight_decay"], group["maximize"]))


class RAdam(_TwoMeans):
    """Adam without its second moment until that has seen enough gradients."""

    op, means = "radam", ("exp_avg", "exp_avg_sq")
    flags = ("decoupled_weight_decay", "maximize")

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: Betas = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False, *, foreach: bool | None = None, maximize: bool = False, capturable: bool = False,
        differentiable: bool = False,
    ) -> None:  # fmt: skip
        _check(lr, betas, eps=eps, weight_decay=weight_decay)
        super().__init__(
            params,
            dict(
                lr=lr,
                betas=tuple(betas),
                eps=eps,
                weight_decay=weight_decay,
                maximize=maximize,
                decoupled_weight_decay=decoupled_weight_decay,
                foreach=foreach,
                capturable=capturable,
                differentiable=differentiable,
            ),
        )


class Rprop(Optimizer):
    """A step size for each element, larger while the gradient keeps its sign, smaller when it turns."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, etas: Betas = (0.5, 1.2), step_sizes: Betas = (1e-6, 50), *,
        capturable: bool = False, foreach: bool | None = None, maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        rate("lr", lr)
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ValueError(f"etas is {etas}: expected a factor between 0 and 1, and one above 1")
        super().__init__(
            params,
            dict(
                lr=lr,
                etas=tuple(etas),
                step_sizes=tuple(step_sizes),
                maximize=maximize,
                foreach=foreach,
                capturable=capturable,
                differentiable=differentiable,
            ),
        )

    def begin(self, p: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        return dict(step=0, prev=full_like(p, 0.0), step_size=full_like(p, float(group["lr"])))

    def update_many(self, params: list[Tensor], grads: list[Tensor], states: States, group: dict[str, Any]) -> None:
        count_step(states)
        before, sizes = column(states, "prev"), column(states, "step_size")
        numbers = self.numbers(params, states, group, "etas", "step_sizes")
        self.write("rprop", (params, grads, before, sizes, *numbers), [params, before, sizes], (group["maximize"],))


class ASGD(Optimizer):
    """SGD with a falling rate, and in `state[p]["ax"]` the mean of the parameters since step `t0`."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, lambd: float = 1e-4, alpha: float = 0.75, t0: float = 1e6,
        weight_decay: float = 0, foreach: bool | None = None, maximize: bool = False, differentiable: bool = False,
        capturable: bool = False,
    ) -> None:  # fmt: skip
        _check(lr, weight_decay=weight_decay)
        super().__init__(
            params,
            dict(
                lr=lr,
                lambd=lambd,
                alpha=alpha,
                t0=t0,
                weight_decay=weight_decay,
                maximize=maximize,
                foreach=foreach,
                capturable=capturable,
                differentiable=differentiable,
            ),
        )

    def begin(self, p: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        return dict(step=0, eta=_scalar(p, float(group["lr"])), mu=_scalar(p, 1.0), ax=full_like(p, 0.0))

    def update_many(self, params: list[Tensor], grads: list[Tensor], states: States, group: dict[str, Any]) -> None:
        count_step(states)
        means, etas, mus = (column(states, name) for name in ("ax", "eta", "mu"))
        numbers = self.numbers(params, states, group, "lambd", "weight_decay")
        self.write("asgd", (params, grads, means, etas, mus, *numbers), [params, means], (group["maximize"],))
        shared = self.numbers(params, states, group, "lr", "lambd", "alpha", "t0", count=True, again=True)
        self.write("asgd_rates", (etas, mus, *shared), [etas, mus])


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
        super().__init__(
            params,
            dict(
                lr=lr,
                beta2_decay=beta2_decay,
                eps=tuple(eps),
                d=d,
                weight_decay=weight_decay,
                maximize=maximize,
                foreach=foreach,
            ),
        )

    def begin(self, p: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        shapes = {"variance": p.shape}
        if p.ndim > 1:
            shapes = {"row_var": (*p.shape[:-1], 1), "col_var": (*p.shape[:-2], 1, p.shape[-1])}
        return dict(step=0, **{name: full(shape, 0.0, dtype=p.dtype) for name, shape in shapes.items()})

    def apart(self, p: Tensor, state: dict[str, Any]) -> Any:
        return p.dtype, p.ndim > 1

    def update_many(self, params: list[Tensor], grads: list[Tensor], states: States, group: dict[str, Any]) -> None:
        count_step(states)
        kept = [column(states, name) for name in (("row_var", "col_var") if params[0].ndim > 1 else ("variance",))]
        least, relative = group["eps"]
        least = finfo(params[0].dtype).eps if least is None else least
        numbers = self.numbers(params, states, group, "lr", "beta2_decay", "d", "weight_decay", count=True)
        self.write("adafactor", (params, grads, *numbers, *kept), [params, *kept], (least, relative, group["maximize"]))
