"""Gradients held within bounds, and parameters as one vector."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.create import full
from gt.client.functions.reshape import cat, stack
from gt.client.scope import no_grad


def _gradients(parameters: Any) -> list[Tensor]:
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    return [p for p in given if p.grad is not None]


@no_grad()
def get_total_norm(tensors: Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False) -> Tensor:
    """The norm of all elements of these tensors together."""
    parts = [t.norm(float(norm_type)) for t in tensors]
    if not parts:
        return full((), 0.0)
    total = stack(parts).norm(float(norm_type)) if len(parts) > 1 else parts[0]
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise RuntimeError(f"the norm of order {norm_type:g} of the gradients is {total.item()}, which cannot be clipped")
    return total


@no_grad()
def clip_grads_with_norm_(parameters: Any, max_norm: float, total_norm: Tensor, foreach: bool | None = None) -> None:
    """Scale gradients of a known norm down to `max_norm`."""
    scale = (float(max_norm) / (total_norm + 1e-6)).minimum(1.0)
    for p in _gradients(parameters):
        p.grad = p.grad * scale.to(p.grad.dtype)  # type: ignore[union-attr]


def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> Tensor:
    """Scale the gradients down so that their norm, all together, is at most `max_norm`; the norm they had comes back."""
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    total = get_total_norm([p.grad for p in _gradients(given)], norm_type, error_if_nonfinite)
    clip_grads_with_norm_(given, max_norm, total)
    return total


@no_grad()
def clip_grad_value_(parameters: Any, clip_value: float, foreach: bool | None = None) -> None:
    """Bring each element of the gradients into [-clip_value, clip_value]."""
    for p in _gradients(parameters):
        p.grad = p.grad.clamp(min=-float(clip_value), max=float(clip_value))  # type: ignore[union-attr]


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    return cat([p.reshape(-1) for p in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    at = 0
    for p in parameters:
        p.handle = vec[at : at + p.numel()].reshape(p.shape).handle
        at += p.numel()
