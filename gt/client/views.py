"""Views: how a variable is tied to its base, and how a stale one is renewed. Values on the workers never change: a write
(`writes.py`) gives the base another value; its views are then stale, and are made again when they are used next. A view
holds its base and the instruction that made it, nothing more; the base does not know its views.

Two variables may also share a value and not the tape (`x.detach()`, `x.data`): their base is then the same, as SAME."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from gt.client.apply import apply
from gt.client.autograd import Tensor
from gt.client.handle import Handle, origin_id
from gt.client.here import here
from gt.client.kinds import Known, Restricted
from gt.client.scope import HERE
from gt.ops.table import TABLE
from gt.spec import Spec

RAW: dict[str, Any] = {name: vars(Tensor)[name] for name in ("handle", "requires_grad", "node")}
raw_handle: Callable[[Tensor], Handle] = RAW["handle"].__get__  # the value as it was when last used, stale or not
set_raw_handle: Callable[[Tensor, Handle], None] = RAW["handle"].__set__


class Same:
    """How a variable was made that has its base's value and a tape of its own."""


class Custom:
    """How a view was made that is no single op: `make(base)` computes it, `strides(those of the base)` are its distances,
    `offset` elements lie before its first, and `write(base, piece)` is the base with a piece in place of the view (None: by
    the elements' positions)."""

    def __init__(
        self, make: Callable[[Tensor], Tensor], strides: Callable[[tuple], tuple],
        write: Callable[[Tensor, Tensor], Tensor] | None = None, offset: Callable[[int], int] = int,
    ) -> None:  # fmt: skip
        self.make, self.strides, self.write, self.offset = make, strides, write, offset


SAME = Same()
UNMADE = -1  # in `made` of a view that no instruction made yet, in place of the id of the base's value
UNCOUNTED = "uncounted"  # in `made` of what has its base's value: writes to it are no new version of the base


def spec_of(t: Tensor) -> Spec:
    """The shape and dtype of a variable, which need not be brought up to date for it. A view that waits to be made has its
    base's value until then."""
    if t.base is not None and t.made[2] is UNMADE:
        return (t.how.known if type(t.how) is Restricted else t.how).out
    return raw_handle(t).spec


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
    value = base.handle
    t.base, t.how, t.made = base, how, (*made[:2], value.id, *made[3:])
    if how is not SAME:
        raw_handle(t).source = origin_id(value)
    return t


def cut(t: Tensor) -> Tensor:
    """Let a variable stand for itself."""
    t.base = t.how = t.made = None
    return t


def apart(t: Tensor) -> Tensor:
    """Let a variable that was made as a view have memory of its own, as PyTorch has it."""
    raw_handle(t).source = None
    return cut(t)


def own(t: Tensor, source: Any) -> Tensor:
    """A result that shares nothing with what it was made of, for functions that copy in PyTorch."""
    same = isinstance(source, Tensor) and raw_handle(t) is raw_handle(source)
    return t.clone() if same else apart(t)


def custom_view(base: Tensor, how: Custom) -> Tensor:
    """A view of a tensor that is no single op."""
    found = cut(how.make(base))
    return link(found, base, how, (None, raw_handle(found).id))


WHOLE = Custom(lambda base: Tensor(base.handle), lambda strides: strides, lambda base, piece: piece)


def whole(t: Tensor) -> Tensor:
    """A view of all of a tensor in its own shape: `x[:]`. It costs an instruction only where it has a place on the tape."""
    if t.requires_grad:
        return apply(TABLE["reshape"], (t,), (t.handle.spec.shape,))
    return link(Tensor(t.handle), t, WHOLE, (None, raw_handle(t).id))


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


def detached(t: Tensor, counted: bool = True) -> Tensor:
    """A variable of the same value off the tape: what is written into one is in the other. Writes to it are `counted`, unless
    it is `x.data`, which PyTorch lets change without a word."""
    found = Tensor(t.handle)
    share(found, t, counted)
    return found


def share(t: Tensor, other: Tensor, counted: bool = True) -> None:
    """Let a variable that has another's value keep to it: what is written into one is in the other."""
    base = untaped(other)
    link(t, base, SAME, (None, base.handle.id, None, *(() if counted else (UNCOUNTED,))))


def remade(how: Any, base: Tensor, numbers: tuple) -> Tensor:
    if type(how) is Custom:
        return how.make(base)
    known = how.known if type(how) is Restricted else how
    return apply(known.row, (base, *numbers), known.kind.statics)


FORMER: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # what took another shape in place (`x.t_()`), as it was


def check_order(t: Tensor) -> None:
    """Where the base took another shape in place after this view of it was made, let it be a view of what the base was; raise
    where the base took another tensor's value."""
    base: Any = t.base
    while base.base is not None and base.made[1] > t.made[1]:
        if FORMER.get(id(base.base)) is not base.base:
            raise RuntimeError(
                "this tensor is a view of one that has since been given other data in place (x.data = y), and one of both was "
                "written to: make the view again after that"
            )
        t.base = base = base.base


def renew(t: Tensor) -> None:
    """Bring a view up to date with its base."""
    check_order(t)
    base: Any = t.base
    value, made = base.handle, t.made or ()
    if t.how is SAME:
        set_raw_handle(t, value)
    else:
        outer = here()
        kind = getattr(getattr(t.how, "known", t.how), "kind", None)
        signal = kind.signal if kind is not None else outer.signal
        HERE.scope = outer.but(grad=type(t.how) is not Restricted or not _no_grad(t), signal=signal, cast=None)
        try:
            found = remade(t.how, base, made[3:])
        finally:
            HERE.scope = outer
        set_raw_handle(t, found.handle)
        found.handle.source = origin_id(value)
        if RAW["node"].__get__(t) is not None or not RAW["requires_grad"].__get__(t):  # a leaf stays one
            RAW["node"].__set__(t, found.node)
            RAW["requires_grad"].__set__(t, found.requires_grad)
    t.made = (*made[:2], value.id, *made[3:])


def _no_grad(t: Tensor) -> bool:
    return t.how is t.how.known.unseen


def stale(t: Tensor) -> bool:
    while t.base is not None:
        if raw_handle(t.base).id != t.made[2]:
            return True
        t = t.base
    return False


def one_of_several(views: list[Tensor], name: str) -> tuple[Tensor, ...]:
    """The views that one function returned, which PyTorch does not let change in place where gradients are wanted."""
    for t in views:
        if RAW["requires_grad"].__get__(t) and type(t.how) is Known:
            t.how = Restricted(t.how, _SEVERAL.format(name))
    return tuple(views)


_SEVERAL = (
    "this tensor is one of several views that {} returned, which cannot be changed in place where gradients are wanted: "
    "use the out-of-place form, or index the tensor instead"
)
