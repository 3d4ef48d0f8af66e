"""Many elements into one."""

from __future__ import annotations

from typing import Any, NamedTuple

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.functions import axis_spelling, both, method
from gt.ops.rules import axes_of, axis_of
from gt.ops.table import TABLE


def _reduction(name: str) -> Any:
    row = TABLE[name]

    def reduce(x: Tensor, axis: Any = None, keepdims: bool = False, *, dim: Any = None, keepdim: bool = False,
               dtype: Any = None) -> Tensor:  # fmt: skip
        if dtype is not None:
            x = x.to(dtype)
        axes = axes_of(axis_spelling(axis, dim), x.data.spec.ndim)
        if x.data.spec.ndim == 0:
            axes = ()
        return apply(row, (x,), (axes, bool(keepdims or keepdim)))

    reduce.__name__ = reduce.__qualname__ = name
    reduce.__doc__ = f"`{name}` over all elements, or along an axis or several."
    return both(reduce)


sum = _reduction("sum")
mean = _reduction("mean")
amax = _reduction("amax")
amin = _reduction("amin")


class Extreme(NamedTuple):
    """The largest or smallest values along an axis, and where they stand."""

    values: Tensor
    indices: Tensor


def _extreme(name: str, values: Any, row: Any) -> Any:
    def pick(x: Tensor, axis: Any = None, keepdims: bool = False, *, dim: Any = None, keepdim: bool = False) -> Any:
        axis = axis_spelling(axis, dim)
        if isinstance(axis, Tensor):
            return getattr(x, f"{name}imum")(axis)
        if axis is None:
            return values(x)
        keep = bool(keepdims or keepdim)
        at = apply(row, (x,), ((axis_of(axis, x.data.spec.ndim),), keep))
        return Extreme(values(x, axis, keep), at)

    pick.__name__ = pick.__qualname__ = name
    pick.__doc__ = f"The {name}imum of all elements, or along an axis with the indices, as PyTorch has it."
    return both(pick)


max = _extreme("max", amax, TABLE["argmax"])
min = _extreme("min", amin, TABLE["argmin"])


def _arg(name: str) -> Any:
    row = TABLE[name]

    def pick(x: Tensor, axis: Any = None, keepdims: bool = False, *, dim: Any = None, keepdim: bool = False) -> Tensor:
        axis = axis_spelling(axis, dim)
        keep = bool(keepdims or keepdim)
        if axis is None:
            found = apply(row, (x.reshape(-1),), ((0,), False))
            return found.reshape((1,) * x.data.spec.ndim) if keep else found
        return apply(row, (x,), ((axis_of(axis, x.data.spec.ndim),), keep))

    pick.__name__ = pick.__qualname__ = name
    pick.__doc__ = "Where the extreme element stands, among all or along an axis."
    return both(pick)


argmax = _arg("argmax")
argmin = _arg("argmin")


@method
def sum_to(self: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The sum over the axes along which `shape` would be broadcast to this tensor."""
    have = self.data.spec.shape
    lead = len(have) - len(shape)
    axes = tuple(range(lead)) + tuple(lead + i for i, d in enumerate(shape) if d == 1 and have[lead + i] != 1)
    out = apply(TABLE["sum"], (self,), (axes, False)) if axes else self
    return out if out.data.spec.shape == shape else out.reshape(shape)
