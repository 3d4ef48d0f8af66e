"""`gt.linalg`: linear algebra under PyTorch's names."""

from __future__ import annotations

from typing import Any

from gt.client.functions.linalg import LINALG
from gt.errors import LinAlgError

__all__ = ["LinAlgError", *sorted(LINALG)]


def __getattr__(name: str) -> Any:
    if name not in LINALG:
        raise AttributeError(f"module 'gt.linalg' has no attribute {name!r}: known are {', '.join(sorted(LINALG))}")
    return LINALG[name]


def __dir__() -> list[str]:
    return sorted(__all__)
