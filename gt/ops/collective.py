"""Collectives: rows whose pieces move between workers. The dispatcher writes these instructions; a client's are refused. The
last operand is the id of the client's result, for error messages. `group` are the workers, in the order of their pieces. The
worker chooses the transport, so there are no kernels here."""

from __future__ import annotations

from functools import partial
from typing import Any

from gt.ops import table
from gt.spec import DTYPES, Shape, Spec

op = partial(table.op, kernel=None, collective=True)


def _same(*operands: Any, group, reduce) -> tuple[Spec, ...]:
    return tuple(s for s in operands if isinstance(s, Spec))


def _resized(a: Spec, axis: int, size: int) -> Spec:
    return Spec((*a.shape[:axis], size, *a.shape[axis + 1 :]), a.dtype)


def _pieces(*operands: Any, group, reduce, axis: int, sizes: Shape) -> tuple[Spec, ...]:
    return tuple(_resized(s, axis, n) for s, n in zip(operands, sizes, strict=False) if isinstance(s, Spec))


def _given(*operands: Any, shape: Shape | None, dtype: int, **_: object) -> Any:
    return () if shape is None else Spec(shape, DTYPES[dtype])


# Several tensors are sent as one.
op("all_reduce", shape=_same, statics=("group", "reduce"), separable=True)
# Several tensors are sent as one; `sizes` are the lengths of this worker's piece of each tensor's axis.
op("reduce_scatter", shape=_pieces, statics=("group", "reduce", "axis", "sizes"))
# `size` is the length of the whole axis. `rule`, for observers alone: a rule by which the op that needs the whole would have
# taken it sharded, as (op, its signal, which operand, the axis of each operand or -1); empty if it has none.
op("all_gather", statics=("group", "axis", "size", "rule"),
   shape=lambda a, tag, *, group, axis, size, rule: _resized(a, axis, size))  # fmt: skip
# Only the first of the group has the input, the tensor to send.
op("broadcast", shape=_given, statics=("group", "shape", "dtype"))
# `sends` are (worker, offset in the input, shape), `takes` (worker, offset in the output, shape), each
# worker at most once. Without takes there is no output, and `shape` is None.
op("exchange", shape=_given, statics=("group", "sends", "takes", "shape", "dtype"))


def kept_by(kind: table.Kind) -> str:
    """The rule by which a gathered tensor could have stayed sharded, in words; empty if there is none, and for other ops."""
    rule = kind.settings.get("rule")
    if not rule:
        return ""
    op, signal, which, axes = rule
    layouts = ", ".join(f"Shard({axis})" if axis >= 0 else "Replicate()" for axis in axes)
    under = f" under the signal {signal}" if signal else ""
    return f"{op}{under} takes its operand {which + 1} sharded if its operands are laid out as ({layouts})"
