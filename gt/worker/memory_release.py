"""Returns memory to the system when clients have left: the caches of allocators, pools and compilers."""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Any

from gt.worker.engine import Engine


def give_back(engine: Engine, alone: bool) -> None:
    """Return unused memory to the system. It is slow, and the next computation has to map fresh pages, so it is done when the
    worker is idle. `alone`: there are no clients, so that compiled code is dropped, too."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    if alone and dynamo is not None:
        dynamo.reset()
    gc.collect()
    free_cached(engine)
    _trim()


def free_cached(engine: Engine, most: int = 0) -> None:
    """Empty PyTorch's cache of device memory if it has more than `most` bytes. The cache belongs to one stream: another client
    cannot use it."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and engine.device.startswith("cuda") and torch.cuda.memory_reserved(engine.device.split()[0]) > most:
        torch.cuda.empty_cache()


def _trim() -> None:
    """Trim the C library's allocator, or that of PyTorch's builds for ARM."""
    try:
        library = ctypes.CDLL(None)
    except OSError:
        return
    for name, argument in (("malloc_trim", 0), ("mi_collect", 1)):
        trim = getattr(library, name, None)
        if trim is not None:
            trim(argument)
