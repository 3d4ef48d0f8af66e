"""`gt.poisson` and `gt.binomial`: counts drawn for each element of a tensor."""

from __future__ import annotations

from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.checks import require_of
from gt.client.grad_mode import no_grad
from gt.distributions import sampling
from gt.errors import ArgumentTypeError

__all__ = ["binomial", "poisson"]


def _floats(name: str, *tensors: Tensor) -> None:
    for t in tensors:
        if t.handle.spec.dtype.rank != 2:
            raise ArgumentTypeError(f"{name}: expected floating-point tensors, got {t.handle.spec.dtype.name}")


def poisson(input: Tensor, generator: Any = None) -> Tensor:
    """How many events happen, at the rates that the elements are."""
    _floats("poisson", input)
    require_of(input, lambda rate: (rate >= 0).all(), "poisson: a rate is 0 or more; found another")
    with no_grad():
        return sampling.poisson(input, generator)


def binomial(count: Tensor, prob: Tensor, generator: Any = None) -> Tensor:
    """How many of `count` trials succeed, each with the chance `prob`."""
    _floats("binomial", count, prob)
    if count.dtype is not prob.dtype:
        raise ArgumentTypeError(f"binomial: expected one dtype, got {count.dtype.name} and {prob.dtype.name}")
    require_of(count, lambda n: (n >= 0).all(), "binomial: a number of trials is 0 or more; found another")
    require_of(prob, lambda p: ((p >= 0) & (p <= 1)).all(), "binomial: a chance is from 0 to 1; found another")
    with no_grad():
        shape = (count + prob).shape
        return sampling.binomial(count.expand(shape), prob.expand(shape), generator)
