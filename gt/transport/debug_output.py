"""Lines on standard error: messages (GT_DEBUG_CLIENT, GT_DEBUG_WORKER), and remarks."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import sys
from collections.abc import Callable, Sized
from typing import Any

import msgspec

See = Callable[[str, Any], None]  # called with a direction, "->" or "<-", and a message
LONG = 1000


PIPE_BUF = 4096  # bytes that a pipe takes whole or not at all
PATIENCE = 200  # milliseconds to wait for room in a pipe


class StandardError:
    """Standard error without blocking. If it is a full pipe that no process reads, text is lost; the number of losses is
    written once there is room. No process of GT waits for a reader of its output."""

    def __init__(self) -> None:
        self.lost = 0

    def write(self, text: str) -> None:
        try:
            descriptor = sys.stderr.fileno()
        except (AttributeError, OSError, ValueError):  # not a file: in a test or a notebook
            sys.stderr.write(text)
            return
        told = f"\ngt: {self.lost} writes to this pipe were lost, as no process read it\n" if self.lost else ""
        written = _write(descriptor, (told + text).encode(errors="replace"), 0 if self.lost else PATIENCE)
        self.lost = 0 if written else self.lost + 1

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """Standard error is shared with other code and stays open."""


def _write(descriptor: int, data: bytes, patience: int) -> bool:
    """Write a text; returns whether all of it was written. Other processes may share standard error and expect blocking writes,
    so a pipe is opened a second time for non-blocking writes."""
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
    """Write a line on standard error. If it cannot be written (no reader, a full disk), only the line is lost."""
    with contextlib.suppress(OSError, ValueError):
        STANDARD_ERROR.write(f"{text}\n")


def line(message: Any) -> str:
    """The message's name and fields; a long field is shortened, with its number of items."""
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
    """A function that shows messages, if enabled."""
    if not wanted:
        return None

    def see(direction: str, message: Any) -> None:
        show(f"{who} {direction} {line(message)}")

    return see


def said(who: str, wanted: bool) -> Callable[[str], None] | None:
    """A function that shows a remark, if enabled."""
    if not wanted:
        return None
    return lambda remark: show(f"{who}: {remark}")
