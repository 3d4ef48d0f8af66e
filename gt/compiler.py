"""`torch.compiler` for scripts: `gt.compile` captures ops, not Python, so most of it has no effect."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from gt.client.compile import compile
from gt.client.here import here

__all__ = ["allow_in_graph", "assume_constant_result", "compile", "cudagraph_mark_step_begin", "disable", "is_compiling"]
__all__ += ["is_dynamo_compiling", "is_exporting", "reset", "set_stance"]


def is_compiling() -> bool:
    """Whether a function is being captured by `gt.compile`."""
    return here().session.noted is not None


is_dynamo_compiling = is_compiling


def is_exporting() -> bool:
    return False


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """The function itself, as a decorator with or without arguments."""
    return fn if fn is not None else lambda function: function


def allow_in_graph(fn: Callable) -> Callable:
    return fn


assume_constant_result = allow_in_graph


def reset() -> None:
    """Nothing to forget: programs belong to the functions that were compiled."""


cudagraph_mark_step_begin = reset


def set_stance(*args: Any, **settings: Any) -> Any:
    """Without effect."""
    return nullcontext()
