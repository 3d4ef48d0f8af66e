"""Views and writes. Values on the workers never change: a write gives a variable another value, and where the variable is a
view, its base too, by the scatter that the op's row names. Other views of that base are then stale, and are made again when
they are used next. A view holds its base and the instruction that made it, nothing more; the base does not know its views.

Two variables may also share a value and not the tape (`x.detach()`, `x.data`): their base is then the same, as SAME."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.handle import Handle, Known, Restricted
from gt.client.native import NATIVE
from gt.client.scope import HERE, is_grad_enabled
from gt.client.session import here
from gt.ops.movement import contiguous_strides
from gt.ops.table import TABLE, Alias, Kind
from gt.spec import int64

_RAW: dict[str, Any] = {name: vars(Tensor)[name] for name in ("handle", "requires_grad", "node")}
raw_handle: Callable[[Tensor], Handle] = _RAW["handle"].__get__  # the value as it was when last used, stale or not
set_raw_handle: Callable[[Tensor, Handle], None] = _RAW["handle"].__set__


class Same:
    """How a variable was made that has its base's value and a tape of its own."""


class Custom:
    """How a view was made that is no single op: `make(base)` computes it, `strides(those of the base)` are its distances."""

    def __init__(self, make: Callable[[Tensor], Tensor], strides: Callable[[tuple], tuple]) -> None:
        self.make, self.strides = make, strides


SAME = Same()


def is_view(t: Tensor) -> bool:
    """Whether a variable is a view of another on the tape too."""
    return t.base is not None and t.how is not SAME


def root_of(t: Tensor) -> Tensor:
    """What a variable is a view of, on the tape too; itself where it is no view."""
    while t.base is not None and t.how is not SAME:
        t = t.base
    return t


def storage_of(t: Tensor) -> Tensor:
    """The variable whose value is written wherever this one is."""
    while t.base is not None:
        t = t.base
    return t


def link(t: Tensor, base: Tensor, how: Any, made: tuple) -> Tensor:
    """Let a variable be a view of another. `made[1]` is when: the id of the newest value then."""
    t.base, t.how, t.made = base, how, (*made[:2], base.handle.id, *made[3:])
    return t


def cut(t: Tensor) -> Tensor:
    """Let a variable stand for itself."""
    t.base = t.how = t.made = None
    return t


def own(t: Tensor, source: Tensor) -> Tensor:
    """A result that shares nothing with what it was made of, for functions that copy in PyTorch."""
    return t.clone() if t is source else cut(t)


def custom_view(base: Tensor, make: Callable[[Tensor], Tensor], strides: Callable[[tuple], tuple]) -> Tensor:
    """`make(base)` as a view of it; `strides(those of the base)` are its distances."""
    found = cut(make(base))
    return link(found, base, Custom(make, strides), (None, raw_handle(found).id))


def untaped(t: Tensor) -> Tensor:
    """A variable of the same value that leads to no tape. It is `t` where that has none; else both become views of one."""
    _ = t.handle
    if t.base is None:
        if t.node is None:
            return t
        link(t, Tensor(raw_handle(t)), SAME, (None, 0))  # 0: views of it that are older are views of it still
    if t.how is SAME:
        return t.base  # type: ignore[return-value]
    base = untaped(t.base)  # type: ignore[arg-type]
    return t if base is t.base and t.node is None else link(Tensor(raw_handle(t)), base, t.how, t.made)


def detached(t: Tensor) -> Tensor:
    """A variable of the same value off the tape: what is written into one is in the other."""
    found = Tensor(t.handle)
    share(found, t)
    return found


def share(t: Tensor, other: Tensor) -> None:
    """Let a variable that has another's value keep to it: what is written into one is in the other."""
    base = untaped(other)
    link(t, base, SAME, (None, base.handle.id))


# Reading


