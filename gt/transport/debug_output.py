"""Lines for people on standard error: messages, as GT_DEBUG_CLIENT and GT_DEBUG_WORKER show them, and remarks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sized
from typing import Any

import msgspec

See = Callable[[str, Any], None]  # a direction, "->" or "<-", and a message
LONG = 1000


def show(text: str) -> None:
    """A line on standard error. Where nobody reads that, or its disk is full, the line is lost and nothing else is."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def line(message: Any) -> str:
    """The message's name and fields; of a long one, its beginning and how many things it holds."""
    fields = []
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if value in ((), [], "", None, False) or name == "key":
            continue
        text = repr(msgspec.to_builtins(value, builtin_types=(bytes,)))
        if len(text) > LONG:
            text = f"{text[:LONG]}... ({len(value)} in all)" if isinstance(value, Sized) else text[:LONG]
        fields.append(f"{name}={text}")
    return f"{type(message).__name__} {' '.join(fields)}".rstrip()


def trace(who: str, wanted: bool) -> See | None:
    """A function that shows messages, if they are wanted."""
    if not wanted:
        return None

    def see(direction: str, message: Any) -> None:
        show(f"{who} {direction} {line(message)}")

    return see


def said(who: str, wanted: bool) -> Callable[[str], None] | None:
    """A function that shows a remark, if they are wanted."""
    if not wanted:
        return None
    return lambda remark: show(f"{who}: {remark}")
