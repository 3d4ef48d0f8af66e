"""`torch.jit`, as far as it changes nothing: a scripted function or module is returned unchanged.
`gt.compile` makes programs of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from gt import missing_names

__all__ = ["export", "ignore", "is_scripting", "is_tracing", "load", "save", "script", "script_method", "trace", "unused"]


def script(obj: Any, *args: Any, **settings: Any) -> Any:
    """The function, class or module itself."""
    return obj


def trace(func: Any, example_inputs: Any = None, *args: Any, **settings: Any) -> Any:
    """The function or module itself, of which every branch stays."""
    return func


def ignore(drop: Any = False, **settings: Any) -> Any:
    """The function itself, as a decorator with or without arguments."""
    return drop if callable(drop) else lambda function: function


def script_method(function: Callable) -> Callable:
    return function


export = unused = script_method


def is_scripting() -> bool:
    return False


is_tracing = is_scripting


def save(*args: Any, **settings: Any) -> NoReturn:
    raise NotImplementedError("GT writes no TorchScript: save the weights, gt.save(model.state_dict(), 'model.safetensors')")


def load(*args: Any, **settings: Any) -> NoReturn:
    raise NotImplementedError(
        "GT reads no TorchScript, which is code: load weights into a module, gt.load('model.safetensors')"
    )


__getattr__ = missing_names.of(__name__)
