"""The estimated time of a kind on one core of a CPU, from the specs of its operands and results. Flow control, the pause points
of programs, the number of a kernel's threads and the shares of ops in a program's time all use this estimate. Flow control
corrects it by the device time that workers measure."""

from __future__ import annotations

from operator import attrgetter

from gt.ops.op_times import NANOSECONDS, ONE_THREAD, SHORT_ROWS
from gt.ops.table import Kind
from gt.spec import Spec

INSTRUCTION = 2e-6  # seconds of an instruction without elements
ELEMENT = 2.5e-10  # seconds to read or write an element
ROW = 5.0  # nanoseconds to begin a row of a tensor that is broadcast or reduced
PRODUCT = 1.5e-11  # seconds of a multiplication and addition in BLAS
CONV_PRODUCT = 1e-10  # the same in a small convolution, which takes most of its time to copy elements


def estimated_seconds(kind: Kind) -> float:
    """The time of an instruction: a constant, its elements read and written, rows begun, and its row's own time."""
    specs = [spec for spec in (*kind.ins, *kind.outs) if type(spec) is Spec]
    compute = kind.row.compute_seconds
    seconds = INSTRUCTION + ELEMENT * sum([spec.numel for spec in specs]) + (compute(kind) if compute is not None else 0.0)
    if not specs:
        return seconds
    name, largest = kind.row.name, max(specs, key=attrgetter("numel"))
    nanoseconds = NANOSECONDS.get(name, 0.0) * largest.numel
    if len(largest.shape) > 1 and (name in SHORT_ROWS or any(s.shape and s.shape != largest.shape for s in specs)):
        nanoseconds += SHORT_ROWS.get(name, ROW) * largest.numel / max(largest.shape[-1], 1)
    return seconds + 1e-9 * nanoseconds


def parallel_seconds(kind: Kind) -> float:
    """The part of the time that threads can share before they have to wait for one another."""
    if kind.row.name in ONE_THREAD:
        return 0.0
    steps = kind.row.sequential_steps
    return estimated_seconds(kind) / (max(1, steps(kind)) if steps is not None else 1)


def cubic(kind: Kind) -> float:
    """`compute_seconds` of an op on matrices that takes about n ** 3 products for a matrix of n rows and columns."""
    return PRODUCT * float(max(s.numel * min(s.shape[-2:], default=1) for s in kind.ins if isinstance(s, Spec)))


def iterative(kind: Kind) -> float:
    """The same of an op that repeats such steps until it converges: singular values, eigenvalues, series."""
    return 25 * cubic(kind)
