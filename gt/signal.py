"""Signals: names for stretches of a program, which a configuration gives a meaning. `gt.signal("name")` is `context`.
`gt.signal.windows` are the window functions that PyTorch keeps under that name."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

from gt.client.functions.windows import WINDOWS
from gt.client.signals import context, current, enter, exit, tensor

__all__ = ["context", "current", "enter", "exit", "tensor"]


def __getattr__(name: str) -> Any:
    if name != "windows":
        raise AttributeError(f"module 'gt.signal' has no attribute {name!r}")
    return SimpleNamespace(**WINDOWS)


class _SignalModule(ModuleType):
    def __call__(self, name: str, backward: str | None = None) -> context:
        return context(name, backward)


sys.modules[__name__].__class__ = _SignalModule