def _remade(how: Any, base: Tensor, numbers: tuple) -> Tensor:
    if type(how) is Custom:
        return how.make(base)
    known = how.known if type(how) is Restricted else how
    return apply(known.row, (base, *numbers), known.kind.statics)


def _check_order(t: Tensor) -> None:
    """Raise where the base took another shape, or another tensor's value, after this view of it was made."""
    base: Any = t.base
    if base.base is not None and base.made[1] > t.made[1]:
        raise RuntimeError(
            "this tensor is a view of one that has since been given another shape or other data in place (such as by "
            "transpose_() or x.data = y), and one of both was written to: make the view again after that"
        )


def renew(t: Tensor) -> None:
    """Bring a view up to date with its base."""
    base: Any = t.base
    value, made = base.handle, t.made or ()
    _check_order(t)
    if t.how is SAME:
        set_raw_handle(t, value)
    else:
        outer = here()
        kind = getattr(getattr(t.how, "known", t.how), "kind", None)
        signal = kind.signal if kind is not None else outer.signal
        HERE.scope = outer.but(grad=type(t.how) is not Restricted or not _no_grad(t), signal=signal, cast=None)
        try:
            found = _remade(t.how, base, made[3:])
        finally:
            HERE.scope = outer
        set_raw_handle(t, found.handle)
        if _RAW["node"].__get__(t) is not None or not _RAW["requires_grad"].__get__(t):  # a leaf stays one
            _RAW["node"].__set__(t, found.node)
            _RAW["requires_grad"].__set__(t, found.requires_grad)
    t.made = (*made[:2], value.id, *made[3:])


def _no_grad(t: Tensor) -> bool:
    return t.how is t.how.known.unseen


def _stale(t: Tensor) -> bool:
    while t.base is not None:
        if raw_handle(t.base).id != t.made[2]:
            return True
        t = t.base
    return False


def _set_value(t: Tensor, value: Handle) -> None:
    """`t.handle = value` of a view: a write off the tape."""
    if value.spec is not raw_handle(t).spec and value.spec != raw_handle(t).spec:
        cut(t)
        t.handle = value
    else:
        _write(t, Tensor(value), False)


def _setter(name: str) -> Callable[[Tensor, Any], None]:
    def set_field(t: Tensor, value: Any) -> None:
        _ = t.handle  # what is set here is not to be replaced when the view is renewed
        _RAW[name].__set__(t, value)

    return set_field


def _field(name: str) -> Any:
    write = _set_value if name == "handle" else _setter(name)
    if NATIVE is not None:
        return NATIVE.Field(_RAW[name], renew, write)
    get, put = _RAW[name].__get__, _RAW[name].__set__

    def read(t: Tensor) -> Any:
        if t.base is not None and _stale(t):
            renew(t)
        return get(t)

    return property(read, lambda t, value: put(t, value) if t.base is None else write(t, value))


for _name in _RAW:
    setattr(Tensor, _name, _field(_name))


def one_of_several(views: list[Tensor], name: str) -> tuple[Tensor, ...]:
    """The views that one function returned, which PyTorch does not let change in place where gradients are wanted."""
    for t in views:
        if t.requires_grad and type(t.how) is Known:
            t.how = Restricted(t.how, _SEVERAL.format(name))
    return tuple(views)


_SEVERAL = (
    "this tensor is one of several views that {} returned, which cannot be changed in place where gradients are wanted: "
    "use the out-of-place form, or index the tensor instead"
)

# Distances


@lru_cache(1 << 12)
def _strides(kind: Kind, base: tuple[int, ...]) -> tuple[int, ...] | None:
    assert kind.row.alias is not None
    return kind.row.alias.strides(kind.ins[0].shape, base, **kind.settings)


def strides(t: Tensor) -> tuple[int, ...]:
    """How far apart, in elements, neighbours along each axis would lie in PyTorch: results of ops lie row by row."""
    if t.base is not None and t.how is SAME:
        return strides(t.base)
    if type(t.how) is Custom:
        return t.how.strides(strides(t.base))  # type: ignore[arg-type]
    if t.base is not None:
        found = _strides((t.how.known if type(t.how) is Restricted else t.how).kind, strides(t.base))
        if found is not None:
            return found
    return contiguous_strides(raw_handle(t).spec.shape)


