"""Periods of a sequence of numbers: where its end repeats."""

from __future__ import annotations


def begin(tokens: list[int], period: int) -> int:
    """The index at which the repetition that ends with these tokens begins."""
    at = len(tokens) - period - 1
    while at >= 0 and tokens[at] == tokens[at + period]:
        at -= 1
    return at + 1


def periods(tokens: list[int]) -> list[int]:
    """Distances from the last token to its earlier occurrences, nearest first; a few suffice."""
    found, last, at = [], tokens[-1], len(tokens) - 1
    for i in range(at - 1, max(-1, at - 1 - len(tokens) // 2), -1):
        if tokens[i] == last:
            found.append(at - i)
            if len(found) == 24:
                break
    return found
