"""The parameters of functions, read from their code: `inspect.signature` takes 30 us a function, and GT asks about a thousand
functions while it is loaded."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple


class Parameters(NamedTuple):
    positional: tuple[str, ...]  # may be given by position
    keyword_only: tuple[str, ...]
    defaults: dict[str, Any]
    variadic: bool  # whether it takes `*args`

    @property
    def names(self) -> tuple[str, ...]:
        """All parameters except `*args` and `**settings`."""
        return self.positional + self.keyword_only


def parameters(function: Callable) -> Parameters:
    """The parameters of a function, or of the one that it wraps."""
    plain = inspect.unwrap(function)
    assert isinstance(plain, FunctionType), f"{function} is not written in Python"
    code = plain.__code__
    count, total = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    positional, keyword_only = code.co_varnames[:count], code.co_varnames[count:total]
    last = plain.__defaults__ or ()
    defaults = {**dict(zip(positional[count - len(last) :], last)), **(plain.__kwdefaults__ or {})}
    return Parameters(positional, keyword_only, defaults, bool(code.co_flags & inspect.CO_VARARGS))
