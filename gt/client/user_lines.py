"""The user's lines of results, for messages."""

from __future__ import annotations

import linecache
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from gt.client.native import NATIVE

RING = 1 << 16  # number of the last results whose lines are kept


def line_of(origin: tuple[Any, int]) -> str:
    """`file, line n, in function: text` for a code object and an offset in it."""
    code, line = origin[0], _number(*origin)
    return f'File "{code.co_filename}", line {line}, in {code.co_name}\n    {linecache.getline(code.co_filename, line).strip()}'


def short_line(origin: tuple[Any, int]) -> str:
    """`train.py:12`."""
    return f"{os.path.basename(origin[0].co_filename)}:{_number(*origin)}"


def _number(code: Any, at: int) -> int:
    """The number of the line at an offset in a code object."""
    lines = (line for start, stop, line in code.co_lines() if start <= at < stop and line)
    return next(lines, code.co_firstlineno)


def warn(text: str) -> None:
    """Warn with the user's line as location."""
    frame, level = sys._getframe(1), 2
    while frame.f_globals.get("__name__", "").startswith("gt.") and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


def origin(depth: int) -> tuple[Any, int]:
    """The innermost line outside this package."""
    frame = sys._getframe(depth)
    while frame.f_globals.get("__name__", "")[:3] == "gt." and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def _user_origin() -> tuple[Any, int]:
    return origin(2)


# The same in C, of whoever calls it.
user_origin: Callable[[], tuple[Any, int]] = NATIVE.origin if NATIVE is not None else _user_origin
