"""Counts of values."""

from __future__ import annotations

from gt.errors import UnsupportedDTypeError
from gt.ops.table import Values, op
from gt.spec import Partial, Shard, Spec, float32, float64, int64


def _bincount(xp, a, *weight, size):
    """Values are checked first: NumPy allocates as many counts as the largest, and writes outside of them at 2 ** 63 - 1."""
    if a.shape[0]:
        low, high = int(a.min()), int(a.max())
        if low < 0 or high >= size:
            raise IndexError(f"bincount with {size} counts: expected values from 0 to {size - 1}, got {low} to {high}")
    return xp.bincount(a, *weight, minlength=size)


def _counted(a: Spec, *weight: Spec, size: int) -> Spec:
    if a.dtype.rank != 1:
        raise UnsupportedDTypeError(f"bincount: expected integers, got {a.dtype.name}")
    if a.ndim != 1:
        raise ValueError(f"bincount: expected one axis of integers, got {a}")
    if not weight:
        return Spec((size,), int64)
    if weight[0].shape != a.shape:
        raise ValueError(f"bincount of {a.shape}: expected as many weights, got {weight[0].shape}")
    return Spec((size,), weight[0].dtype if weight[0].dtype in (float32, float64) else float64)


op("bincount", shape=_counted, shard=lambda kind: [((Shard(0),) * len(kind.ins), (Partial(),))],
   tries=(((Values(Spec((6,), int64), 0, 4),), {"size": 5}),
          ((Values(Spec((6,), int64), 0, 4), Spec((6,), float32)), {"size": 4})),
   kernel=_bincount)  # fmt: skip
