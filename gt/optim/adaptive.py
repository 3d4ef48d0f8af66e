"""Optimizers that give each element a rate of its own: one instruction for all parameters, rates and step counts as
numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import full_like
from gt.client.functions.sparse import SparseTensor
from gt.optim.optimizer import Optimizer, States, column, count_step, rate


def _zeros(p: Tensor) -> Tensor:
    return full_like(p, 0.0)


class Adam(Optimizer):
    """Running means of the gradient and of its square."""

    decoupled = False

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0, amsgrad: bool = False, *, foreach: bool | None = None, maximize: bool = False,
        capturable: bool = False, differentiable: bool = False, fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:  # fmt: skip
        rate("lr", lr)
        rate("eps", eps)
        rate("weight_decay", weight_decay)
        for i, beta in enumerate(betas):
            rate(f"betas[{i}]", beta, below=1.0)
        super().__init__(
            params,
            dict(
                lr=lr,
                betas=tuple(betas),
                eps=eps,
                weight_decay=weight_decay,
                amsgrad=amsgrad,
                maximize=maximize,
                decoupled_weight_decay=decoupled_weight_decay or self.decoupled,
                foreach=foreach,
                capturable=capturable,
                differentiable=differentiable,
                fused=fused,
            ),
        )

    def begin(self, p: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        more = {"max_exp_avg_sq": _zeros(p)} if group["amsgrad"] else {}
        return dict(step=0, exp_avg=_zeros(p), exp_avg_sq=_zeros(p), **more)

    def update_many(self, params: list[Tensor], grads: list[Tensor], states: States, group: dict[str, Any]) -> None:
        count_step(states)
        numbers = self.numbers(params, states, group, "lr", "betas", "eps", "weight_decay", count=True)
        means, squares = column(states, "exp_avg"), column(states, "exp_avg_sq")
        top = [column(states, "max_exp_avg_sq")] if group["amsgrad"] else []
        statics = (group["decoupled_weight_decay"], group["maximize"])
        self.write("adam", (params, grads, means, squares, *numbers, *top), [params, means, squares, *top], statics)


class AdamW(Adam):
    """Adam whose weight decay acts on the parameter, not on the gradient."""

    decoupled = True

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False, foreach: bool | None = None,
        capturable: bool = False, differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach, maximize=maximize,
                         capturable=capturable, differentiable=differentiable, fused=fused)  # fmt: skip


class RMSprop(Optimizer):
    """The gradient divided by the root of a running mean of its square."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, alpha: float = 0.99, eps: float = 1e-8, weight_decay: float = 0,
        momentum: float = 0, centered: bool = False, capturable: bool = False, foreach: bool | None = None,
        maximize: bool = False, differentiable: bool = False,
    ) -> None:  # fmt: skip
        for name, value in dict(lr=lr, eps=eps, momentum=momentum, weight_decay=weight_decay, alpha=alpha).items():
            rate(name, value)
        super().__init__(
            params,
            dict(
                lr=lr,
                alpha=alpha,
                eps=eps,
                weight_decay=weight_decay,
                momentum=momentum,
                centered=centered,
                maximize=maximize,
                foreach=foreach,
                capturable=capturable,
                differentiable=differentiable,
            ),
        )

    def begin(self, p: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        return dict(step=0, **{name: _zeros(p) for name in self._kept(group)})

    @staticmethod
    def _kept(group: dict[str, Any]) -> list[str]:
        return ["square_avg"] + ["grad_avg"] * group["centered"] + ["momentum_buffer"] * (group["momentum"] > 0)

    def update_many(self, params: list[Tensor], grads: list[Tensor], states: States, group: dict[str, Any]) -> None:
        count_step(states)
        numbers = self.numbers(params, states, group, "lr", "alpha", "eps", "weight_decay", "momentum")
        squares, *more = [column(states, name) for name in self._kept(group)]
        operands = (params, grads, squares, *numbers, *more)
        self.write("rmsprop", operands, [params, squares, *more], (group["centered"], group["maximize"]))


class Adagrad(Optimizer):
    """The gradient divided by the root of the sum of all its squares."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-2, lr_decay: float = 0, weight_decay: float = 0,
        initial_accumulator_value: float = 0, eps: float = 1e-10, foreach: bool | None = None, *, maximize: bool = False,
        differentiable: bool = False, fused: bool | None = None,
    ) -> None:  # fmt: skip
        for name, value in dict(lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps,
                                initial_accumulator_value=initial_accumulator_value).items():  # fmt: skip
            rate(name, value)
        super().__init__(
            params,
            dict(
                lr=lr,
                lr_decay=lr_decay,
                weight_decay=weight_decay,
                eps=eps,
                maximize=maximize,
                initial_accumulator_value=initial_accumulator_value,
                foreach=foreach,
                differentiable=differentiable,
                fused=fused,
            ),
        )

    def begin(self, p: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        return dict(step=0, sum=full_like(p, float(group["initial_accumulator_value"])))

    def update_many(self, params: list[Tensor], grads: list[Tensor], states: States, group: dict[str, Any]) -> None:
        count_step(states)
        numbers = self.numbers(params, states, group, "lr", "lr_decay", "weight_decay", "eps", count=True)
        sums = column(states, "sum")
        self.write("adagrad", (params, grads, sums, *numbers), [params, sums], (group["maximize"],))

    def update_sparse(self, params: list[Tensor], grads: list[SparseTensor], states: States, group: dict[str, Any]) -> None:
        if group["weight_decay"]:
            raise RuntimeError("weight_decay option is not compatible with sparse gradients")
        self.update_many(params, [g.to_dense() for g in grads], states, group)


class Lion(Optimizer):
    """Steps of one size, in the direction of the sign of a running mean of the gradient."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0, *,
        maximize: bool = False,
    ) -> None:  # fmt: skip
        rate("lr", lr)
        rate("weight_decay", weight_decay)
        for i, beta in enumerate(betas):
            rate(f"betas[{i}]", beta, below=1.0)
        super().__init__(params, dict(lr=lr, betas=tuple(betas), weight_decay=weight_decay, maximize=maximize))

    def begin(self, p: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        return dict(exp_avg=_zeros(p))

    def update_many(self, params: list[Tensor], grads: list[Tensor], states: States, group: dict[str, Any]) -> None:
        means = column(states, "exp_avg")
        numbers = self.numbers(params, states, group, "lr", "betas", "weight_decay")
        self.write("lion", (params, grads, means, *numbers), [params, means], (group["maximize"],))
