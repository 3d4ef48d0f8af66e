"""Writes to variables. Values on the workers never change: a write gives a variable another value and, if it is a view, its
base too, by the scatter op of the view's row. `handle`, `requires_grad` and `node` of tensors become descriptors here, which
renew a stale view when read, and write through it when set."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

from gt.client.apply import apply, as_operand
from gt.client.autograd import Tensor, node_of
from gt.client.handle import Handle, origin_id
from gt.client.here import here
from gt.client.kinds import Restricted
from gt.client.native import NATIVE, last_id
from gt.client.scope import is_grad_enabled
from gt.client.strides import overlaps
from gt.client.views import (
    FORMER,
    RAW,
    SAME,
    UNCOUNTED,
    Custom,
    check_order,
    cut,
    is_view,
    link,
    raw_handle,
    remade,
    renew,
    root_of,
    set_raw_handle,
    spec_of,
    stale,
    untaped,
)
from gt.errors import ArgumentTypeError
from gt.ops.table import TABLE
from gt.spec import int64


def _links(t: Tensor) -> list[Tensor]:
    """This variable and its bases, to the last."""
    found = [t]
    while (base := found[-1].base) is not None:
        found.append(base)
    return found


def _in_order(t: Tensor) -> None:
    """Make all views of a write's chain views of their bases' former states."""
    while t.base is not None:
        check_order(t)
        t = t.base


def _count(t: Tensor) -> int:
    return sys.getrefcount(t.base)


_probe = Tensor(None, base=Tensor(None))  # type: ignore[arg-type]
_ALONE = _count(_probe)  # reference count of a base that only its view holds
del _probe


def unseen(t: Tensor) -> bool:
    """Whether only this view holds its bases. A tensor's state before it took another shape may be the base of views that hold
    the tensor."""
    while t.base is not None:
        if _count(t) > _ALONE or id(t.base) in FORMER:
            return False
        t = t.base
    return True


def _inverse(t: Tensor) -> Callable[[Tensor, Tensor], Tensor] | None:
    """The function `(base, piece)` to the base with a piece in place of this view; None if the view repeats elements."""
    if type(t.how) is Custom:
        return t.how.write
    known: Any = t.how.known if type(t.how) is Restricted else t.how
    write = known.row.alias.write
    return write and (lambda base, piece: write(base, piece, *t.made[3:], **known.kind.settings))


def _positions(chain: list[Tensor]) -> Tensor:
    """The positions of the first view's elements in the last base of a chain."""
    spec = chain[-1].handle.spec
    at = apply(TABLE["iota"], (0, 1), ((spec.numel,), (spec.numel,), (0,), int64.code)).reshape(spec.shape)
    for t in reversed(chain[:-1]):
        at = at if t.how is SAME else remade(t.how, at, t.made[3:])
    return at


def _scattered(chain: list[Tensor], value: Tensor) -> Tensor:
    """The last base of a chain of views with a value written at the first view's positions: for views that repeat elements,
    which no single op inverts."""
    base = chain[-1]
    if any(t.handle.spec.dtype is not base.handle.spec.dtype for t in chain):
        raise RuntimeError(
            "cannot write through a view of another dtype whose base repeats elements, as an expanded or as_strided tensor "
            "does: clone() the tensor before making the view"
        )
    shape, at = base.handle.spec.shape, _positions(chain)
    flat = apply(TABLE["index_put"], (base.reshape(-1), value.reshape(-1), at.reshape(-1)), ((0,), False))
    return flat.reshape(shape)


def _repeating(chain: list[Tensor]) -> int | None:
    """The last view of a chain that may repeat elements of its base."""
    for i in range(len(chain) - 2, -1, -1):
        if chain[i].how is not SAME and _inverse(chain[i]) is None:
            return i
    return None


def repeats(t: Tensor) -> bool:
    """Whether a tensor may repeat elements of its base, as expanded tensors and overlapping windows do."""
    return t.base is not None and _repeating(_links(t)) is not None


def _count_write(t: Tensor, since: int) -> None:
    """Note that the value of a variable is overwritten, unless through `x.data`."""
    while t.base is not None:
        if t.how is SAME and UNCOUNTED in t.made[3:]:
            return
        t = t.base
    t.made = (t.made or 0) + 1
    old = raw_handle(t)
    old.session.overwritten.add(origin_id(old), since)


def overwrite(t: Tensor, value: Handle) -> None:
    """Set the value of a variable off the tape, as an optimizer does."""
    old = raw_handle(t)
    since = last_id(old.session)
    if t.base is not None:
        _count_write(t, since)
        t.handle = value
        return
    old.session.overwritten.add(origin_id(old), since)
    t.made = (t.made or 0) + 1
    set_raw_handle(t, value)


