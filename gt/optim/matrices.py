"""Optimizers for special parameters: matrices (Muon), and tables of which a step uses few rows (SparseAdam)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import full_like, ones, zeros
from gt.client.functions.elementwise import where
from gt.client.functions.sparse import SparseTensor
from gt.client.writes import overwrite
from gt.optim.optimizer import Optimizer, States, rate
from gt.spec import bfloat16

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def _orthogonal(update: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """A matrix with about the same singular vectors and singular values near 1, by the Newton-Schulz iteration in bfloat16."""
    a, b, c = coefficients
    tall = update.shape[0] > update.shape[1]
    x = update.to(bfloat16)
    x = x.t() if tall else x
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.t()
        x = x.addmm(gram.addmm(gram, gram, beta=b, alpha=c), x, beta=a)
    return x.t() if tall else x


class Muon(Optimizer):
    """Momentum with orthogonalized steps: for matrices only; other parameters need another optimizer."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, weight_decay: float = 0.1, momentum: float = 0.95,
        nesterov: bool = True, ns_coefficients: tuple[float, float, float] = NEWTON_SCHULZ, eps: float = 1e-7,
        ns_steps: int = 5, adjust_lr_fn: str | None = None,
    ) -> None:  # fmt: skip
        for name, value in dict(lr=lr, momentum=momentum, weight_decay=weight_decay).items():
            rate(name, value)
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(f"adjust_lr_fn: expected 'original' or 'match_rms_adamw', got {adjust_lr_fn!r}")
        if ns_steps >= 100 or len(ns_coefficients) != 3:
            raise ValueError(f"expected ns_steps below 100 and 3 ns_coefficients, got {ns_steps} and {len(ns_coefficients)}")
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum, nesterov=nesterov,
                                      ns_coefficients=tuple(ns_coefficients), eps=eps, ns_steps=ns_steps,
                                      adjust_lr_fn=adjust_lr_fn))  # fmt: skip
        for group in self.param_groups:
            for p in group["params"]:
                if p.ndim != 2:
                    raise ValueError(
                        f"Muon is for matrices, not for a parameter of shape {tuple(p.shape)}: give those to AdamW"
                    )

    def begin(self, p: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        return dict(momentum_buffer=full_like(p, 0.0))

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        lr, momentum = float(group["lr"]), group["momentum"]
        buffer = state["momentum_buffer"]
        buffer.lerp_(g, 1 - momentum)
        direction = g.lerp(buffer, momentum) if group["nesterov"] else buffer
        step = _orthogonal(direction, group["ns_coefficients"], group["ns_steps"], group["eps"])
        rows, columns = p.shape
        matched = group["adjust_lr_fn"] == "match_rms_adamw"
        ratio = 0.2 * math.sqrt(max(rows, columns)) if matched else math.sqrt(max(1, rows / columns))
        return p * (1 - lr * group["weight_decay"]) + step.to(p.dtype) * (-lr * ratio)


class SparseAdam(Optimizer):
    """Adam that updates only the rows used in a step, and their means: the rows of a sparse gradient, or those of a dense
    one that are not all zeros."""

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        maximize: bool = False,
    ) -> None:  # fmt: skip
        if lr <= 0 or eps <= 0:
            raise ValueError(f"expected a positive lr and eps, got {lr} and {eps}")
        for i, beta in enumerate(betas):
            rate(f"betas[{i}]", beta, below=1.0)
        super().__init__(params, dict(lr=lr, betas=tuple(betas), eps=eps, maximize=maximize))

    def begin(self, p: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        return dict(step=0, exp_avg=full_like(p, 0.0), exp_avg_sq=full_like(p, 0.0))

    def update_sparse(self, params: list[Tensor], grads: list[SparseTensor], states: States, group: dict[str, Any]) -> None:
        for p, g, state in zip(params, grads, states):
            places, whole = g.parts[0][0], g.to_dense()
            used = zeros(p.shape[0]).index_add(0, places, ones(places.shape[0])) > 0
            overwrite(p, self._updated(p, whole, used, state, group).handle)

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        return self._updated(p, g, (g != 0).reshape((g.shape[0], -1)).any(1), state, group)

    def _updated(self, p: Tensor, g: Tensor, used: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        state["step"] += 1
        n, (first, second) = state["step"], group["betas"]
        used = used.reshape((-1, *(1 for _ in g.shape[1:])))
        g = -g if group["maximize"] else g
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.copy_(where(used, mean.lerp(g, 1 - first), mean))
        square.copy_(where(used, square.lerp(g * g, 1 - second), square))
        size = float(group["lr"]) * math.sqrt(1 - second**n) / (1 - first**n)
        return where(used, p - size * mean / (square.sqrt() + group["eps"]), p)
