"""Gradients of some tensors with respect to others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gt.client import backward as tape
from gt.client.autograd import Tensor
from gt.client.functions.create import full, zeros

Tensors = Tensor | Sequence[Tensor]


def several(x: Any) -> list:
    """One tensor or a sequence of them, as a list."""
    return [x] if isinstance(x, Tensor) or x is None else list(x)


def seeds(outputs: list[Tensor], given: Any) -> list[Tensor]:
    """The gradients that a walk starts with: those given, and one where the output is a single number."""
    wanted = several(given) if given is not None else [None] * len(outputs)
    if len(wanted) != len(outputs):
        raise ValueError(f"{len(outputs)} outputs: expected as many gradients, got {len(wanted)}")
    found = []
    for output, seed in zip(outputs, wanted):
        spec = output.handle.spec
        if seed is None:
            if spec.numel != 1:
                raise RuntimeError(
                    f"the gradient of an output of {spec.shape} must be given: only a single number has a default"
                )
            seed = full(spec.shape, 1.0, dtype=spec.dtype)
        elif seed.handle.spec.shape != spec.shape:
            raise ValueError(f"the gradient of an output of {spec.shape}: expected that shape, got {seed.handle.spec.shape}")
        found.append(seed)
    return found


def grad(
    outputs: Tensors, inputs: Tensors, grad_outputs: Any = None, retain_graph: bool | None = None,
    create_graph: bool = False, only_inputs: bool = True, allow_unused: bool | None = None, is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The gradients of the sum of the outputs with respect to the inputs; `.grad` is left alone.

    >>> x = gt.tensor(3.0, requires_grad=True)
    >>> (dy,) = gt.autograd.grad(x**3, x, create_graph=True)
    >>> gt.autograd.grad(dy, x)
    (tensor(18.),)
    """
    if is_grads_batched:
        raise NotImplementedError("batched gradients: call grad once for each")
    roots, leaves = several(outputs), several(inputs)
    for t in leaves:
        if not t.requires_grad:
            raise RuntimeError("one of the inputs has no gradient: expected requires_grad=True")
    if not any(t.requires_grad for t in roots):
        raise RuntimeError("no gradient leads to these outputs: expected requires_grad=True somewhere before them")
    keep = create_graph if retain_graph is None else retain_graph
    found = tape.backward(roots, seeds(roots, grad_outputs), keep, create_graph, leaves)
    if materialize_grads:
        return tuple(zeros(t.shape, dtype=t.dtype) if g is None else g for t, g in zip(leaves, found))
    if not allow_unused and any(g is None for g in found):
        at = [i for i, g in enumerate(found) if g is None]
        raise RuntimeError(f"inputs {at} are not behind the outputs: allow_unused=True gives None for those")
    return tuple(found)


def backward(
    tensors: Tensors, grad_tensors: Any = None, retain_graph: bool | None = None, create_graph: bool = False,
    inputs: Tensors | None = None,
) -> None:  # fmt: skip
    """Gradients of the sum of the tensors into `.grad` of the leaves, or of the inputs named."""
    roots = several(tensors)
    if not any(t.requires_grad for t in roots):
        raise RuntimeError("backward() of tensors that no gradient leads to: expected requires_grad=True somewhere before them")
    keep = create_graph if retain_graph is None else retain_graph
    leaves = several(inputs) if inputs is not None else None
    found = tape.backward(roots, seeds(roots, grad_tensors), keep, create_graph, leaves)
    for t, g in zip(leaves or (), found):
        if g is not None:
            tape.accumulate(t, g)