def is_contiguous(t: Tensor) -> bool:
    """Whether elements lie row by row."""
    shape = raw_handle(t).spec.shape
    if t.base is None or 0 in shape:
        return True
    return all(d == 1 or s == want for d, s, want in zip(shape, strides(t), contiguous_strides(shape)))


def settle(reshaped: Tensor) -> Tensor:
    """A reshaped tensor, which is a view only where its source lies so that nothing need be copied."""
    base = reshaped.base
    if base is None or base.base is None:
        return reshaped
    return reshaped if _strides(reshaped.how.kind if type(reshaped.how) is Known else reshaped.how.known.kind,
                                strides(base)) is not None else cut(reshaped)  # fmt: skip


# Writing


def _links(t: Tensor) -> list[Tensor]:
    """This variable and those it is a view of, to the last."""
    found = [t]
    while (base := found[-1].base) is not None:
        found.append(base)
    return found


def _count(t: Tensor) -> int:
    return sys.getrefcount(t.base)


_probe = Tensor(None, base=Tensor(None))  # type: ignore[arg-type]
_ALONE = _count(_probe)  # references to a base that nothing but its view holds
del _probe


def unseen(t: Tensor) -> bool:
    """Whether nobody but this view holds any of what it is a view of."""
    while t.base is not None:
        if _count(t) > _ALONE:
            return False
        t = t.base
    return True


def _alias_of(t: Tensor) -> Alias | None:
    if type(t.how) is Custom:
        return None
    return (t.how.known if type(t.how) is Restricted else t.how).row.alias


def _scattered(chain: list[Tensor], value: Tensor) -> Tensor:
    """The last of a chain of views with a value written where the first lies in it, by the elements' positions: for views
    that have elements several times, so that no single op is their inverse."""
    base = chain[-1]
    n, shape = base.handle.spec.numel, base.handle.spec.shape
    at = apply(TABLE["iota"], (0, 1), ((n,), (n,), (0,), int64.code)).reshape(shape)
    for t in reversed(chain[:-1]):
        at = at if t.how is SAME else _remade(t.how, at, t.made[3:])
    flat = apply(TABLE["index_put"], (base.reshape(-1), value.reshape(-1), at.reshape(-1)), ((0,), False))
    return flat.reshape(shape)


def _repeating(chain: list[Tensor]) -> int | None:
    """The last of a chain of views that may have elements of its base several times."""
    for i in range(len(chain) - 2, -1, -1):
        if chain[i].how is not SAME and ((alias := _alias_of(chain[i])) is None or alias.write is None):
            return i
    return None


def _write(t: Tensor, value: Tensor, grad: bool) -> None:
    """Give a variable a value of its own spec, and what it is a view of with it. With `grad`, the tape follows."""
    if t.base is not None and unseen(t):
        cut(t)
    base = t.base
    if base is None:
        t.made = (t.made or 0) + 1
        _set(t, value, grad)
        return
    chain = _links(t)
    for view in chain[:-1]:
        _check_order(view)
    last = _repeating(chain)
    if last is not None:
        part = chain[: last + 2]
        if grad and value.requires_grad and any(view.how is SAME for view in part[:-1]):
            raise RuntimeError(
                "cannot write a tensor that wants gradients into an expanded tensor that was detached: clone() it"
            )
        _write(part[-1], _scattered(part, value), grad)
    elif t.how is SAME:
        _set(t, value, grad)
        _write(base, Tensor(value.handle), False)
        _seen(t)
    else:
        known: Any = t.how.known if type(t.how) is Restricted else t.how
        whole = known.row.alias.write(base, value, *t.made[3:], **known.kind.settings)
        taped = grad and whole.requires_grad
        _write(base, whole, grad)
        if not taped:  # else the view is made anew when it is used, from the base's place on the tape
            _set(t, value, False)
            _seen(t)


