"""The garbage collector, where another thread may be in it."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any


def collect() -> None:
    """Collect garbage of all generations. `gc.collect()` does nothing while another thread collects, such as a compiler's."""
    done: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "stop" and info["generation"] == 2:
            done.append(threading.get_ident())

    gc.callbacks.append(note)
    try:
        while threading.get_ident() not in done:
            gc.collect()
            time.sleep(0)
    finally:
        gc.callbacks.remove(note)
