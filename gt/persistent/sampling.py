"""The choice of the next token from logits: a function of the logits, the options and one number in [0, 1).

That number is a hash of the request's seed and the token's position, so neither the batch nor the backend changes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy; top_k 0 and top_p 1 keep every token."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature: expected 0 (greedy) or more, got {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k: expected 0 (all tokens) or more, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: expected more than 0 and at most 1, got {self.top_p}")


def splitmix(x: int) -> int:
    """One round of SplitMix64."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def uniform(seed: int, position: int) -> float:
    return (splitmix(splitmix(seed & MASK) ^ position) >> 11) * 2.0**-53


def uniforms(seed: int, position: int, count: int) -> np.ndarray:
    """`uniform` for this many positions from `position`."""

    def mixed(x: np.ndarray) -> np.ndarray:
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))

    positions = np.arange(position, position + count, dtype=np.uint64)
    return (mixed(np.uint64(splitmix(seed & MASK)) ^ positions) >> np.uint64(11)) * 2.0**-53


def kept(logits: np.ndarray, sampling: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """The tokens that may be chosen, likeliest first, and their cumulated probabilities (not normalised)."""
    scaled = logits.astype(np.float64) / sampling.temperature
    order = np.argsort(-scaled, kind="stable")
    if sampling.top_k:
        order = order[: sampling.top_k]
    likely = np.exp(scaled[order] - scaled[order[0]])
    cumulated = np.cumsum(likely)
    if sampling.top_p < 1:
        count = int(np.searchsorted(cumulated, sampling.top_p * cumulated[-1])) + 1
        order, cumulated = order[:count], cumulated[:count]
    return order, cumulated


def choose(logits: np.ndarray, sampling: Sampling, number: float) -> int:
    if sampling.temperature == 0:
        return int(np.argmax(logits))
    order, cumulated = kept(logits, sampling)
    index = int(np.searchsorted(cumulated, number * cumulated[-1], side="right"))
    return int(order[min(index, len(order) - 1)])
