"""Memory that a worker gives back when clients have left: what its allocators, pools and compilers keep for the next use."""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Any

from gt.worker.engine import Engine


def give_back(engine: Engine, alone: bool) -> None:
    """Let the system have the memory that nothing uses. It takes a while, and whoever computes next pays for fresh pages: for
    when there is nothing else to do. `alone`: there are no clients, so what was compiled for them is of no use, either."""
    torch: Any = sys.modules.get("torch")
    dynamo: Any = sys.modules.get("torch._dynamo")
    if alone and dynamo is not None:
        dynamo.reset()
    gc.collect()
    if torch is not None and engine.device.startswith("cuda"):
        torch.cuda.empty_cache()
    _trim()


def _trim() -> None:
    """The C library's allocator, or the one that PyTorch's builds for ARM bring."""
    try:
        library = ctypes.CDLL(None)
    except OSError:
        return
    for name, argument in (("malloc_trim", 0), ("mi_collect", 1)):
        trim = getattr(library, name, None)
        if trim is not None:
            trim(argument)
