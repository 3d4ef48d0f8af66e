"""The tokens that one pass over the layers computes, and whose they are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class TokenSpan(NamedTuple):
    """Consecutive tokens of one request in a batch: rows from `first` on, at positions from `position` on."""

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
    wanted: np.ndarray  # rows whose logits are asked for

    def positions(self) -> np.ndarray:
        return np.concatenate([np.arange(s.position, s.length) for s in self.spans])
