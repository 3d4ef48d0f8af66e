"""Logic and bits, element by element. Rows are named as PyTorch names them; none has a gradient."""

from __future__ import annotations

from functools import partial

from gt.ops import table
from gt.ops.elementwise import INTS, ONE, TWO
from gt.ops.rules import by_axis, compare, pointwise
from gt.ops.table import Operand, Try, Values
from gt.spec import Spec, bool_, int64

op = partial(table.op, pointwise=True, shard=by_axis)

BOOLS: Try = ((Spec((2, 3), bool_), Spec((3,), bool_)), {})
MASKS: Try = ((Spec((3,), int64), int), {})
SHIFTS: Try = ((Spec((2, 3), int64), Values(Spec((3,), int64), 0, 5)), {})


def _whole(name: str, bools: bool = True):
    """Broadcast and promote integers, and booleans where the op has them."""

    def rule(*operands: Operand) -> Spec:
        out = pointwise(*operands)
        if out.dtype.rank >= 2 or out.dtype is bool_ and not bools:
            want = "integers or booleans" if bools else "integers"
            raise TypeError(f"{name} wants {want}, not {out.dtype.name}")
        return out

    return rule


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
