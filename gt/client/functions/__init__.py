"""What users call: functions of the `gt` namespace and methods of Tensor, a module a family. Pointwise ones come from the
op table; the rest normalise their arguments (NumPy's and PyTorch's spellings both) and apply a row."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from gt.client.apply import apply, as_operand, binary, unary
from gt.client.autograd import Tensor
from gt.client.scope import is_grad_enabled
from gt.ops.table import Row, rows

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
    """NumPy says axis, PyTorch says dim."""
    if dim is not None and axis is not None:
        raise TypeError("axis and dim are two words for one thing: give one")
    return axis if dim is None else dim


def as_tensor(x: Any) -> Tensor:
    if isinstance(x, Tensor):
        return x
    from gt.client.functions.creation import tensor

    return tensor(x)


def _pointwise(row: Row) -> Callable:
    """The function of a pointwise row."""
    names = [p for p in list(inspect.signature(row.kernel).parameters)[1:] if not p.startswith("_")]

    if len(names) == 1:

        def call(a: Any) -> Tensor:
            return unary(row, a if isinstance(a, Tensor) else as_tensor(a))
    elif len(names) == 2:

        def call(a: Any, b: Any) -> Tensor:
            return binary(row, a if isinstance(a, Tensor) else as_tensor(a), b)
    else:

        def call(*operands: Any) -> Tensor:
            return apply(row, tuple(o if isinstance(o, Tensor) else as_operand(o) for o in operands))

    call.__name__ = call.__qualname__ = row.name
    call.__doc__ = f"`{row.name}`, element by element."
    return call


def _general(row: Row) -> Callable:
    """A row as a method, for gradients: operands in order, statics by name."""

    def call(*operands: Any, **statics: Any) -> Any:
        return apply(row, operands, tuple(statics[n] if n in statics else row.defaults[n] for n in row.statics))

    call.__name__ = call.__qualname__ = row.name
    return call


def _lowered(row: Row, call: Callable) -> Callable:
    """A row without a gradient of its own: where one is wanted, what it says in other rows."""
    lower = row.lower
    assert lower is not None

    def choose(*operands: Any, **statics: Any) -> Any:
        if is_grad_enabled() and any(isinstance(o, Tensor) and o.requires_grad for o in operands):
            return lower(*operands, **statics)
        return call(*operands, **statics)

    choose.__name__ = choose.__qualname__ = row.name
    return choose


for _row in rows():
    _plain = _row.pointwise and not _row.statics
    _call = _pointwise(_row) if _plain else _general(_row)
    setattr(Tensor, _row.name, _lowered(_row, _call) if _row.grad is None and _row.lower else _call)
    if _plain and not _row.name.endswith("_grad"):
        FUNCTIONS[_row.name] = _call

from gt.client.functions import creation, exchange, hooks, indexing, operators, reading, reductions, shapes  # noqa: E402

__all__ = ["FUNCTIONS", "creation", "exchange", "hooks", "indexing", "operators", "reading", "reductions", "shapes"]
