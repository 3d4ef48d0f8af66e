"""Entering and leaving signals, and their configuration. Each thread has its own scopes."""

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
    """The session of the configuration: this thread's, or, before there is one, the future default session."""
    scope = HERE.scope
    return scope.session if scope is not None and not scope.session.closed else default.current()


def get_config() -> Config:
    """The signals that are configured."""
    return _holder().config


def load_config(path: str | os.PathLike) -> Config:
    """Read signals from a YAML file, replacing those of the same names."""
    found = read(os.fspath(path))
    return _change(found)


def register_config(name: str, config: SignalConfig) -> None:
    """Configure a signal.

    >>> gt.register_config("batch", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
    """
    Config().register(name, config)  # check before any change
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
        raise TypeError(f"a signal's name: expected a non-empty string, got {name!r}")
    config = scope.session.config.get(name)
    _check(scope.session, name, config)
    if backward is None:
        backward = config.backward_signal if config else None
    if backward:
        _check(scope.session, backward, scope.session.config.get(backward))
    scope.session.tell()
    if config is not None and config.compile:
        scope.session.mark()  # the block is traced and compiled separately
    return scope.but(signal=name, backward=backward or "")


def _check(session: Session, name: str, config: SignalConfig | None) -> None:
    """Warn, once per session, about a signal without configuration."""
    if config is None and name not in session.warned:
        session.warned.add(name)
        known = ", ".join(session.config) or "none"
        warn(f"signal {name!r} is not configured and has no effect: known are {known}")


class context:
    """`with gt.signal.context(name):` ops inside run, and their results are placed, by the signal's configuration; with
    `backward`, gradients by that signal's."""

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
    """Leave a signal; whether gradients are enabled does not change."""
    scope = HERE.scope
    if scope is None or scope.session is not before.session:
        HERE.scope = before if not before.session.closed else None
    else:
        config = scope.session.config.get(scope.signal)
        if config is not None and config.compile:
            scope.session.mark()
        HERE.scope = scope.but(signal=before.signal, backward=before.backward)


def enter(name: str, backward: str | None = None) -> None:
    """Enter a signal until `exit`, on this thread."""
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
    """The current signal, or None."""
    return (HERE.scope.signal if HERE.scope is not None else "") or None


def tensor(x: Any, name: str, backward: str | None = None) -> Any:
    """A copy of a tensor, placed by a signal; it is differentiable."""
    with context(name, backward):
        return apply(TABLE["redistribute"], (as_tensor(x),))
