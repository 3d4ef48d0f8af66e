"""Functions and methods of pointwise rows, generated from the op table; and `op`, by which gradients apply any row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.apply import apply, as_operand, binary_of, unary_of
from gt.client.autograd import Tensor
from gt.client.functions.create import as_tensor
from gt.client.functions.registry import FUNCTIONS, method
from gt.ops.table import TABLE, Row, rows
from gt.parameters import parameters


def _pointwise(row: Row) -> Callable:
    """The function of a pointwise row."""
    assert row.kernel is not None
    names = [p for p in parameters(row.kernel).names[1:] if not p.startswith("_")]
    call: Callable

    if len(names) > 2:

        def call(*operands: Any) -> Tensor:
            first, *rest = operands
            return apply(row, (as_tensor(first), *(o if isinstance(o, Tensor) else as_operand(o) for o in rest)))
    elif len(names) == 1 and row.grad is None:

        def call(input: Any) -> Tensor:
            return apply(row, (as_tensor(input),))
    elif row.grad is None:

        def call(input: Any, other: Any) -> Tensor:
            return apply(row, (as_tensor(input), other if isinstance(other, Tensor) else as_operand(other)))
    elif len(names) == 1:
        one = unary_of(row)

        def call(input: Any) -> Tensor:
            return one(input if isinstance(input, Tensor) else as_tensor(input))
    else:
        two = binary_of(row)

        def call(input: Any, other: Any) -> Tensor:
            return two(input if isinstance(input, Tensor) else as_tensor(input), other)

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
