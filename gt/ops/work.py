"""About how long a kind takes: a rough guess from the sizes of its operands, for one core of a CPU. Who uses it corrects it by
what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

from gt.ops.table import Kind, Row, WireSpec
from gt.spec import Spec

ELEMENTS = 1e-9  # seconds an element that is read or written
PRODUCTS = 5e-11  # seconds a product of two numbers within a matrix product
INSTRUCTION = 2e-6  # seconds at least
TOUCHED = 2.5e-10  # seconds an element that a kernel reads or writes, where it does little else
MULTIPLIED = 1.5e-11  # seconds a product of two numbers, at the speed of BLAS
CONVOLVED = 1e-10  # the same in a small convolution, most of which is moving numbers to where the library wants them


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


def grain(kind: Kind) -> float:
    """Seconds that a kernel takes on one core: what there is for several threads to share."""
    elements = sum(spec.numel for spec in (*kind.ins, *kind.outs) if isinstance(spec, Spec))
    return TOUCHED * elements + (kind.row.grain(kind) if kind.row.grain is not None else 0.0)


def cubic(kind: Kind) -> float:
    """The grain of an op on square matrices that takes as many products as they have rows, cubed."""
    return MULTIPLIED * float(max(spec.numel for spec in kind.ins if isinstance(spec, Spec)) ** 1.5)


def one_step(kind: Kind) -> float:
    """The grain of a recurrent layer, in which each step waits for the one before: batch by weights."""
    batch = kind.outs[0].shape[1] if kind.outs[0].ndim > 2 else 1
    return MULTIPLIED * batch * max(spec.numel for spec in kind.ins if isinstance(spec, Spec) and spec.ndim == 2)
