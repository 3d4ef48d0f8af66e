"""The parts in C. GT works the same without them, more slowly."""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any

from gt import environment
from gt.source_digest import source_digest


def native(name: str) -> Any:
    """The module of this name in C, such as gt.client._native. None with `GT_NATIVE=0`, where it was not built, as there was no
    compiler, and where its source has changed since."""
    if not environment.NATIVE.value():
        return None
    try:
        module = importlib.import_module(name)
    except ImportError:
        return None
    source = Path(module.__file__ or "").parent / f"{name.rpartition('.')[2].removeprefix('_')}.c"
    if source.exists() and source_digest(source) != module.__doc__:
        warnings.warn(
            f"{source} has changed since {name} was built, which is not used: build it by `pip install -e .`", stacklevel=2
        )
        return None
    return module
