"""Ctrl-C at a given point of a call."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any


def interrupted_at(point: int, work: Callable[[], Any]) -> bool:
    """Call `work` with Ctrl-C at the n-th start of a function or end of one in C; returns whether there were so many."""
    seen = 0

    def look(frame: Any, event: str, argument: Any) -> None:
        nonlocal seen
        if event in ("call", "c_return") and "/gt/" in frame.f_code.co_filename:
            seen += 1
            if seen == point:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    sys.setprofile(look)
    try:
        work()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
    return seen >= point
