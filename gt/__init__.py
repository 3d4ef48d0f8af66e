"""GT: eager tensors on a shared pool of devices. Public names, nothing else; each part loads on its first use."""

from __future__ import annotations

import importlib
from typing import Any

from gt.spec import DType as dtype
from gt.spec import (
    bfloat16,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    promote_types,
    uint8,
)
from gt.spec import bool_ as bool  # noqa: A001

__version__ = "0.1.0"
double, half, long, short, float = float64, float16, int64, int16, float32  # noqa: A001
int = int32  # noqa: A001

_FROM = {
    "gt.client.autograd": ["Tensor"],
    "gt.client.default": ["connect", "disconnect", "gpu_workers", "is_connected"],
    "gt.client.signals": ["load_config", "register_config", "get_config"],
    "gt.config": ["ShardConfig", "SignalConfig"],
    "gt.client.scope": ["no_grad", "enable_grad", "is_grad_enabled"],
}
_PARTS = ["nn", "debug", "errors", "linalg", "signal", "testing"]
_PLACES = {name: module for module, names in _FROM.items() for name in names}

__all__ = [
    "dtype",
    "promote_types",
    "bfloat16",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
]
__all__ += ["bool", "double", "half", "long", "short", "float", "int", *_PLACES, *_PARTS]


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        value = importlib.import_module(f"gt.{name}")
    elif name in _PLACES:
        importlib.import_module("gt.client.functions")
        value = getattr(importlib.import_module(_PLACES[name]), name)
    elif name.startswith("_"):
        raise AttributeError(f"module 'gt' has no attribute {name!r}")
    else:
        functions = importlib.import_module("gt.client.functions").FUNCTIONS
        if name not in functions:
            raise AttributeError(f"module 'gt' has no attribute {name!r}")
        value = functions[name]
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    functions = importlib.import_module("gt.client.functions").FUNCTIONS
    return sorted({*globals(), *__all__, *functions})
