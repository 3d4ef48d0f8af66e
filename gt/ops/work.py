"""About how long a kind takes: a rough guess from the sizes of its operands, for one core of a CPU. Who uses it corrects it by
what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

from gt.ops.table import Row, WireSpec

ELEMENTS = 1e-9  # seconds an element that is read or written
PRODUCTS = 5e-11  # seconds a product of two numbers within a matrix product
INSTRUCTION = 2e-6  # seconds at least


def guess(row: Row, ins: Iterable[WireSpec]) -> float:
    """Seconds for one instruction on operands of these specs, as they are written in messages: the number of a dtype, and the
    shape; of a number in a tensor's place, a number below zero alone."""
    shapes = [tuple(spec[1:]) for spec in ins if spec[0] >= 0]
    sizes = [prod(shape) for shape in shapes]
    seconds = INSTRUCTION + ELEMENTS * sum(sizes)
    if row.blas and len(shapes) > 1 and shapes[0]:
        seconds += PRODUCTS * sizes[0] * sizes[1] / max(1, shapes[0][-1])
    return seconds


def guess_made(row: Row, ins: Iterable[WireSpec], outs: Iterable[Any]) -> float:
    """The same, where the specs of the results are known."""
    return guess(row, ins) + ELEMENTS * sum(spec.numel for spec in outs)