def _set(t: Tensor, value: Tensor, grad: bool) -> None:
    if grad:
        _RAW["node"].__set__(t, value.node)
        _RAW["requires_grad"].__set__(t, value.requires_grad)
    set_raw_handle(t, value.handle)


def _seen(t: Tensor) -> None:
    """Note that a view is up to date with its base."""
    t.made = (*t.made[:2], raw_handle(t.base).id, *t.made[3:])  # type: ignore[arg-type]


def check_in_place(t: Tensor) -> None:
    """Raise what PyTorch raises where a tensor is changed in place and gradients are wanted of the change."""
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


def overlaps(t: Tensor) -> bool:
    """Whether elements of a tensor are one and the same, as those of an expanded one are."""
    return t.base is not None and any(d > 1 and s == 0 for d, s in zip(raw_handle(t).spec.shape, strides(t)))


def check_overlap(t: Tensor) -> None:
    """Raise where elements of a tensor are one and the same, so that they cannot be given values one by one."""
    if overlaps(t):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )


def assign(target: Tensor, value: Tensor, spread: bool = False) -> Tensor:
    """Give a variable another value of its shape, as in-place forms do. `spread`: all elements of the value are equal, so that
    elements which the variable has several times, as an expanded one does, may be written too."""
    grad = is_grad_enabled()
    if grad and (target.requires_grad or value.requires_grad or target.base is not None and root_of(target).requires_grad):
        check_in_place(target)
    have, want = value.handle.spec, raw_handle(target).spec
    if have.shape != want.shape:
        raise RuntimeError(f"output with shape {list(want.shape)} doesn't match the broadcast shape {list(have.shape)}")
    if have.dtype is not want.dtype:
        if have.dtype.rank > want.dtype.rank:
            raise RuntimeError(f"result type {have.dtype.name} can't be cast to the desired output type {want.dtype.name}")
        value = value.to(want.dtype)
    if target.base is not None and not spread:
        check_overlap(target)
    if grad and value.requires_grad and value.node is None:
        value = value.clone()  # a leaf of its own would catch the gradient that is the other's
    if grad and target.requires_grad and not value.requires_grad:  # what was written over has a gradient: zeros
        statics = (tuple((d, 1) for d in want.shape),)
        value = apply(TABLE["slice_put"], (target, value, *(0 for _ in want.shape)), statics)
    _write(target, value, grad)
    return target


def become(target: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Let a variable be a view of what it was: `x.t_()`."""
    grad = is_grad_enabled()
    if grad and target.requires_grad:
        check_in_place(target)
    before = Tensor(target.handle, target.requires_grad and grad, target.node)
    before.base, before.how, before.made = target.base, target.how, target.made
    found = change(before)
    if found is not before:
        target.base, target.how, target.made = found.base, found.how, found.made
        _set(target, found, grad)
    return target


def give_data(target: Tensor, value: Tensor) -> None:
    """`x.data = y`: from here on x has the value of y, and what is written into one is in the other."""
    source = untaped(value)
    if source is target or target.base is source and target.how is SAME:
        return
    for view in _links(source):
        if view.base is target:  # `x.data = x.data.t()`: what x was goes on as a variable that nobody else holds
            before = Tensor(target.handle, False, None)
            before.base, before.how, before.made = target.base, target.how, target.made
            view.base = before
    target.base = target.how = target.made = None
    set_raw_handle(target, source.handle)
    link(target, source, SAME, (None, here().session.next_id()))


def clear_grad(p: Tensor, set_to_none: bool) -> None:
    """`p.grad` as None, or as zeros in place, so that whoever holds it sees them."""
    if set_to_none or p.grad is None:
        p.grad = None
        return
    p.grad.node, p.grad.requires_grad = None, False
    p.grad.zero_()
