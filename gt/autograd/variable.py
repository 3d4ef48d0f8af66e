"""`Variable`, PyTorch's name for a tensor before 0.4, which scripts still write."""

from __future__ import annotations

from typing import Any

from gt.client.autograd import Tensor
from gt.client.grad_mode import no_grad

__all__ = ["Variable"]


class _Variables(type):
    def __call__(cls, data: Any, requires_grad: bool = False, volatile: bool = False) -> Tensor:
        with no_grad():
            made: Tensor = data.detach()
        return made.requires_grad_(True) if requires_grad else made

    def __instancecheck__(cls, thing: Any) -> bool:
        return isinstance(thing, Tensor)


class Variable(metaclass=_Variables):
    """`Variable(x)` is the tensor x, `Variable(x, requires_grad=True)` a leaf with its value; every tensor is an instance.

    >>> gt.autograd.Variable(gt.ones(2), requires_grad=True)
    tensor([1., 1.], requires_grad=True)
    """
