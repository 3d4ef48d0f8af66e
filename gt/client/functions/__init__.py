"""What users call: functions of the `gt` namespace and methods of Tensor, a module a family. Pointwise ones come from the
op table; the rest normalise their arguments (NumPy's and PyTorch's spellings both) and apply a row."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from gt.client.apply import apply, as_operand, binary, binary_of, unary, unary_of
from gt.client.autograd import Tensor
from gt.errors import ArgumentTypeError
from gt.ops.table import TABLE, Row, rows

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
        raise ArgumentTypeError("axis and dim are two words for one thing: give one")
    return axis if dim is None else dim


def as_tensor(x: Any) -> Tensor:
    if isinstance(x, Tensor):
        return x
    from gt.client.functions.create import tensor

    return tensor(x)


def _pointwise(row: Row) -> Callable:
    """The function of a pointwise row."""
    assert row.kernel is not None
    names = [p for p in list(inspect.signature(row.kernel).parameters)[1:] if not p.startswith("_")]
    call: Callable

    if row.grad is None or len(names) > 2:

        def call(*operands: Any) -> Tensor:
            first, *rest = operands
            return apply(row, (as_tensor(first), *(o if isinstance(o, Tensor) else as_operand(o) for o in rest)))
    elif len(names) == 1:

        def call(a: Any) -> Tensor:
            return unary(row, a if isinstance(a, Tensor) else as_tensor(a))
    else:

        def call(a: Any, b: Any) -> Tensor:
            return binary(row, a if isinstance(a, Tensor) else as_tensor(a), b)

    call.__name__ = call.__qualname__ = row.name
    call.__doc__ = f"`{row.name}`, element by element."
    return call


for _row in rows():
    if _row.pointwise and not _row.statics:
        _call = _pointwise(_row)
        setattr(Tensor, _row.name, _call)
        if not _row.name.endswith("_grad"):
            FUNCTIONS[_row.name] = _call


_SHORT: dict[tuple[str, int], Callable] = {}  # rows of one result and at most two operands, met before: the shorter way


@method
def op(self: Tensor, name: str, *operands: Any, **statics: Any) -> Any:
    """Apply a row of the op table with this tensor as its first operand."""
    short = not statics and _SHORT.get((name, len(operands)))
    if short:
        return short(self, *operands)
    row = TABLE[name]
    found = apply(row, (self, *operands), tuple([statics[n] for n in row.statics]))
    if not row.statics and len(operands) < 2 and row.grad is not None and isinstance(found, Tensor):
        _SHORT[name, len(operands)] = (unary_of, binary_of)[len(operands)](row)
    return found


from gt.client.functions import (  # noqa: E402
    complex_numbers,
    create,
    dtype_info,
    elementwise,
    factor,
    finite_differences,
    fourier,
    hooks,
    index,
    index_arrays,
    leastsquares,
    linalg,
    more_elementwise,
    movement,
    norm,
    numeric,
    operators,
    products,
    quantiles,
    random,
    read,
    reduce,
    reshape,
    scatter,
    settings,
    sort,
    sparse,
    special,
    torch_exchange,
    view_copies,
)

# isort: split
from gt.client.functions import arguments as arguments  # noqa: E402 - it checks what the others were given

# isort: split
from gt.client.functions import out as out  # noqa: E402 - last: it wraps them all

__all__ = [
    "FUNCTIONS",
    "linalg",
    "special",
    "arguments",
    "complex_numbers",
    "view_copies",
    "create",
    "torch_exchange",
    "factor",
    "fourier",
    "more_elementwise",
    "hooks",
    "index",
    "dtype_info",
    "leastsquares",
    "movement",
    "operators",
    "sort",
    "out",
    "settings",
]
__all__ += [
    "index_arrays",
    "elementwise",
    "products",
    "quantiles",
    "random",
    "read",
    "reduce",
    "scatter",
    "reshape",
    "norm",
    "finite_differences",
    "sparse",
    "numeric",
]
