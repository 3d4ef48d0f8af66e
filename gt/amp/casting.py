"""The scope in which ops choose their own precision. Which ops do is a column of the op table."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from gt.client.here import here
from gt.client.scope import HERE
from gt.spec import DType, bfloat16, dtype_of, float16


class autocast:
    """`with gt.autocast(dtype=gt.bfloat16):` or as a decorator: matrix products, convolutions and attention inside run in
    that dtype; softmax, norms, sums, logarithms and losses in float32. Gradients run in the dtype of their forward.

    >>> with gt.autocast(dtype=gt.bfloat16):
    ...     (gt.ones(2, 2) @ gt.ones(2, 2)).dtype
    gt.bfloat16
    """

    def __init__(
        self, device_type: Any = None, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        if isinstance(device_type, DType):
            device_type, dtype = None, device_type
        # PyTorch's choice for each device; elsewhere the dtype that cannot overflow
        cast_to = dtype_of(dtype) if dtype is not None else float16 if device_type == "cuda" else bfloat16
        if cast_to not in (bfloat16, float16):
            raise TypeError(f"autocast is to bfloat16 or float16, not {cast_to.name}")
        self.dtype = cast_to if enabled else None
        self.before: list[Any] = []

    def __enter__(self) -> autocast:
        self.before.append(here())
        HERE.scope = self.before[-1].but(cast=self.dtype)
        return self

    def __exit__(self, *exc: object) -> None:
        HERE.scope = self.before.pop()

    def __call__(self, function: Callable) -> Callable:
        @wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with autocast(dtype=self.dtype or bfloat16, enabled=self.dtype is not None):
                return function(*args, **kwargs)

        return inside


def is_autocast_enabled(device_type: Any = None) -> bool:
    return HERE.scope is not None and HERE.scope.cast is not None


def get_autocast_dtype(device_type: Any = None) -> DType:
    scope = HERE.scope
    return scope.cast if scope is not None and scope.cast is not None else bfloat16
