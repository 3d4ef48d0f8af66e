"""Lines for people on standard error: messages, as GT_DEBUG_CLIENT and GT_DEBUG_WORKER show them, and remarks."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
from collections.abc import Callable, Sized
from typing import Any

import msgspec

See = Callable[[str, Any], None]  # a direction, "->" or "<-", and a message
LONG = 1000


PIPE_BUF = 4096  # bytes that a pipe takes whole or not at all
PATIENCE = 200  # milliseconds for whoever reads a pipe to make room in it


class StandardError:
    """Standard error, as far as it can be written at once. Where it is a pipe that is full, as nobody reads it, text is lost;
    how often is told when there is room again. No process of GT waits for whoever looks on."""

    def __init__(self) -> None:
        self.lost = 0

    def write(self, text: str) -> None:
        try:
            descriptor = sys.stderr.fileno()
        except (AttributeError, OSError, ValueError):  # no file: a test's, or a notebook's
            sys.stderr.write(text)
            return
        told = f"\ngt: {self.lost} times nobody read this, and text was lost\n" if self.lost else ""
        written = _write(descriptor, (told + text).encode(errors="replace"), 0 if self.lost else PATIENCE)
        self.lost = 0 if written else self.lost + 1

    def flush(self) -> None:
        """It keeps nothing back."""

    def close(self) -> None:
        """It is others', too."""


def _write(descriptor: int, data: bytes, patience: int) -> bool:
    """Whether the whole of it could be written. Standard error may be shared with processes that expect their writes to wait,
    so a pipe is opened once more to be written without waiting."""
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode) or not os.path.exists("/proc/self/fd"):
        while data:
            data = data[os.write(descriptor, data) :]
        return True
    own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK)
    try:
        room = select.poll()
        room.register(own, select.POLLOUT)
        for at in range(0, len(data), PIPE_BUF):
            room.poll(patience)
            os.write(own, data[at : at + PIPE_BUF])
    except BlockingIOError:
        return False
    finally:
        os.close(own)
    return True


STANDARD_ERROR = StandardError()


def show(text: str) -> None:
    """A line on standard error. Where nobody reads that, or its disk is full, the line is lost and nothing else is."""
    with contextlib.suppress(OSError, ValueError):
        STANDARD_ERROR.write(f"{text}\n")


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
