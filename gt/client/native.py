"""The client's hot path in C (native.c), if it was built when GT was installed. Without it GT works the same, with about twice
the client's CPU time per op; `GT_NATIVE=0` disables it."""

from __future__ import annotations

from typing import Any

from gt.native_modules import native

NATIVE: Any = native("gt.client._native")


def last_id(session: Any) -> int:
    """The last id given so far."""
    # `count(8)`: the form by which every version of Python tells the next number without taking it
    return int(session.last) if NATIVE is not None else int(repr(session.counter)[len("count(") : -1]) - 1
