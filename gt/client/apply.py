"""From a call to an instruction: the client's hot path. It names the result, infers its spec from what was seen before,
appends one tuple to the stream and, where a gradient is wanted, one node to the tape."""

from __future__ import annotations

from sys import _getframe
from typing import Any

from gt.client.autograd import Node, Port, Tensor
from gt.client.scope import HERE
from gt.client.session import RING, Handle, here
from gt.ops.table import Row

MASK = RING - 1
NUMBERS = (bool, int, float)
new = Tensor.__new__


def unary(row: Row, a: Tensor) -> Tensor:
    """An op of one tensor, without statics."""
    scope = HERE.scope or here()
    x = a.data
    session = x.session
    if scope.session is not session:
        scope = _belongs(x)
    known = scope.kinds.get((row, x.spec))
    if known is None:
        known = session.learn(scope, (row, x.spec), row, (x.spec,), ())
    id = session.next_id()
    session.emit((known.number, id, x.id))
    frame = _getframe(2)
    while frame.f_globals["__name__"][:3] == "gt.":
        frame = frame.f_back
    session.origins[id & MASK] = frame.f_code, frame.f_lasti
    if len(session.code) >= session.limit:
        session.due()
    y = new(Tensor)
    y.data = Handle(id, known.out, session)
    y.grad = y.node = None
    if a.requires_grad and scope.grad and known.differentiable:
        y.requires_grad = True
        y.node = Node(known, (a,), (x.id,), y.data, scope)
    else:
        y.requires_grad = False
    return y


def binary(row: Row, a: Tensor, b: Any) -> Tensor:
    """An op of a tensor and a tensor or number, without statics."""
    scope = HERE.scope or here()
    x = a.data
    session = x.session
    if scope.session is not session:
        scope = _belongs(x)
    wants = a.requires_grad
    if type(b) is Tensor or isinstance(b, Tensor):
        z = b.data
        if z.session is not session:
            _belongs(z)
        second, operand = z.spec, z.id
        wants = wants or b.requires_grad
    else:
        second, operand = type(b), b
        if second not in NUMBERS:
            return binary(row, a, as_operand(b, a))
    key = (row, x.spec, second)
    known = scope.kinds.get(key)
    if known is None:
        known = session.learn(scope, key, row, (x.spec, second), ())
    id = session.next_id()
    session.emit((known.number, id, x.id, operand))
    frame = _getframe(2)
    while frame.f_globals["__name__"][:3] == "gt.":
        frame = frame.f_back
    session.origins[id & MASK] = frame.f_code, frame.f_lasti
    if len(session.code) >= session.limit:
        session.due()
    y = new(Tensor)
    y.data = Handle(id, known.out, session)
    y.grad = y.node = None
    if wants and scope.grad and known.differentiable:
        y.requires_grad = True
        y.node = Node(known, (a, b), (x.id, operand), y.data, scope)
    else:
        y.requires_grad = False
    return y


def apply(row: Row, operands: tuple, statics: tuple = ()) -> Any:
    """Any op: tensors and numbers in, a tensor out, or a tuple where the op has several results."""
    scope = HERE.scope or here()
    session = scope.session
    specs, values, wants = [], [], False
    for o in operands:
        if isinstance(o, Tensor):
            data = o.data
            if data.session is not session:
                scope = _belongs(data)
                session = data.session
            specs.append(data.spec)
            values.append(data.id)
            wants = wants or o.requires_grad
        else:
            specs.append(type(o))
            values.append(o)
    if wants and row.grad is None and row.lower is not None and scope.grad:
        return row.lower(*operands, **dict(zip(row.statics, statics)))
    ins = tuple(specs)
    key = (row, ins, statics)
    known = scope.kinds.get(key)
    if known is None:
        known = session.learn(scope, key, row, ins, statics)
    ids = [session.next_id() for _ in known.outs]
    session.emit((known.number, *ids, *values))
    frame = _getframe(2)
    while frame.f_globals["__name__"][:3] == "gt.":
        frame = frame.f_back
    for id in ids:
        session.origins[id & MASK] = frame.f_code, frame.f_lasti
    if len(session.code) >= session.limit:
        session.due()
    results = [Tensor(Handle(id, spec, session)) for id, spec in zip(ids, known.outs)]
    if wants and scope.grad and row.grad is not None:
        _record(known, operands, tuple(values), results, scope)
    return results[0] if len(results) == 1 else tuple(results)


def _record(known: Any, operands: tuple, values: tuple, results: list[Tensor], scope: Any) -> None:
    handles = [r.data for r in results]
    node = Node(known, operands, values, handles[0] if len(handles) == 1 else handles, scope)
    for i, result in enumerate(results):
        if result.data.spec.dtype.rank == 2:
            result.requires_grad = True
            result.node = node if len(results) == 1 else Port(node, i)


def _belongs(handle: Handle) -> Any:
    """The scope for a tensor of another session than this thread's last: right only if that one is closed or not begun."""
    scope = here()
    if scope.session is not handle.session:
        raise RuntimeError("this tensor belongs to another session: read it with .numpy() before connecting elsewhere")
    return scope


def as_operand(value: Any, like: Tensor | None = None) -> Any:
    """A number as Python's, an array or list as a tensor."""
    import numpy as np

    if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0:
        if isinstance(value, np.generic):
            return value.item()
    if isinstance(value, (list, tuple, np.ndarray)) or hasattr(value, "__array__"):
        from gt.client.functions.creation import tensor

        return tensor(value)
    for number in NUMBERS:
        if isinstance(value, number):
            return number(value)
    raise TypeError(f"cannot compute with {type(value).__name__}: want a tensor, a number or an array")
