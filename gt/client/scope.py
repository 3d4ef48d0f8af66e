"""The scope of an op: the session, the signal and whether gradients are enabled. Each thread has its own."""

from __future__ import annotations

import threading
from typing import Any

from gt.client.kinds import Known
from gt.client.native import NATIVE
from gt.client.session import Session
from gt.ops.table import Row, infer
from gt.program.foreach import ForeachKind
from gt.spec import DType


class Scope:
    """An immutable scope. `kinds` is the session's table of kinds under this signal and autocast: with autocast it contains
    only kinds that need no cast, so that known ops need no check. `origin` is the user's line of all ops, if one line issues
    many (a backward pass, an optimizer's step)."""

    __slots__ = ("session", "signal", "backward", "grad", "origin", "cast", "kinds", "thread")

    def __init__(
        self, session: Session, signal: str = "", backward: str = "", grad: bool = True, origin: Any = None,
        cast: DType | None = None,
    ) -> None:  # fmt: skip
        self.session, self.signal, self.backward, self.grad = session, signal, backward, grad
        self.origin, self.cast, self.thread = origin, cast, threading.get_ident()
        self.kinds = session.kinds.under(signal, cast.name if cast is not None else "")

    def learn(self, key: tuple[Any, ...], row: Row, ins: tuple[Any, ...], statics: tuple[Any, ...]) -> Known:
        """Define a kind: infer its shapes (or raise the user's error) and give it a number."""
        kinds = self.session.kinds
        with self.session.lock:
            known = self.kinds[key] = kinds.define(infer(row, ins, statics, self.signal, kinds.precision))
        return known

    def learn_list(self, key: tuple[Any, ...], kind: ForeachKind) -> Known:
        """Define an op on lists of tensors."""
        with self.session.lock:
            known = self.kinds[key] = self.session.kinds.define_list(kind)
        return known

    def but(self, **changed: Any) -> Scope:
        fields = {n: getattr(self, n) for n in ("session", "signal", "backward", "grad", "origin", "cast")}
        return Scope(**{**fields, **changed})

    def quiet(self, origin: Any) -> Scope:
        """The same scope without a tape, for the ops of one line: a backward pass, an optimizer's step."""
        other = self.graded(False)
        other.origin = origin
        return other

    def graded(self, grad: bool) -> Scope:
        """The same scope with or without a tape: `but(grad=grad)`, but faster."""
        other = Scope.__new__(Scope)
        other.session, other.signal, other.backward, other.grad = self.session, self.signal, self.backward, grad
        other.origin, other.cast, other.kinds, other.thread = self.origin, self.cast, self.kinds, self.thread
        return other


class _Here(threading.local):
    """The scope of this thread; None until its first op."""

    scope: Scope | None = None


HERE: _Here = _Here() if NATIVE is None else NATIVE.HERE


def is_grad_enabled() -> bool:
    return HERE.scope is None or HERE.scope.grad
