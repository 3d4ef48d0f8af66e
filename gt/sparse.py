"""`gt.sparse`: products with sparse matrices, under PyTorch's names."""

from __future__ import annotations

from typing import Any

from gt.client.functions.sparse import SPARSE

__all__ = sorted(SPARSE)


def __getattr__(name: str) -> Any:
    if name not in SPARSE:
        raise AttributeError(f"module 'gt.sparse' has no attribute {name!r}: known are {', '.join(sorted(SPARSE))}")
    return SPARSE[name]


def __dir__() -> list[str]:
    return sorted(SPARSE)
