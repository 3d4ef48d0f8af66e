"""Questions: stretches of a few ops between two reads. On CPUs ops one by one are as fast as a call of a trace, but on a GPU a
trace is one graph to launch, so a question that comes often becomes one, where not all workers are CPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

OFTEN = 16  # times that it has come before
MOST = 32  # questions that become traces: each may have a graph on a GPU
SEEN = 512  # most questions that are counted


def have_devices(workers: tuple[Any, ...]) -> bool:
    """Whether a worker, as far as they are known, has another device than a CPU."""
    return any(worker.device != "cpu" for worker in workers)


class FrequentQuestions:
    LEAST = 2  # ops

    def __init__(self) -> None:
        self.times: Counter[tuple[int, ...]] = Counter()  # by the tokens of their ops
        self.traces = 0
        self.pay: Callable[[], bool] = lambda: True  # whether a worker may have graphs; set by the session

    def came(self, key: tuple[int, ...]) -> bool | None:
        """Whether a question that has come is to become a trace now; None: not yet. One that fits no trace is let be."""
        if self.full():
            return False
        if len(self.times) > SEEN:
            self.times.clear()
        self.times[key] += 1
        return None if self.times[key] < OFTEN else self.times[key] < 2 * OFTEN and self.pay()

    def full(self) -> bool:
        """Whether no more may become traces."""
        return self.traces >= MOST

    def clear(self) -> None:
        self.times.clear()
        self.traces = 0
