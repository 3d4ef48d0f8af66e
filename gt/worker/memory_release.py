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
    dynamo: Any = sys.modules.get("torch._dynamo")
    if alone and dynamo is not None:
        dynamo.reset()
    gc.collect()
    free_cached(engine)
    _trim()


def free_cached(engine: Engine, most: int = 0) -> None:
    """Have PyTorch give the device the memory that no tensor lies in, where it keeps more than so many bytes. It keeps that for
    the stream that had it: another client cannot use it."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and engine.device.startswith("cuda") and torch.cuda.memory_reserved(engine.device.split()[0]) > most:
        torch.cuda.empty_cache()


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
