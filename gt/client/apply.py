"""From a call to an instruction: the client's hot path. It gives the result an id, takes its spec from the kind's cache,
appends one tuple to the stream and, if a gradient is required, one node to the tape."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from sys import _getframe
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gt.client.arrays import as_array, load
from gt.client.autograd import GradientPlan, Node, Port, Tensor, gradient_plan_for
from gt.client.default_dtype import DEFAULT
from gt.client.handle import Handle, origin_id
from gt.client.here import here
from gt.client.kinds import Known
from gt.client.native import NATIVE
from gt.client.scope import HERE, Scope
from gt.client.session import Session
from gt.client.user_lines import RING, origin
from gt.errors import SessionLost
from gt.ops.table import TABLE, Row, infer
from gt.spec import DType, bfloat16, float16, float32

if NATIVE is not None:
    NATIVE.setup(Tensor, Node, Known, Scope, GradientPlan, Port)
CASTS = (bfloat16, float16, float32)  # dtypes that autocast changes
MASK = RING - 1
NUMBERS = (float, int, bool)


def user(session: Session, frame: Any) -> Any:
    """The innermost frame of the user's code; notes its module in the session."""
    while frame.f_globals.get("__name__", "")[:3] == "gt.":
        frame = frame.f_back
    session.user = frame.f_globals
    return frame


@cache
def unary_of(row: Row) -> Callable[[Tensor], Tensor]:
    """The function of an op of one tensor, without statics."""

    def call(a: Tensor) -> Tensor:
        return cast(Tensor, reference(row, (a,), None))

    return NATIVE.Op(row, call) if NATIVE is not None else call


@cache
def binary_of(row: Row) -> Callable[[Tensor, Any], Tensor]:
    """The function of an op of a tensor and a tensor or number, without statics."""

    def call(a: Tensor, b: Any) -> Tensor:
        other = b if isinstance(b, Tensor) or type(b) in NUMBERS else as_operand(b, a)
        return cast(Tensor, reference(row, (a, other), None))

    return NATIVE.Op(row, call) if NATIVE is not None else call


def unary(row: Row, a: Tensor) -> Tensor:
    return unary_of(row)(a)


def binary(row: Row, a: Tensor, b: Any) -> Tensor:
    return binary_of(row)(a, b)


def apply(row: Row, operands: tuple[Any, ...], statics: tuple[Any, ...] = ()) -> Any:
    """Apply any op to tensors and numbers. Returns a tensor, or a tuple if the op has several results."""
    return reference(row, operands, statics)


def reference(row: Row, operands: tuple[Any, ...], statics: tuple[Any, ...] | None) -> Any:
    """The reference of issuing an op; native.c does the same, faster, for the common cases. `statics` is None for ops without
    statics that are called directly: their kinds have a shorter key."""
    scope = HERE.scope or here()
    session = scope.session
    specs: list[Any] = []
    values: list[Any] = []
    held: list[Any] = []  # the handles of tensors, read once; numbers as they are
    mask, bit = 0, 1
    for o in operands:
        if isinstance(o, Tensor):
            data = o.handle
            if data.session is not session:
                scope = _belongs(data)
                session = data.session
            specs.append(data.spec)
            values.append(data.id)
            held.append(data)
            if o.requires_grad:
                mask += bit
        else:
            specs.append(type(o))
            values.append(o)
            held.append(o)
        bit += bit
    key = (row, *specs) if statics is None else (row, *specs, statics)
    known = scope.kinds.get(key)
    if known is None and (changed := _in_other_dtypes(scope, row, operands, statics or ())):
        return apply(row, changed, statics) if statics is not None else (unary, binary)[len(changed) - 1](row, *changed)
    if mask and row.grad is None and row.lower is not None and scope.grad and (known is None or not known.differentiable):
        return row.lower(*operands, **dict(zip(row.statics, statics or ())))
    if known is None:
        known = scope.learn(key, row, tuple(specs), statics or ())
    if len(known.outs) > 1:
        return _several(known, operands, values, held, mask, scope)
    id = session.next_id()
    session.emit((known.number, id, *values))
    slot = id & MASK
    if scope.origin is None:
        frame: Any = _getframe(2)
        if frame.f_globals is not session.user:
            frame = user(session, frame)
        session.asked_code[slot] = frame.f_code
        session.asked_at[slot] = frame.f_lasti
    else:
        session.asked_code[slot], session.asked_at[slot] = scope.origin
    if len(session.code) >= session.limit:
        session.due()
    out = Handle(id, known.out, session)
    if not (mask and scope.grad and known.differentiable):
        result = Tensor(out)
    else:
        result = Tensor(out, True, _node(known, operands, held, mask, out, id, scope))
    if known.view:
        result.base, result.how = operands[0], known.unseen if mask and not scope.grad else known
        result.made = (known.number, id, *values)
        out.source = origin_id(operands[0].handle)
    return result