def _write(t: Tensor, value: Tensor, grad: bool) -> None:
    """Set the value of a variable, and of its bases, to one of the same spec. With `grad`, the write is recorded on the
    tape."""
    if t.base is not None and unseen(t):
        cut(t)
    base = t.base
    if base is None:
        _set(t, value, grad)
        return
    _in_order(t)
    chain = _links(t)
    last = _repeating(chain)
    if last is not None:
        part = chain[: last + 2]
        if grad and value.requires_grad and any(view.how is SAME for view in part[:-1]):
            raise RuntimeError(
                "cannot write a tensor that requires gradients into an expanded tensor that was detached: clone() it"
            )
        _write(part[-1], _scattered(part, value), grad)
    elif t.how is SAME:
        _set(t, value, grad)
        _write(base, Tensor(value.handle), False)
        _seen(t)
    else:
        inverse = _inverse(t)
        assert inverse is not None
        whole = inverse(base, value)
        taped = grad and whole.requires_grad
        _write(base, whole, grad)
        if not taped:  # else the view is renewed at its next use, from the base's node
            _set(t, value, False)
            _seen(t)


def _set(t: Tensor, value: Tensor, grad: bool) -> None:
    if grad:
        RAW["node"].__set__(t, value.node)
        RAW["requires_grad"].__set__(t, value.requires_grad)
    set_raw_handle(t, value.handle)


def _seen(t: Tensor) -> None:
    """Mark a view as current."""
    value = raw_handle(t.base)  # type: ignore[arg-type]
    t.made = (*t.made[:2], value.id, *t.made[3:])
    if t.how is not SAME:
        raw_handle(t).source = origin_id(value)


def check_in_place(t: Tensor) -> None:
    """Raise PyTorch's errors for in-place changes that require gradients."""
    if is_view(t):
        root = t
        while root.base is not None and root.how is not SAME:
            if type(root.how) is Restricted:
                raise RuntimeError(root.how.why)
            root = root.base
        if root.requires_grad and root.node is None:
            raise RuntimeError(
                "a view of a leaf Variable that requires grad is being used in an in-place operation; it cannot change in "
                "place: use gt.no_grad(), or detach() it first"
            )
    if t.requires_grad and t.node is None:
        raise RuntimeError(
            "a leaf Variable that requires grad is being used in an in-place operation; a leaf that requires gradients "
            "cannot change in place: use gt.no_grad(), or detach() it first"
        )


def check_overlap(t: Tensor) -> None:
    """Raise if elements of a tensor share memory, so that they cannot have separate values."""
    if overlaps(t):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )


def assign(target: Tensor, value: Tensor, spread: bool = False, since: int | None = None) -> Tensor:
    """Set the value of a variable to one of its shape, for in-place functions. `spread`: all elements of the value are equal,
    so that a variable with repeated elements, such as an expanded one, may be written too. `since`: the last result before the
    value was computed (known for the result of a single op)."""
    grad = is_grad_enabled()
    if since is None:
        since = last_id(raw_handle(target).session) if value.node is None else node_of(value.node).order - 1
    if grad and (target.requires_grad or value.requires_grad or target.base is not None and root_of(target).requires_grad):
        check_in_place(target)
    have, want = value.handle.spec, target.handle.spec
    if have.shape != want.shape:
        raise RuntimeError(f"output with shape {list(want.shape)} doesn't match the broadcast shape {list(have.shape)}")
    if have.dtype is not want.dtype:
        if have.dtype.rank > want.dtype.rank:
            raise RuntimeError(f"result type {have.dtype.name} can't be cast to the desired output type {want.dtype.name}")
        value = value.to(want.dtype)
    if target.base is not None and not spread:
        check_overlap(target)
    if grad and value.requires_grad and value.node is None:
        value = value.clone()  # a leaf would receive the gradient in place of the variable
    if grad and target.requires_grad and not value.requires_grad:  # the overwritten value has a gradient of zeros
        statics = (tuple((d, 1) for d in want.shape),)
        value = apply(TABLE["slice_put"], (target, value, *(0 for _ in want.shape)), statics)
    if value.base is not None or raw_handle(value).id == raw_handle(target).id:
        value = value.clone()
    _count_write(target, since)
    _write(target, value, grad)
    return target


def taped_as(target: Tensor, value: Tensor) -> Tensor:
    """Let a variable, which a Function of the user's changed and returned, be that Function's result on the tape."""
    check_in_place(target)
    _write(target, value, True)
    return target


