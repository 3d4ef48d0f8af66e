"""Arguments of functions that must be tensors, as in PyTorch: a Python number raises. Methods are not checked: their first
argument is a tensor, and GT's own code passes numbers for the others."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from gt.client.autograd import Tensor
from gt.client.functions.registry import FUNCTIONS
from gt.errors import ArgumentTypeError

BOTH = [
    "atan2",
    "fmax",
    "fmin",
    "ldexp",
    "logaddexp",
    "logaddexp2",
    "maximum",
    "minimum",
    "logical_and",
    "logical_or",
    "logical_xor",
    "heaviside",
    "lcm",
    "gcd",
    "isclose",
    "hypot",
    "complex",
    "polar",
    "nextafter",
    "arctan2",
]
FIRST = [
    "eq",
    "ge",
    "gt",
    "le",
    "lt",
    "ne",
    "fmod",
    "copysign",
    "clamp_max",
    "clamp_min",
    "rsub",
    "max",
    "min",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "not_equal",
]
EITHER = [
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_left_shift",
    "bitwise_right_shift",
    "remainder",
    "pow",
    "float_power",
    "xlogy",
    "power",
]


def _checked(name: str, fits: Callable[..., bool], wish: str) -> None:
    function = FUNCTIONS.get(name)
    if function is None:
        return

    @wraps(function)
    def call(*args: Any, **settings: Any) -> Any:
        if not fits(*args[:2]):
            kinds = " and ".join(type(a).__name__ for a in args[:2])
            raise ArgumentTypeError(f"{name}: expected {wish}, got {kinds}: write gt.tensor(...) around a number")
        return function(*args, **settings)

    FUNCTIONS[name] = call


def _tensor(a: Any) -> bool:
    return isinstance(a, Tensor) or hasattr(a, "__array__")


for _name in BOTH:
    _checked(_name, lambda *args: all(map(_tensor, args)), "tensors")
for _name in FIRST:
    _checked(_name, lambda *args: not args or _tensor(args[0]), "a tensor first")
for _name in EITHER:
    _checked(_name, lambda *args: len(args) < 2 or any(map(_tensor, args)), "a tensor among its arguments")
