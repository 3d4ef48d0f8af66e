"""Signals: names for stretches of a program, which a configuration gives a meaning. `gt.signal("name")` is `context`.
`gt.signal.windows` are the window functions that PyTorch keeps under that name."""

from __future__ import annotations

import sys
from types import ModuleType

from gt.client.functions.windows import WINDOWS
from gt.client.signals import context, current, enter, exit, tensor
from gt.import_paths import add_files

__all__ = ["context", "current", "enter", "exit", "tensor"]


class _SignalModule(ModuleType):
    def __call__(self, name: str, backward: str | None = None) -> context:
        return context(name, backward)


sys.modules[__name__].__class__ = _SignalModule
add_files(globals(), {"windows": " ".join(WINDOWS)}, WINDOWS)
