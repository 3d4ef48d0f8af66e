"""Registration of functions of the `gt` namespace and of methods of Tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.autograd import Tensor
from gt.errors import ArgumentTypeError

FUNCTIONS: dict[str, Callable] = {}


def function(f: Callable) -> Callable:
    """A function of the `gt` namespace."""
    FUNCTIONS[f.__name__.removeprefix("_")] = f
    return f


def method(f: Callable) -> Callable:
    """A method of Tensor."""
    setattr(Tensor, f.__name__, f)
    return f


def both(f: Callable) -> Callable:
    """A function, and a method by the same name whose first argument is the tensor."""
    return method(function(f))


def alias(name: str, f: Callable) -> Callable:
    """Another name for a function and method."""
    FUNCTIONS[name] = f
    setattr(Tensor, name, f)
    return f


def axis_spelling(axis: Any, dim: Any) -> Any:
    """The axis: NumPy's `axis` or PyTorch's `dim`."""
    if dim is not None and axis is not None:
        raise ArgumentTypeError(f"axis={axis!r} and dim={dim!r} mean the same argument: give one of them")
    return axis if dim is None else dim


def given(args: tuple) -> tuple:
    """Numbers given one by one or as one sequence: `x.view(2, 3)` and `x.view((2, 3))`."""
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else args
