"""Gradients held against differences of the function itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gt.autograd.functional import jacobian
from gt.autograd.walk import grad, several
from gt.client.autograd import Tensor
from gt.client.functions.create import from_numpy
from gt.spec import float64


class GradcheckError(RuntimeError):
    """A gradient that differs from finite differences."""


def gradcheck(
    func: Callable, inputs: Tensor | Sequence[Any], *, eps: float = 1e-6, atol: float = 1e-5, rtol: float = 1e-3,
    raise_exception: bool = True, nondet_tol: float = 0.0, check_undefined_grad: bool = True, fast_mode: bool = False,
) -> bool:  # fmt: skip
    """Whether the gradients of `func` agree with central differences. Want float64 inputs with requires_grad."""
    args = several(inputs)
    wanted = [i for i, a in enumerate(args) if isinstance(a, Tensor) and a.requires_grad]
    if not wanted:
        raise ValueError("gradcheck: expected at least one input with requires_grad=True")
    for i in wanted:
        if args[i].dtype is not float64:
            raise ValueError(
                f"gradcheck: expected float64 inputs, got {args[i].dtype.name} for input {i}, too coarse for differences"
            )

    def outputs(*xs: Tensor) -> list[Tensor]:
        full = list(args)
        for i, x in zip(wanted, xs):
            full[i] = x
        return [y for y in several(func(*full)) if isinstance(y, Tensor) and y.handle.spec.dtype.rank == 2]

    found = jacobian(lambda *xs: tuple(outputs(*xs)), tuple(args[i].detach() for i in wanted))
    for at, i in enumerate(wanted):
        for o, measured in enumerate(_differences(outputs, [args[j] for j in wanted], at, eps)):
            said = found[o][at].numpy().reshape(measured.shape)
            if not np.allclose(said, measured, rtol, atol, equal_nan=True):
                if raise_exception:
                    raise GradcheckError(
                        f"the gradient of output {o} by input {i} differs from finite differences:\n{said}\nagainst\n{measured}"
                    )
                return False
    return True


def _differences(outputs: Callable, xs: list[Tensor], at: int, eps: float) -> list[np.ndarray]:
    """For each output, (elements of it, elements of x), by changing one element of x after another."""
    base = xs[at].numpy().astype(np.float64)
    columns: list[list[np.ndarray]] = []
    for i in range(base.size):
        sides = []
        for step in (eps, -eps):
            moved = base.copy()
            moved.reshape(-1)[i] += step
            changed = from_numpy(moved, requires_grad=True)  # the function may itself take gradients
            sides.append([y.numpy() for y in outputs(*[changed if n == at else x for n, x in enumerate(xs)])])
        columns.append([(high - low).reshape(-1) / (2 * eps) for high, low in zip(*sides)])
    count = len(columns[0]) if columns else 0
    return [np.stack([c[o] for c in columns], axis=1) for o in range(count)]


def gradgradcheck(
    func: Callable, inputs: Tensor | Sequence[Any], grad_outputs: Any = None, *, eps: float = 1e-6, atol: float = 1e-5,
    rtol: float = 1e-3, raise_exception: bool = True,
) -> bool:  # fmt: skip
    """The same of the gradients themselves."""
    args = several(inputs)
    wanted = [a for a in args if isinstance(a, Tensor) and a.requires_grad]

    def slopes(*xs: Any) -> tuple:
        ys = [y for y in several(func(*xs)) if y.requires_grad]
        rng = np.random.default_rng(0)
        given = grad_outputs
        if given is None:
            given = [from_numpy(rng.standard_normal(y.shape)).to(y.dtype) for y in ys]
        by = [x for x in xs if isinstance(x, Tensor) and x.requires_grad]
        return tuple(grad(ys, by, given, create_graph=True, allow_unused=True, materialize_grads=True))

    assert wanted, "gradgradcheck: expected an input with requires_grad=True"
    return gradcheck(slopes, args, eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception)
