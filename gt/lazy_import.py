"""Modules that are imported at their first use, because they need an optional package or take long to load."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class LazyImport(ModuleType):
    """`kernels = LazyImport("gt.tensor_ops.cuda.kernels")` at a module's top: the first attribute read imports the module."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)
