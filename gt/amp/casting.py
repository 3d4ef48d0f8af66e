"""The scope in which ops choose their own precision. Which ops do is a column of the op table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from gt.client.autograd import Tensor
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
            raise TypeError(f"autocast: expected bfloat16 or float16, got {cast_to.name}")
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


def is_autocast_available(device_type: str) -> bool:
    """True: mixed precision does not depend on the device."""
    return True


def custom_fwd(fwd: Any = None, *, device_type: str = "cuda", cast_inputs: Any = None) -> Any:
    """A Function's forward that runs in the mode it is called in, or outside it with its floats cast to `cast_inputs`."""
    if fwd is None:
        return partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @wraps(fwd)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if cast_inputs is None or not is_autocast_enabled():
            return fwd(*args, **kwargs)
        with autocast(device_type, enabled=False):
            return fwd(*(_cast(a, cast_inputs) for a in args), **{k: _cast(v, cast_inputs) for k, v in kwargs.items()})

    return forward


def _cast(value: Any, dtype: Any) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.dtype.rank == 2 and value.dtype.name != "float64" else value


def custom_bwd(bwd: Any = None, *, device_type: str = "cuda") -> Any:
    """A Function's backward, which runs in the mode its forward ran in."""
    return partial(custom_bwd, device_type=device_type) if bwd is None else bwd
