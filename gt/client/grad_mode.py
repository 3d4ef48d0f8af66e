"""Whether ops are recorded on the tape: `no_grad` and related functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from gt.client.here import here
from gt.client.scope import HERE, is_grad_enabled


class grad_mode:
    """Sets whether ops are recorded on the tape: a context manager and a decorator."""

    wanted = True

    def __init__(self, function: Callable | None = None, *, wanted: bool | None = None) -> None:
        self.function = function
        if wanted is not None:
            self.wanted = wanted

    def __new__(cls, function: Callable | None = None, **settings: Any) -> Any:
        if callable(function):
            return cls(**settings)(function)
        return object.__new__(cls)

    def __call__(self, function: Callable) -> Callable:
        @wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            before = here()
            HERE.scope = before.graded(self.wanted)
            try:
                return function(*args, **kwargs)
            finally:
                HERE.scope = before

        return inside

    def __enter__(self) -> None:
        self.before = here()
        HERE.scope = self.before.graded(self.wanted)

    def __exit__(self, *exc: object) -> None:
        HERE.scope = self.before


class no_grad(grad_mode):
    """`with gt.no_grad():` or `@gt.no_grad()`: ops inside are not recorded on the tape."""

    wanted = False


class enable_grad(grad_mode):
    """The opposite of `no_grad`, for use inside it."""


class set_grad_enabled:
    """`gt.set_grad_enabled(False)`: from now on, or, as a context manager, inside its block."""

    def __init__(self, mode: bool) -> None:
        self.before = here()
        HERE.scope = self.before.but(grad=bool(mode))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        HERE.scope = self.before


class inference_mode(grad_mode):
    """As `no_grad`; `inference_mode(False)` changes nothing."""

    wanted = False

    def __init__(self, mode: Any = True, *, wanted: bool | None = None) -> None:
        super().__init__(wanted=is_grad_enabled() if mode is False else wanted)
