"""`gt.masked`: reductions of unmasked elements, under PyTorch's names."""

from __future__ import annotations

from typing import Any

from gt.client.functions.masked import MASKED

__all__ = sorted(MASKED)


def __getattr__(name: str) -> Any:
    if name not in MASKED:
        raise AttributeError(f"module 'gt.masked' has no attribute {name!r}: known are {', '.join(sorted(MASKED))}")
    return MASKED[name]


def __dir__() -> list[str]:
    return sorted(MASKED)