def _in_other_dtypes(scope: Scope, row: Row, operands: tuple[Any, ...], statics: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The operands cast for autocast or the default dtype; None if no cast is needed."""
    if scope.cast is not None and (changed := recast(scope.cast, row, operands)):
        return changed
    return in_default(row, operands, statics)


def recast(low: DType, row: Row, operands: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The operands in autocast's dtype for this row, or None if they have it already."""
    if not row.autocast:
        return None
    want = low if row.autocast == "low" else float32
    wrong = [isinstance(o, Tensor) and o.handle.spec.dtype in CASTS and o.handle.spec.dtype is not want for o in operands]
    return tuple([o.to(want) if w else o for o, w in zip(operands, wrong)]) if any(wrong) else None


def in_default(row: Row, operands: tuple[Any, ...], statics: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The operands cast so that floating-point results have the default dtype; None if they would have it anyway."""
    if DEFAULT.dtype is float32 or any(isinstance(o, Tensor) and o.handle.spec.dtype.rank >= 2 for o in operands):
        return None
    specs = tuple(o.handle.spec if isinstance(o, Tensor) else type(o) for o in operands)
    if not any(isinstance(o, Tensor) for o in operands):
        return None
    if not any(out.dtype is float32 for out in infer(row, specs, statics).outs) or "dtype" in row.statics:
        return None
    numbers = any(type(o) is float for o in operands)
    return tuple([_default(o) if (type(o) is float if numbers else isinstance(o, Tensor)) else o for o in operands])


def _default(operand: Any) -> Any:
    """A tensor or number in the default dtype."""
    if isinstance(operand, Tensor):
        return apply(TABLE["cast"], (operand,), (DEFAULT.dtype.code,))
    return apply(TABLE["full"], (operand,), ((), DEFAULT.dtype.code))


def _several(
    known: Any, operands: tuple[Any, ...], values: list[Any], held: list[Any], mask: int, scope: Any
) -> tuple[Any, ...]:
    """An op of several results."""
    session = scope.session
    ids = [session.next_id() for _ in known.outs]
    session.emit((known.number, *ids, *values))
    asked = scope.origin or origin(3)
    for id in ids:
        session.asked_code[id & MASK], session.asked_at[id & MASK] = asked
    if len(session.code) >= session.limit:
        session.due()
    results = tuple(Tensor(Handle(id, spec, session)) for id, spec in zip(ids, known.outs))
    if mask and scope.grad and known.row.grad is not None:
        node = _node(known, operands, held, mask, [r.handle for r in results], ids[0], scope)
        for i, result in enumerate(results):
            if known.floats[i]:
                result.requires_grad, result.node = True, Port(node, i)
    return results


def _node(known: Any, operands: tuple[Any, ...], held: list[Any], mask: int, output: Any, order: int, scope: Any) -> Node:
    plan = known.pulls.get(mask) or gradient_plan_for(known, mask)
    inputs = [h if kept or type(h) is not Handle else h.spec for h, kept in zip(held, plan.keep)]
    edges = [(o.node or o) if mask >> i & 1 else None for i, o in enumerate(operands)]
    keep = plan.keeps_output
    kept = output if keep is True else None if keep is False else keep(output)
    return Node(known, plan, inputs, edges, kept, scope, order)


def _belongs(handle: Handle) -> Any:
    """The scope for a tensor of another session than this thread's last one, which must be closed or not begun."""
    scope = here()
    if handle.session.abandoned:
        raise SessionLost(handle.session.lost)
    if scope.session is not handle.session:
        raise RuntimeError("this tensor belongs to another session: read it with .numpy() before connecting elsewhere")
    return scope


def operand(x: Any) -> Any:
    """A tensor unchanged, a number as a Python number, an array or list as a tensor."""
    return x if isinstance(x, Tensor) else as_operand(x)


def as_operand(value: Any, like: Tensor | None = None) -> Any:
    """A number as a Python number, an array or list as a tensor."""
    if type(value) in NUMBERS:
        return value
    if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0:
        if isinstance(value, np.generic):
            return value.item()
    if isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in value):
        kinds = type(value).__name__ if hasattr(value, "_fields") else f"{type(value).__name__} of tensors"
        raise TypeError(f"cannot compute with a {kinds}: name one of its {len(value)} tensors, or gt.stack them")
    if isinstance(value, (list, tuple, np.ndarray)) or hasattr(value, "__array__"):
        return load(*as_array(value))
    for number in (bool, int, float):
        if isinstance(value, number):
            return number(value)
    if isinstance(value, complex):
        return complex_number(value, like.handle.spec.dtype if like is not None else DEFAULT.dtype)
    raise TypeError(f"cannot compute with {type(value).__name__}: expected a tensor, a number or an array")


def complex_number(value: complex, dtype: DType) -> Tensor:
    """A complex number as a 0-d tensor, an operand of an op on this dtype: instructions contain real numbers only."""
    real = dtype if dtype.rank >= 2 else DEFAULT.dtype
    made: Tensor = apply(TABLE["full_complex"], (value.real, value.imag), ((), real.to_complex().code))
    return made


if NATIVE is not None and not TYPE_CHECKING:
    NATIVE.otherwise(reference)
    apply = NATIVE.apply
