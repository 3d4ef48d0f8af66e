"""What surrounds an op as it is written: the session, the signal and whether gradients are wanted. Each thread has its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gt.client.session import Session
    from gt.spec import DType


class Scope:
    """An immutable surrounding. `kinds` is the session's table of op uses under this signal and autocast: the latter has
    its own, and no use in it that wants a cast first, so that only ops met there for the first time ask. `origin` is the
    user's line that all ops stand for, where one line asks for many (a backward pass, an optimizer's step)."""

    __slots__ = ("session", "signal", "backward", "grad", "origin", "cast", "kinds", "thread")

    def __init__(
        self, session: Session, signal: str = "", backward: str = "", grad: bool = True, origin: Any = None,
        cast: DType | None = None,
    ) -> None:  # fmt: skip
        self.session, self.signal, self.backward, self.grad = session, signal, backward, grad
        self.origin, self.cast, self.thread = origin, cast, threading.get_ident()
        self.kinds = session.kinds_under(signal, cast.name if cast is not None else "")

    def but(self, **changed: Any) -> Scope:
        fields = {n: getattr(self, n) for n in ("session", "signal", "backward", "grad", "origin", "cast")}
        return Scope(**{**fields, **changed})

    def quiet(self, origin: Any) -> Scope:
        """The same without a tape, for ops that all stand for one line: a pass over the tape, a step of an optimizer."""
        other = Scope.__new__(Scope)
        other.session, other.signal, other.backward, other.grad = self.session, self.signal, self.backward, False
        other.origin, other.cast, other.kinds = origin, self.cast, self.kinds
        return other


class _Here(threading.local):
    """The scope of this thread; None until its first op."""

    scope: Scope | None = None


HERE = _Here()


class grad_mode:
    """Whether ops go on the tape: a context manager and a decorator."""

    wanted = True

    def __init__(self, function: Callable | None = None, *, wanted: bool | None = None) -> None:
        self.function = function
        if wanted is not None:
            self.wanted = wanted

    def __new__(cls, function: Callable | None = None, **settings: Any) -> Any:
        if callable(function):
            return cls(**settings)(function)
        return object.__new__(cls)

    def __call__(self, function: Callable) -> Callable:
        @wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with type(self)(wanted=self.wanted):
                return function(*args, **kwargs)

        return inside

    def __enter__(self) -> None:
        from gt.client.session import here

        self.before = here()
        HERE.scope = self.before.but(grad=self.wanted)

    def __exit__(self, *exc: object) -> None:
        HERE.scope = self.before


class no_grad(grad_mode):
    """`with gt.no_grad():` or `@gt.no_grad()`: nothing inside goes on the tape."""

    wanted = False


class enable_grad(grad_mode):
    """The opposite of `no_grad`, for use inside it."""


class set_grad_enabled:
    """`gt.set_grad_enabled(False)`: from here on, or, as a context, inside it."""

    def __init__(self, mode: bool) -> None:
        from gt.client.session import here

        self.before = here()
        HERE.scope = self.before.but(grad=bool(mode))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        HERE.scope = self.before


class inference_mode(grad_mode):
    """As `no_grad`; `inference_mode(False)` changes nothing."""

    wanted = False

    def __init__(self, mode: Any = True, *, wanted: bool | None = None) -> None:
        super().__init__(wanted=is_grad_enabled() if mode is False else wanted)


def is_grad_enabled() -> bool:
    return HERE.scope is None or HERE.scope.grad
