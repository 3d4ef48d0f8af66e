"""Runs that a second thread may execute during another client's long kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Protocol

from gt.transport.messages import Run
from gt.worker.client_values import ClientValues
from gt.worker.programs.compile import COLLECTIVE, FREED, TRACE, Executable
from gt.worker.turns import LIGHT

SHORT = 5e-4  # estimated seconds on one core of all programs of a short run


class LongKernels(Protocol):
    """The second thread, as the turns know it."""

    inside: bool  # whether the worker's own thread is inside a long kernel

    def is_current(self) -> bool: ...
    def check(self) -> None: ...
    def call(self, work: Callable[[], None]) -> None: ...


def is_short(values: ClientValues, run: Run) -> bool:
    """Whether a run is certain to take a moment: its kinds are defined, and neither large nor collectives, nor products in a
    precision of their own, as PyTorch has one setting of that for all threads."""
    if run.kinds or run.traces or values.guarded or values.has_sharded or len(run.code) > LIGHT:
        return False
    code: Sequence[tuple[Any, ...]] = run.code
    seconds = 0.0
    for ins in code:
        form, _, ready = values.kinds.get(ins[0], (COLLECTIVE, None, None))  # one that is not defined is refused in its turn
        if form == TRACE:
            seconds += ready.seconds if isinstance(ready, Executable) and not ready.compile and ready.is_plain else inf
        elif form == COLLECTIVE or form != FREED and (ready.large or ready.kind.precision):
            return False
    return seconds <= SHORT
