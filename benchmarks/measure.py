"""How cases measure: GT and its rival in turns, in one run, the best of several each."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

Result = dict[str, Any]


def took(work: Callable[[], Any]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def best(ours: Callable[[], float], theirs: Callable[[], float], rounds: int) -> tuple[float, float]:
    """The least of each, measured in turns so that a busy machine is busy for both."""
    mine, other = [], []
    for _ in range(rounds):
        mine.append(ours())
        other.append(theirs())
    return min(mine), min(other)


def times(case: str, gt: float, rival: float, unit: str) -> Result:
    """A result where less is better."""
    return {"case": case, "gt": gt, "rival": rival, "unit": unit, "ratio": rival / gt}


def rates(case: str, gt: float, rival: float, unit: str) -> Result:
    """A result where more is better."""
    return {"case": case, "gt": gt, "rival": rival, "unit": unit, "ratio": gt / rival}


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The median of the ratios between the ends of its 95% interval, by resampling."""
    chosen = random.Random(0)
    medians = sorted(statistics.median(chosen.choices(ratios, k=len(ratios))) for _ in range(1000))
    return medians[25], statistics.median(ratios), medians[974]
