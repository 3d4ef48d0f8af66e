"""Whole derivatives of functions: Jacobians, Hessians and their products with vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gt.autograd.walk import grad, several
from gt.client.autograd import Tensor
from gt.client.functions.create import from_numpy, ones, zeros
from gt.client.functions.join import stack
from gt.client.grad_mode import enable_grad


def fresh(t: Tensor, keep: bool) -> Tensor:
    """A variable of the same value to differentiate by; with `keep`, one that the tape behind `t` goes on from."""
    if keep and t.requires_grad:
        return t * 1
    return Tensor(t.handle, True)


def _unit(spec: Any, i: int) -> Tensor:
    """Zeros with a one at element i."""
    array = np.zeros(spec.numel, np.float32)
    array[i] = 1
    return from_numpy(array.reshape(spec.shape)).to(spec.dtype)


def _rows(y: Tensor, xs: list[Tensor], graph: bool, strict: bool) -> list[Tensor]:
    """For each x, the gradients of every element of y, as (*y.shape, *x.shape)."""
    spec = y.handle.spec
    parts: list[list[Tensor]] = [[] for _ in xs]
    for i in range(spec.numel):
        found: tuple = (None,) * len(xs)
        if y.requires_grad:
            found = grad(y, xs, _unit(spec, i), retain_graph=True, create_graph=graph, allow_unused=True)
        for x, g, part in zip(xs, found, parts):
            if g is None and strict:
                raise RuntimeError("an output does not depend on one of the inputs, and strict=True asks that it does")
            part.append(zeros(x.shape, dtype=x.dtype) if g is None else g)
    return [
        stack(p).reshape(*spec.shape, *x.shape) if p else zeros(*spec.shape, *x.shape, dtype=x.dtype) for p, x in zip(parts, xs)
    ]


def jacobian(
    func: Callable, inputs: Any, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:  # fmt: skip
    """The derivatives of every element of the result by every element of the inputs.

    >>> gt.autograd.functional.jacobian(lambda x: x**2, gt.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    single = isinstance(inputs, Tensor)
    with enable_grad():
        xs = [fresh(t, create_graph) for t in several(inputs)]
        ys = func(*xs)
        found = [_rows(y, xs, create_graph, strict) for y in several(ys)]
    shaped: list = [row[0] if single else tuple(row) for row in found]
    return shaped[0] if isinstance(ys, Tensor) else tuple(shaped)


def hessian(
    func: Callable, inputs: Any, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:  # fmt: skip
    """The second derivatives of a function that gives a single number."""
    single = isinstance(inputs, Tensor)

    def slopes(*xs: Tensor) -> Any:
        y = func(*xs)
        if y.handle.spec.numel != 1:
            raise RuntimeError(f"a Hessian: expected a function that gives one number, got {y.handle.spec.shape}")
        found = grad(y.reshape(()), list(xs), create_graph=True, allow_unused=not strict)
        filled = tuple(zeros(x.shape, dtype=x.dtype) if g is None else g for x, g in zip(xs, found))
        return filled[0] if single else filled

    return jacobian(slopes, inputs, create_graph=create_graph)


def vjp(func: Callable, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """The result, and the product of v with the Jacobian."""
    single = isinstance(inputs, Tensor)
    with enable_grad():
        xs = [fresh(t, create_graph) for t in several(inputs)]
        ys = func(*xs)
        found = grad(ys, xs, v, create_graph=create_graph, allow_unused=not strict, materialize_grads=not strict)
    out = ys if create_graph else ys.detach() if isinstance(ys, Tensor) else tuple(y.detach() for y in ys)
    return out, found[0] if single else found


def _along(gradients: Any, of: list, directions: Any, create_graph: bool) -> tuple:
    """The gradients, by `of`, of these gradients weighted by directions; zero where they do not depend on it."""
    reached = [(g, v) for g, v in zip(gradients, directions) if g is not None and g.requires_grad]
    if not reached:
        return tuple(zeros(x.shape, dtype=x.dtype) for x in of)
    gs, vs = map(list, zip(*reached))
    return grad(gs, of, vs, create_graph=create_graph, allow_unused=True, materialize_grads=True)


def jvp(func: Callable, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """The result, and the product of the Jacobian with v: the gradient, by the weights, of the result of `vjp` for them."""
    with enable_grad():
        xs = [fresh(t, create_graph) for t in several(inputs)]
        ys = func(*xs)
        weights = [zeros(y.shape, dtype=y.dtype, requires_grad=True) for y in several(ys)]
        pulled = grad(several(ys), xs, weights, create_graph=True, allow_unused=not strict, materialize_grads=not strict)
        found = _along(pulled, weights, [ones(x.shape, dtype=x.dtype) for x in xs] if v is None else several(v), create_graph)
    out = ys if create_graph else ys.detach() if isinstance(ys, Tensor) else tuple(y.detach() for y in ys)
    return out, found[0] if isinstance(ys, Tensor) else found


def vhp(func: Callable, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """The result of a function that gives a single number, and the product of v with its Hessian."""
    single = isinstance(inputs, Tensor)
    with enable_grad():
        xs = [fresh(t, create_graph) for t in several(inputs)]
        y = func(*xs)
        slopes = grad(y, xs, create_graph=True, allow_unused=not strict, materialize_grads=not strict)
        found = _along(slopes, xs, [ones(x.shape, dtype=x.dtype) for x in xs] if v is None else several(v), create_graph)
    return (y if create_graph else y.detach()), found[0] if single else found


def hvp(func: Callable, inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """The result, and the product of the Hessian, which is symmetric, with v."""
    return vhp(func, inputs, v, create_graph, strict)
