"""Signals: names for stretches of a program, which a configuration gives a meaning. `gt.signal("name")` is `context`."""

from __future__ import annotations

import sys
from types import ModuleType

from gt.client.signals import context, current, enter, exit, tensor

__all__ = ["context", "current", "enter", "exit", "tensor"]


class _Callable(ModuleType):
    def __call__(self, name: str, backward: str | None = None) -> context:
        return context(name, backward)


sys.modules[__name__].__class__ = _Callable
