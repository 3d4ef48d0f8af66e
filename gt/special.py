"""`gt.special`: functions of analysis, under PyTorch's names."""

from __future__ import annotations

from typing import Any

from gt.client.functions.special import SPECIAL

__all__ = sorted(SPECIAL)


def __getattr__(name: str) -> Any:
    if name not in SPECIAL:
        raise AttributeError(f"module 'gt.special' has no attribute {name!r}: known are {', '.join(sorted(SPECIAL))}")
    return SPECIAL[name]


def __dir__() -> list[str]:
    return sorted(SPECIAL)
