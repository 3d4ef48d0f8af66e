"""Logical and bitwise ops, and a tensor's bits as another dtype. Rows have PyTorch's names; none has a gradient."""

from __future__ import annotations

from functools import partial

from gt.errors import UnsupportedDTypeError
from gt.ops import table
from gt.ops.elementwise import INTS, ONE, TWO
from gt.ops.rules import by_axis, compare, pointwise
from gt.ops.table import Alias, Kind, Operand, Rule, Try, Values
from gt.spec import DTYPES, Shard, Spec, bool_, complex64, float32, int16, int64

op = partial(table.op, pointwise=True, shard=by_axis)

BOOLS: Try = ((Spec((2, 3), bool_), Spec((3,), bool_)), {})
MASKS: Try = ((Spec((3,), int64), int), {})
SHIFTS: Try = ((Spec((2, 3), int64), Values(Spec((3,), int64), 0, 5)), {})


def _whole(name: str, bools: bool = True):
    """Broadcast and promote integers, and booleans if the op takes them."""

    def rule(*operands: Operand) -> Spec:
        out = pointwise(*operands)
        if out.dtype.rank >= 2 or out.dtype is bool_ and not bools:
            want = "integers or booleans" if bools else "integers"
            raise UnsupportedDTypeError(f"{name}: expected {want}, got {out.dtype.name}")
        return out

    return rule


def _bitcast(a: Spec, *, old, new) -> Spec:
    """The last axis grows or shrinks by the ratio of the elements' sizes."""
    if a.dtype.code != old:
        raise TypeError(f"bitcast: expected {DTYPES[old].name}, got {a.dtype.name}")
    have, want = a.dtype.size, DTYPES[new].size
    if have == want:
        return Spec(a.shape, DTYPES[new])
    if not a.shape or a.shape[-1] * have % want:
        raise ValueError(
            f"cannot view {DTYPES[old].name} of shape {a.shape} as {DTYPES[new].name}: expected a last axis of "
            f"whole elements of {want} bytes"
        )
    return Spec((*a.shape[:-1], a.shape[-1] * have // want), DTYPES[new])


def _bitcast_rules(kind: Kind) -> list[Rule]:
    free = len(kind.ins[0].shape) - (kind.ins[0].shape[-1:] != kind.outs[0].shape[-1:])
    return [((Shard(i),), (Shard(i),)) for i in range(free)]


def _bitcast_strides(shape, strides, *, old, new) -> tuple[int, ...]:
    have, want = DTYPES[old].size, DTYPES[new].size
    return strides if have == want else (*(s * have // want for s in strides[:-1]), 1)


table.op("bitcast", complex="own", shape=_bitcast, shard=_bitcast_rules, view=True,
   alias=Alias(_bitcast_strides, lambda base, piece, *, old, new: piece.op("bitcast", old=new, new=old),
               lambda first, strides, *, old, new: first * DTYPES[old].size // DTYPES[new].size),
   tries=(((Spec((2, 4), float32),), {"old": float32.code, "new": int16.code}),
          ((Spec((2, 4), float32),), {"old": float32.code, "new": complex64.code})),
   kernel=lambda xp, a, *, old, new: xp.bitcast(a, old, new))  # fmt: skip


def _invert(xp, a):
    return xp.logical_not(a) if a.dtype == xp.dtype(bool_.code) else xp.bitwise_not(a)


op("isnan", complex="analytic", shape=compare, tries=(ONE, ((Spec((3,), int64),), {})),
   kernel=lambda xp, a: xp.isnan(a))  # fmt: skip
op("isinf", complex="analytic", shape=compare, tries=(ONE, ((Spec((3,), int64),), {})),
   kernel=lambda xp, a: xp.isinf(a))  # fmt: skip
op("isfinite", complex="analytic", shape=compare, tries=(ONE, ((Spec((3,), int64),), {})),
   kernel=lambda xp, a: xp.isfinite(a))  # fmt: skip
op("logical_and", complex="analytic", shape=compare, tries=(BOOLS, TWO, INTS),
   kernel=lambda xp, a, b: xp.logical_and(a, b))  # fmt: skip
op("logical_or", complex="analytic", shape=compare, tries=(BOOLS, TWO, INTS),
   kernel=lambda xp, a, b: xp.logical_or(a, b))  # fmt: skip
op("logical_xor", complex="analytic", shape=compare, tries=(BOOLS, TWO, INTS),
   kernel=lambda xp, a, b: xp.logical_xor(a, b))  # fmt: skip
op("logical_not", complex="analytic", shape=compare, tries=(((Spec((2, 3), bool_),), {}), ONE),
   kernel=lambda xp, a: xp.logical_not(a))  # fmt: skip
op("bitwise_and", shape=_whole("bitwise_and"), tries=(BOOLS, INTS, MASKS),
   kernel=lambda xp, a, b: xp.bitwise_and(a, b))  # fmt: skip
op("bitwise_or", shape=_whole("bitwise_or"), tries=(BOOLS, INTS, MASKS),
   kernel=lambda xp, a, b: xp.bitwise_or(a, b))  # fmt: skip
op("bitwise_xor", shape=_whole("bitwise_xor"), tries=(BOOLS, INTS, MASKS),
   kernel=lambda xp, a, b: xp.bitwise_xor(a, b))  # fmt: skip
op("bitwise_not", shape=_whole("bitwise_not"), tries=(((Spec((2, 3), bool_),), {}), ((Spec((3,), int64),), {})),
   kernel=_invert)  # fmt: skip
op("bitwise_left_shift", shape=_whole("<<", bools=False), tries=(SHIFTS, MASKS),
   kernel=lambda xp, a, b: xp.left_shift(a, b))  # fmt: skip
op("bitwise_right_shift", shape=_whole(">>", bools=False), tries=(SHIFTS, MASKS),
   kernel=lambda xp, a, b: xp.right_shift(a, b))  # fmt: skip
