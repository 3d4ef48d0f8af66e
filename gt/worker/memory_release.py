"""Returns memory to the system when clients have left: the caches of allocators, pools and compilers."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from gt.transport import heap
from gt.worker.engine import Engine
from gt.worker.mimalloc import COLLECT, collect_function


class MemoryRelease:
    """A worker's return of unused memory, with counts of its calls."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()  # by allocator's function
        self.collect: Callable[[bool], Any] | None = None
        self.looked_for = False  # whether `collect` was looked for after PyTorch was loaded

    def give_back(self, engine: Engine, alone: bool, elsewhere: Callable[[Callable[[], None]], None]) -> None:
        """Return unused memory to the system. It is slow, and the next computation has to map fresh pages, so it is done when
        the worker is idle. `alone`: there are no clients, so that compiled code is dropped, too. `elsewhere(work)` calls `work`
        on the other thread that runs kernels, if there is one: mimalloc has free memory by thread."""
        dynamo: Any = sys.modules.get("torch._dynamo")
        if alone and dynamo is not None:
            dynamo.reset()
        gc.collect()
        free_cached(engine)
        self._trim()
        if self.collect is not None:
            elsewhere(partial(self.collect, True))

    def _trim(self) -> None:
        """Trim the C library's allocator, and that of PyTorch's builds for ARM."""
        if heap.trim():
            self.calls[heap.TRIM] += 1
        if not self.looked_for and "torch" in sys.modules:
            self.looked_for, self.collect = True, collect_function()
        if self.collect is not None:
            self.collect(True)
            self.calls[COLLECT] += 1

    def stats(self) -> dict[str, Any]:
        return {"memory_returns": dict(self.calls)}


def free_cached(engine: Engine, most: int = 0) -> None:
    """Empty PyTorch's cache of device memory if it has more than `most` bytes. The cache belongs to one stream: another client
    cannot use it."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and engine.device.startswith("cuda") and torch.cuda.memory_reserved(engine.device.split()[0]) > most:
        torch.cuda.empty_cache()
