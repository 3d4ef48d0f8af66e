"""An op on lists of tensors, off the tape: one instruction of the client's stream for all items, as an optimizer's step needs.
The sent instructions are those of the items (gt/program/foreach.py), so that workers need no support for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gt.client.apply import MASK, apply
from gt.client.autograd import Tensor
from gt.client.default_dtype import DEFAULT
from gt.client.handle import Handle
from gt.client.here import here
from gt.client.kinds import Known
from gt.client.native import NATIVE, last_id
from gt.client.scope import Scope
from gt.client.user_lines import origin
from gt.client.views import RAW, raw_handle, set_raw_handle
from gt.client.writes import overwrite
from gt.ops.table import Row
from gt.program.code import encoded
from gt.program.foreach import ForeachKind
from gt.spec import float32

LIST = "foreach"  # first element of the keys of kinds on lists


def foreach(row: Row, operands: tuple[Any, ...], statics: tuple = ()) -> list[list[Handle]]:
    """Apply an op to the items of lists; returns a list for each of its results. Lists among the operands have one length;
    other operands are shared. It is not recorded on the tape."""
    if NATIVE is not None:
        found = NATIVE.foreach(row, operands, statics)
        if found is not NotImplemented:
            return found
    scope = here()
    assert not scope.grad, "an op on lists does not go on the tape"
    items = list(_items(operands))
    if scope.cast is not None or DEFAULT.dtype is not float32 or _elsewhere(scope, operands):
        return _one_by_one(row, items, statics)
    return _issue(_known(scope, row, operands, items, statics), operands, scope)


def _items(operands: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The operands of each item."""
    lengths = {len(o) for o in operands if type(o) is list}
    assert len(lengths) == 1, f"lists of lengths {sorted(lengths)}: expected one length"
    for i in range(lengths.pop()):
        yield tuple([o[i] if type(o) is list else o for o in operands])


def _elsewhere(scope: Scope, operands: tuple[Any, ...]) -> bool:
    tensors = [t for o in operands for t in (o if type(o) is list else (o,)) if isinstance(t, Tensor)]
    return any(t.handle.session is not scope.session for t in tensors)


def _one_by_one(row: Row, items: list[tuple], statics: tuple) -> list[list[Handle]]:
    results = [apply(row, item, statics) for item in items]
    return [list(column) for column in zip(*([t.handle for t in (r if type(r) is tuple else (r,))] for r in results))]


def _spec(operand: Any) -> Any:
    return operand.handle.spec if isinstance(operand, Tensor) else type(operand)


def _known(scope: Scope, row: Row, operands: tuple, items: list[tuple], statics: tuple) -> Known:
    """The kind of this op on lists, defined at its first use."""
    key: list[Any] = [LIST, row, statics]
    for o in operands:
        key += [len(o), *map(_spec, o)] if type(o) is list else [_spec(o)]
    known = scope.kinds.get(tuple(key))
    if known is None:
        each = []
        for item in items:
            specs = tuple(map(_spec, item))
            own = (row, *specs, statics)
            each.append(scope.kinds.get(own) or scope.learn(own, row, specs, statics))
        kind = ForeachKind([k.number for k in each], [k.kind for k in each], tuple(type(o) is list for o in operands))
        known = scope.learn_list(tuple(key), kind)
    return known


def _issue(known: Known, operands: tuple, scope: Scope) -> list[list[Handle]]:
    session = scope.session
    ids = [session.next_id() for _ in known.outs]
    values: list[Any] = []
    for o in operands:
        values += [t.handle.id if isinstance(t, Tensor) else t for t in (o if type(o) is list else (o,))]
    session.emit(encoded(known.number, ids, values))
    asked = scope.origin or origin(2)
    for id in ids:
        session.asked_code[id & MASK], session.asked_at[id & MASK] = asked
    made = [Handle(id, spec, session) for id, spec in zip(ids, known.outs)]
    each = len(made) // len(known.kind.kinds)  # type: ignore[attr-defined]
    return [made[i::each] for i in range(each)]


def overwrite_all(tensors: Sequence[Tensor], values: Sequence[Handle], counted: bool = True) -> None:
    """Set the values of variables off the tape, as an optimizer does with its parameters. Writes to variables that no gradient
    can have saved need not be `counted`."""
    if NATIVE is not None and tensors:
        session = values[0].session
        noted = session.overwritten
        since = last_id(session) if counted else -1
        left = NATIVE.overwrite(tensors, values, noted.since if counted else None, since)
        if counted:
            noted.wrote(since)
        if not left:
            return
        tensors, values = [tensors[i] for i in left], [values[i] for i in left]
    for t, value in zip(tensors, values):
        if counted or t.base is not None:
            overwrite(t, value)
        else:
            set_raw_handle(t, value)


def plain(tensors: Sequence[Tensor]) -> bool:
    """Whether these are neither views nor on the tape, so that setting a value has no other effect."""
    node = RAW["node"].__get__
    for t in tensors:  # noqa: SIM110 (a generator takes a call for each)
        if t.base is not None or node(t) is not None or raw_handle(t) is None:
            return False
    return True
