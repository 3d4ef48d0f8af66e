"""Tracebacks of failed instructions. Their text is written when it is read: most are never read, and to write one takes longer
than most kernels."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import Any

SHOWN = 6  # most entries of a text: the last calls, and the exception's own line
CAUSES = 4  # most exceptions of a chain
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


class Traceback:
    """The last calls of an exception and of its causes. It keeps no frame, as frames hold the operands."""

    __slots__ = ("parts",)

    def __init__(self, error: BaseException) -> None:
        self.parts: list[tuple[list[tuple[str, int, str, None]], list[str], str]] = []  # the first cause last
        found, link = error, ""
        while len(self.parts) < CAUSES:
            self.parts.append((_calls(found), _own_lines(found), link))
            if found.__cause__ is not None:
                found, link = found.__cause__, CAUSE
            elif found.__context__ is not None and not found.__suppress_context__:
                found, link = found.__context__, CONTEXT
            else:
                return

    def __str__(self) -> str:
        return "".join(list(self._entries())[-SHOWN:])

    def _entries(self) -> Iterator[str]:
        for calls, lines, link in reversed(self.parts):
            if calls:
                yield "Traceback (most recent call last):\n"
            yield from traceback.StackSummary.from_list(calls).format()
            yield from lines
            if link:
                yield link


def _calls(error: BaseException) -> list[tuple[str, int, str, None]]:
    """File, line and function of the last calls; the source is read with the text."""
    found, at = [], error.__traceback__
    while at is not None:
        found.append(at)
        at = at.tb_next
    return [(t.tb_frame.f_code.co_filename, t.tb_lineno or 0, t.tb_frame.f_code.co_name, None) for t in found[-SHOWN:]]


def _own_lines(error: BaseException) -> list[str]:
    """The line of an exception, and its notes."""
    of: Any = type(error)
    name = of.__qualname__ if of.__module__ in ("builtins", "__main__") else f"{of.__module__}.{of.__qualname__}"
    text = str(error)
    return [f"{name}: {text}\n" if text else f"{name}\n", *(f"{note}\n" for note in getattr(error, "__notes__", ()))]
