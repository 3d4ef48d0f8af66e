"""Modules by the names of PyTorch's files, from which scripts import: `from gt.nn.modules.activation import ReLU`."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from typing import Any


def add_files(package: dict[str, Any], files: Mapping[str, str], names: Mapping[str, Any] | None = None) -> None:
    """Make a module of each file, with the names that it has, out of the package's own or other names. A function of the same
    name stays the package's attribute."""
    found = package if names is None else names
    for file, holds in files.items():
        full = f"{package['__name__']}.{file}"
        module = types.ModuleType(full, "Names of GT, by the file that PyTorch has them in.")
        module.__dict__.update({name: found[name] for name in holds.split()})
        sys.modules[full] = module
        parent, _, last = full.rpartition(".")
        sys.modules[parent].__dict__.setdefault(last, module)
