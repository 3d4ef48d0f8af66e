"""Process-wide settings of scripts. Workers use none of them, except for how tensors print."""

from __future__ import annotations

import os
from typing import Any

from gt.client import printing
from gt.client.autograd import Tensor
from gt.client.functions.registry import function
from gt.device import Device
from gt.errors import ArgumentError, ArgumentTypeError

PROFILES = {"default": (4, 1000, 3, 80), "short": (2, 1000, 2, 80), "full": (4, float("inf"), 3, 80)}


class Threads:
    """The numbers of threads that a script set. Workers have environment variables for theirs."""

    within = os.cpu_count() or 1
    between = os.cpu_count() or 1


def _counted(n: int) -> int:
    if not isinstance(n, int) or n < 1:
        raise ArgumentError(f"expected 1 thread or more, got {n}")
    return n


@function
def set_num_threads(n: int) -> None:
    """Stored for `get_num_threads`: ops run on the workers, whose threads are set by OMP_NUM_THREADS."""
    Threads.within = _counted(n)


@function
def get_num_threads() -> int:
    return Threads.within


@function
def set_num_interop_threads(n: int) -> None:
    """Stored for `get_num_interop_threads`."""
    Threads.between = _counted(n)


@function
def get_num_interop_threads() -> int:
    return Threads.between


@function
def set_default_device(device: Any) -> None:
    """Without effect: the dispatcher chooses devices."""


@function
def get_default_device() -> Device:
    return Device("cpu")


@function
def set_flush_denormal(mode: bool) -> bool:
    """False, as on a processor without support: workers keep denormal numbers."""
    return False


@function
def set_printoptions(
    precision: int | None = None, threshold: float | None = None, edgeitems: int | None = None, linewidth: int | None = None,
    profile: str | None = None, sci_mode: bool | None = None,
) -> None:  # fmt: skip
    """How tensors print, as in PyTorch: digits, the number of elements above which only the edges are shown, elements at each
    edge, the width of a line, and scientific notation (None: automatic)."""
    if profile is not None:
        if profile not in PROFILES:
            raise ArgumentError(f"no profile {profile!r}: known are {', '.join(PROFILES)}")
        printing.PRECISION, printing.THRESHOLD, printing.EDGE, printing.WIDTH = PROFILES[profile]
    if any(not isinstance(value, (int, float, type(None))) for value in (precision, threshold, edgeitems, linewidth)):
        raise ArgumentTypeError("set_printoptions takes numbers for precision, threshold, edgeitems and linewidth")
    for name, value in (("PRECISION", precision), ("THRESHOLD", threshold), ("EDGE", edgeitems), ("WIDTH", linewidth)):
        if value is not None:
            setattr(printing, name, value)
    printing.EXPONENT = sci_mode


@function
def is_nonzero(input: Tensor) -> bool:
    """Whether a tensor of one element is nonzero (reads it)."""
    if input.numel() != 1:
        raise ArgumentError(f"whether a tensor of {tuple(input.shape)} is nonzero has no single answer: use any() or all()")
    return bool(input)


@function
def is_same_size(input: Tensor, other: Tensor) -> bool:
    return tuple(input.shape) == tuple(other.shape)


@function
def typename(obj: Any) -> str:
    """The name of a tensor's type by its dtype, or of another thing's type."""
    if isinstance(obj, Tensor):
        return f"gt.{NAMES.get(obj.dtype.name, obj.dtype.name.capitalize())}Tensor"
    cls = obj if isinstance(obj, type) else type(obj)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


NAMES = {"float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long", "int32": "Int",
         "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool"}  # fmt: skip
