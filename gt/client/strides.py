"""Strides and offsets that tensors would have in PyTorch. Results of ops are contiguous; the strides of a view follow from its
base's by its row (`Alias`)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from gt.client.autograd import Tensor
from gt.client.kinds import Known, Restricted
from gt.client.views import SAME, Custom, apart, spec_of
from gt.ops.movement import contiguous_strides
from gt.ops.table import Kind


@lru_cache(1 << 12)
def _strides(kind: Kind, base: tuple[int, ...]) -> tuple[int, ...] | None:
    assert kind.row.alias is not None
    return kind.row.alias.strides(kind.ins[0].shape, base, **kind.settings)


def strides(t: Tensor) -> tuple[int, ...]:
    """The strides that a tensor would have in PyTorch."""
    if t.base is not None and t.how is SAME:
        return strides(t.base)
    if type(t.how) is Custom:
        return t.how.strides(strides(t.base))  # type: ignore[arg-type]
    if t.base is not None:
        found = _strides((t.how.known if type(t.how) is Restricted else t.how).kind, strides(t.base))
        if found is not None:
            return found
    return contiguous_strides(spec_of(t).shape)


def offset(t: Tensor) -> int:
    """The storage offset that a tensor would have in PyTorch."""
    if t.base is None:
        return 0
    before = offset(t.base)
    if t.how is SAME:
        return before
    if type(t.how) is Custom:
        return t.how.offset(before)
    known: Any = t.how.known if type(t.how) is Restricted else t.how
    first = known.row.alias.offset
    numbers = (t.made or ())[3:]
    return before if first is None else first(before, strides(t.base), *numbers, **known.kind.settings)


def is_contiguous(t: Tensor) -> bool:
    """Whether strides are contiguous."""
    shape = spec_of(t).shape
    if t.base is None or 0 in shape:
        return True
    return all(d == 1 or s == want for d, s, want in zip(shape, strides(t), contiguous_strides(shape)))


def settle(reshaped: Tensor) -> Tensor:
    """Mark a reshaped tensor as a view if its source's strides allow it without a copy."""
    base = reshaped.base
    if base is None or base.base is None:
        return reshaped
    return reshaped if _strides(reshaped.how.kind if type(reshaped.how) is Known else reshaped.how.known.kind,
                                strides(base)) is not None else apart(reshaped)  # fmt: skip


def overlaps(t: Tensor) -> bool:
    """Whether several elements of a tensor share memory, as in an expanded one."""
    return t.base is not None and any(d > 1 and s == 0 for d, s in zip(spec_of(t).shape, strides(t)))
