"""Gradient clipping, and parameters as one vector."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from gt.client.autograd import Tensor
from gt.client.foreach import foreach as _foreach
from gt.client.foreach import overwrite_all, plain
from gt.client.functions.create import full
from gt.client.functions.join import cat
from gt.client.grad_mode import no_grad
from gt.client.handle import Handle
from gt.ops.table import TABLE


def _gradients(parameters: Any) -> list[Tensor]:
    """The parameters that have gradients; sparse ones become dense, since their indices may occur twice."""
    given = [p for p in ([parameters] if isinstance(parameters, Tensor) else parameters) if p.grad is not None]
    for p in given:
        g: Any = p.grad
        if not isinstance(g, Tensor):
            p.grad = g.to_dense()
    return given


def _alike(tensors: list[Tensor], keys: list[Any]) -> list[list[Tensor]]:
    """The tensors grouped by key."""
    if len(set(keys)) == 1:
        return [tensors]
    found: dict[Any, list[Tensor]] = {key: [] for key in keys}
    for key, t in zip(keys, tensors):
        found[key].append(t)
    return list(found.values())


@no_grad()
def get_total_norm(tensors: Iterable[Tensor], norm_type: float = 2.0, error_if_nonfinite: bool = False) -> Tensor:
    """The norm of all elements of these tensors together: a few instructions for all of them."""
    parts: list[Tensor] = []
    given = list(tensors)
    for same in _alike(given, [len(t.handle.spec.shape) for t in given]):
        (norms,) = _foreach(TABLE["norm"], (same,), (float(norm_type), tuple(range(same[0].ndim)), False))
        parts += map(Tensor, norms)
    if not parts:
        return full((), 0.0)
    total = parts[0]
    if len(parts) > 1:
        (rows,) = _foreach(TABLE["reshape"], (parts,), ((1,),))
        total = cat([Tensor(row) for row in rows]).norm(float(norm_type))
    if error_if_nonfinite and not math.isfinite(total.item()):
        raise RuntimeError(f"the norm of order {norm_type:g} of the gradients is {total.item()}, which cannot be clipped")
    return total


def _change(parameters: Any, change: Callable[[list[Tensor]], list[Handle]]) -> None:
    """Set the values of the gradients, by one instruction for each dtype."""
    given = _gradients(parameters)
    for params in _alike(given, [p.grad.handle.spec.dtype if p.grad is not None else None for p in given]):
        grads: list[Any] = [p.grad for p in params]
        values = change(grads)
        if plain(grads):
            overwrite_all(grads, values)
        else:
            for p, value in zip(params, values):
                p.grad = Tensor(value)


@no_grad()
def clip_grads_with_norm_(parameters: Any, max_norm: float, total_norm: Tensor, foreach: bool | None = None) -> None:
    """Scale gradients of a known norm down to `max_norm`."""
    scale = (float(max_norm) / (total_norm + 1e-6)).minimum(1.0)
    _change(parameters, lambda grads: _foreach(TABLE["mul"], (grads, scale.to(grads[0].dtype)))[0])


def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> Tensor:
    """Scale the gradients down so that their total norm is at most `max_norm`; returns the norm before."""
    given = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    total = get_total_norm([p.grad for p in _gradients(given)], norm_type, error_if_nonfinite)
    clip_grads_with_norm_(given, max_norm, total)
    return total


@no_grad()
def clip_grad_value_(parameters: Any, clip_value: float, foreach: bool | None = None) -> None:
    """Clip each element of the gradients to [-clip_value, clip_value]."""
    most = float(clip_value)
    _change(parameters, lambda grads: _foreach(TABLE["clamp"], (grads, -most, most))[0])


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    return cat([p.reshape(-1) for p in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    at = 0
    for p in parameters:
        p.handle = vec[at : at + p.numel()].reshape(p.shape).handle
        at += p.numel()