def fill_at(target: Tensor, name: str, pick: Callable[[Tensor], tuple]) -> Tensor:
    """Write to some elements of a tensor that repeats elements: all repetitions change. `pick` returns, for the elements'
    positions, those to fill and the values."""
    if overlaps(target):
        warnings.warn(
            f"Use of {name} on expanded tensors is deprecated. Please clone() the tensor before performing this operation.",
            UserWarning,
            stacklevel=3,
        )
    if is_grad_enabled() and target.requires_grad:
        check_in_place(target)
    _ = target.handle
    _in_order(target)
    chain = _links(target)
    last = _repeating(chain)
    assert last is not None, "only a tensor that repeats elements is filled by positions"
    part = chain[: last + 2]
    base = part[-1]
    since = last_id(raw_handle(base).session)
    at, value = pick(_positions(part))
    value = value if isinstance(value, Tensor) else as_operand(value, base)
    if isinstance(value, Tensor):
        value = value.to(base.dtype).expand(at.handle.spec.shape).reshape(-1)
    elif isinstance(value, float) and base.handle.spec.dtype.rank < 2:
        value = int(value)
    flat = apply(TABLE["index_put"], (base.reshape(-1), value, at.reshape(-1)), ((0,), False))
    assign(base, flat.reshape(base.handle.spec.shape), since=since)
    return target


def become(target: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Make a variable a view of its former state: `x.t_()`."""
    grad = is_grad_enabled()
    if grad and target.requires_grad:
        check_in_place(target)
    before = Tensor(target.handle, target.requires_grad and grad, target.node)
    before.base, before.how, before.made = target.base, target.how, target.made
    found = change(before)
    if found is not before:
        FORMER[id(before)] = before
        target.base, target.how, target.made = found.base, found.how, found.made
        _set(target, found, grad)
    return target


def give_data(target: Tensor, value: Tensor) -> None:
    """`x.data = y`: from now on x shares the value of y, including writes."""
    source = untaped(value)
    if source is target or target.base is source and target.how is SAME:
        return
    for view in _links(source):
        if view.base is target:  # `x.data = x.data.t()`: the former x continues as a variable without other references
            before = Tensor(target.handle, False, None)
            before.base, before.how, before.made = target.base, target.how, target.made
            view.base = before
    target.base = target.how = target.made = None
    set_raw_handle(target, source.handle)
    link(target, source, SAME, (None, here().session.next_id()))


def clear_grad(p: Tensor, set_to_none: bool) -> None:
    """Set `p.grad` to None, or to zeros in place, so that other references to it see them."""
    if set_to_none or p.grad is None:
        p.grad = None
        return
    if not isinstance(p.grad, Tensor):
        p.grad.zero_()
        return
    p.grad.node, p.grad.requires_grad = None, False
    p.grad.zero_()


def _set_value(t: Tensor, value: Handle) -> None:
    """`t.handle = value` of a view: a write off the tape."""
    if value.spec is not spec_of(t) and value.spec != spec_of(t):
        cut(t)
        t.handle = value
    else:
        _write(t, Tensor(value), False)


def _setter(name: str) -> Callable[[Tensor, Any], None]:
    def set_field(t: Tensor, value: Any) -> None:
        _ = t.handle  # renew first, so that a later renewal does not replace the new value
        RAW[name].__set__(t, value)

    return set_field


def _set_wanted(t: Tensor, value: bool) -> None:
    """`t.requires_grad = value`."""
    if not value and t.node is not None and t.requires_grad:
        raise RuntimeError("you can only change requires_grad flags of leaf variables: use x.detach() in the place of x")
    if value and spec_of(t).dtype.rank < 2:
        raise ArgumentTypeError(f"only floating-point and complex tensors have gradients, not {spec_of(t).dtype.name}")
    _setter("requires_grad")(t, value)


def _field(name: str) -> Any:
    checked: dict[str, Callable[[Tensor, Any], None]] = {"handle": _set_value, "requires_grad": _set_wanted}
    write = checked.get(name) or _setter(name)
    if NATIVE is not None:
        return NATIVE.Field(RAW[name], renew, write)
    get, put = RAW[name].__get__, RAW[name].__set__

    def read(t: Tensor) -> Any:
        if t.base is not None and stale(t):
            renew(t)
        return get(t)

    def set_it(t: Tensor, value: Any) -> None:
        if getattr(t, "base", None) is None and (name != "requires_grad" or not _made(t)):
            put(t, value)
        else:
            write(t, value)

    return property(read, set_it)


def _made(t: Tensor) -> bool:
    """Whether the fields of a tensor have been set."""
    try:
        RAW["requires_grad"].__get__(t)
    except AttributeError:
        return False
    return True


for _name in RAW:
    setattr(Tensor, _name, _field(_name))
