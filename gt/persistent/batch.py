"""The tokens of one pass over the layers, and their requests."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class TokenSpan(NamedTuple):
    """Consecutive tokens of one request in a batch: rows from `first`, at positions from `position`."""

    slot: int
    first: int
    rows: int
    position: int
    pages: list[int]

    @property
    def length(self) -> int:
        """Tokens of the request once this span is in the cache."""
        return self.position + self.rows


class DecodeBatch(NamedTuple):
    tokens: np.ndarray  # (rows,) int64
    spans: list[TokenSpan]
    wanted: np.ndarray  # rows whose logits are requested

    def positions(self) -> np.ndarray:
        return np.concatenate([np.arange(s.position, s.length) for s in self.spans])
