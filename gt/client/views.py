"""Views: their link to the base, and the renewal of stale ones. Values on the workers never change: a write (`writes.py`) gives
the base another value; its views are then stale, and are computed again at their next use. A view holds its base and the
instruction that made it; the base does not know its views.

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
raw_handle: Callable[[Tensor], Handle] = RAW["handle"].__get__  # the value at the last use, stale or not
set_raw_handle: Callable[[Tensor, Handle], None] = RAW["handle"].__set__
RAW_GRAD: Any = vars(Tensor)["grad"]  # the field without the checks of `x.grad = y`; native.c and the tape set it, too


class Same:
    """`how` of a variable with its base's value and a tape of its own."""


class Custom:
    """`how` of a view that is not a single op: `make(base)` computes it, `strides(base's strides)` are its strides, `offset` is
    its storage offset, and `write(base, piece)` is the base with a piece in place of the view (None: by the elements'
    positions)."""

    def __init__(
        self, make: Callable[[Tensor], Tensor], strides: Callable[[tuple], tuple],
        write: Callable[[Tensor, Tensor], Tensor] | None = None, offset: Callable[[int], int] = int,
    ) -> None:  # fmt: skip
        self.make, self.strides, self.write, self.offset = make, strides, write, offset


SAME = Same()
UNMADE = -1  # in `made`, in place of the id of the base's value: no instruction has computed the view yet
UNCOUNTED = "uncounted"  # in `made` of a `Same` variable: writes to it do not count as a new version of the base


def spec_of(t: Tensor) -> Spec:
    """The spec of a variable, without renewing it. An UNMADE view has its base's value until it is computed."""
    if t.base is not None and t.made[2] is UNMADE:
        return (t.how.known if type(t.how) is Restricted else t.how).out
    return raw_handle(t).spec


def is_view(t: Tensor) -> bool:
    """Whether a variable is a view of another on the tape too."""
    return t.base is not None and t.how is not SAME


def root_of(t: Tensor) -> Tensor:
    """The base of a variable, on the tape too; itself if it is not a view."""
    while t.base is not None and t.how is not SAME:
        t = t.base
    return t


def storage_of(t: Tensor) -> Tensor:
    """The last base, whose value changes with every write to this variable."""
    while t.base is not None:
        t = t.base
    return t


def link(t: Tensor, base: Tensor, how: Any, made: tuple) -> Tensor:
    """Make a variable a view of another. `made[1]` is the id of the newest value at that time."""
    value = base.handle
    t.base, t.how, t.made = base, how, (*made[:2], value.id, *made[3:])
    if how is not SAME:
        raw_handle(t).source = origin_id(value)
    return t


def cut(t: Tensor) -> Tensor:
    """Make a variable independent of its base."""
    t.base = t.how = t.made = None
    return t


def apart(t: Tensor) -> Tensor:
    """Make the result of a view op independent, for functions that copy in PyTorch."""
    raw_handle(t).source = None
    return cut(t)


def own(t: Tensor, source: Any) -> Tensor:
    """A result that shares no memory with its operand, for functions that copy in PyTorch."""
    same = isinstance(source, Tensor) and raw_handle(t) is raw_handle(source)
    return t.clone() if same else apart(t)


def custom_view(base: Tensor, how: Custom) -> Tensor:
    """A view of a tensor that is not a single op."""
    found = cut(how.make(base))
    return link(found, base, how, (None, raw_handle(found).id))


WHOLE = Custom(lambda base: Tensor(base.handle), lambda strides: strides, lambda base, piece: piece)


def whole(t: Tensor) -> Tensor:
    """A view of a whole tensor: `x[:]`. It costs an instruction only if it is on the tape."""
    if t.requires_grad:
        return apply(TABLE["reshape"], (t,), (t.handle.spec.shape,))
    return link(Tensor(t.handle), t, WHOLE, (None, raw_handle(t).id))


def untaped(t: Tensor) -> Tensor:
    """A variable of the same value without a tape: `t` itself if it has none; else both become views of a new one."""
    _ = t.handle
    if t.base is None:
        if t.node is None:
            return t
        link(t, Tensor(raw_handle(t)), SAME, (None, 0))  # 0: earlier views of it stay views of it
    if t.how is SAME:
        return t.base  # type: ignore[return-value]
    base = untaped(t.base)  # type: ignore[arg-type]
    return t if base is t.base and t.node is None else link(Tensor(raw_handle(t)), base, t.how, t.made)


def detached(t: Tensor, counted: bool = True) -> Tensor:
    """A variable off the tape that shares its value with `t`, including writes. Writes to it are `counted`, unless it is
    `x.data`, for which PyTorch does no version check."""
    found = Tensor(t.handle)
    share(found, t, counted)
    return found


def share(t: Tensor, other: Tensor, counted: bool = True) -> None:
    """Make a variable share its value with another, including writes."""
    base = untaped(other)
    link(t, base, SAME, (None, base.handle.id, None, *(() if counted else (UNCOUNTED,))))


def remade(how: Any, base: Tensor, numbers: tuple) -> Tensor:
    if type(how) is Custom:
        return how.make(base)
    known = how.known if type(how) is Restricted else how
    return apply(known.row, (base, *numbers), known.kind.statics)


FORMER: WeakValueDictionary[int, Tensor] = (
    WeakValueDictionary()
)  # the former state of variables that took another shape in place (`x.t_()`)


def check_order(t: Tensor) -> None:
    """If the base took another shape in place after this view was made, make it a view of the base's former state; raise if the
    base took another tensor's value."""
    base: Any = t.base
    while base.base is not None and base.made[1] > t.made[1]:
        if FORMER.get(id(base.base)) is not base.base:
            raise RuntimeError(
                "this tensor is a view of one whose data has been replaced since (x.data = y), and one of both was written to: "
                "make the view again after that"
            )
        t.base = base = base.base


def renew(t: Tensor) -> None:
    """Renew a stale view from its base."""
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
    """Mark the views that one function returned, which PyTorch does not allow to change in place if gradients are enabled."""
    for t in views:
        if RAW["requires_grad"].__get__(t) and type(t.how) is Known:
            t.how = Restricted(t.how, _SEVERAL.format(name))
    return tuple(views)


_SEVERAL = (
    "this tensor is one of several views that {} returned, which cannot be changed in place where gradients are wanted: "
    "use the out-of-place form, or index the tensor instead"
)
