"""This thread's scope, with the default session if there is none."""

from __future__ import annotations

from gt.client import default
from gt.client.scope import HERE, Scope


def here() -> Scope:
    """This thread's scope; the first use starts the default session."""
    scope = HERE.scope
    if scope is None or scope.session.closed:
        scope = HERE.scope = Scope(default.session())
    return scope
