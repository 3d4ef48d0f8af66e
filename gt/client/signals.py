"""Entering and leaving signals, and the configuration that says what they mean. Scopes are each thread's own."""

from __future__ import annotations

import os
import threading
from typing import Any

from gt.client import default
from gt.client.apply import apply
from gt.client.functions.create import as_tensor
from gt.client.here import here
from gt.client.scope import HERE, Scope
from gt.client.session import Session
from gt.client.user_lines import warn
from gt.config import Config, SignalConfig, read
from gt.ops.table import TABLE


class _Entered(threading.local):
    """The signals that this thread entered by `enter`, with the scopes it had before."""

    def __init__(self) -> None:
        self.stack: list[tuple[str, Scope]] = []


_entered = _Entered()


def _holder() -> Any:
    """Whose configuration it is: this thread's session, or, before there is one, the default session to come."""
    scope = HERE.scope
    return scope.session if scope is not None and not scope.session.closed else default.current()


def get_config() -> Config:
    """The signals that are configured."""
    return _holder().config


def load_config(path: str | os.PathLike) -> Config:
    """Read signals from a YAML file; those that were there under the same names are replaced."""
    found = read(os.fspath(path))
    return _change(found)


def register_config(name: str, config: SignalConfig) -> None:
    """Say what a signal means.

    >>> gt.register_config("batch", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
    """
    Config().register(name, config)  # checked before anything changes
    _change({name: config})


def _change(signals: dict[str, SignalConfig]) -> Config:
    holder = _holder()
    for name, config in signals.items():
        holder.config.register(name, config)
    if isinstance(holder, Session):
        holder.configure(holder.config.wire())
    return holder.config


def under(scope: Scope, name: str, backward: str | None = None) -> Scope:
    """The scope inside a signal."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"a signal's name is a word, not {name!r}")
    config = scope.session.config.get(name)
    _check(scope.session, name, config)
    if backward is None:
        backward = config.backward_signal if config else None
    if backward:
        _check(scope.session, backward, scope.session.config.get(backward))
    scope.session.tell()
    if config is not None and config.compile:
        scope.session.mark()  # what is inside repeats and is compiled by itself
    return scope.but(signal=name, backward=backward or "")


def _check(session: Session, name: str, config: SignalConfig | None) -> None:
    """Warn, once a session, of a signal that says nothing."""
    if config is None and name not in session.warned:
        session.warned.add(name)
        known = ", ".join(session.config) or "none"
        warn(f"signal {name!r} is not configured and has no effect: known are {known}")


class context:
    """`with gt.signal.context(name):` tensors made inside are placed, and ops inside computed, as the signal says; with
    `backward`, their gradients as that signal says."""

    def __init__(self, name: str, backward: str | None = None) -> None:
        self.name, self.backward = name, backward
        self.before: list[Scope] = []

    def __enter__(self) -> context:
        before = here()
        HERE.scope = under(before, self.name, self.backward)
        self.before.append(before)
        return self

    def __exit__(self, *exc: object) -> None:
        _restore(self.before.pop())


def _restore(before: Scope) -> None:
    """Leave a signal; whether gradients are wanted is another matter and stays."""
    scope = HERE.scope
    if scope is None or scope.session is not before.session:
        HERE.scope = before if not before.session.closed else None
    else:
        config = scope.session.config.get(scope.signal)
        if config is not None and config.compile:
            scope.session.mark()
        HERE.scope = scope.but(signal=before.signal, backward=before.backward)


def enter(name: str, backward: str | None = None) -> None:
    """Enter a signal until `exit`, in this thread."""
    before = here()
    HERE.scope = under(before, name, backward)
    _entered.stack.append((name, before))


def exit(name: str | None = None) -> None:
    """Leave the signal that was entered last."""
    if not _entered.stack:
        raise RuntimeError(f"no signal was entered in this thread, so {'none' if name is None else repr(name)} can be left")
    if name is not None and _entered.stack[-1][0] != name:
        inside = ", ".join(n for n, _ in _entered.stack)
        raise RuntimeError(f"cannot leave signal {name!r}: entered are {inside}, the last one first to be left")
    _restore(_entered.stack.pop()[1])


def current() -> str | None:
    """The signal this line runs under, or None."""
    return (HERE.scope.signal if HERE.scope is not None else "") or None


def tensor(x: Any, name: str, backward: str | None = None) -> Any:
    """A copy of a tensor, placed as a signal says; gradients go through it."""
    with context(name, backward):
        return apply(TABLE["redistribute"], (as_tensor(x),))
