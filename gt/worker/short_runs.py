"""Runs that may be executed within another client's turn: by a second thread during a long kernel on a CPU, and in the middle
of a long call on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Protocol

from gt.ops.table import spec_in
from gt.program.code import number_of
from gt.spec import Spec
from gt.transport.messages import Run
from gt.worker.client_values import ClientValues
from gt.worker.programs.compile import COLLECTIVE, FREED, TRACE, Executable
from gt.worker.transfers import INLINE
from gt.worker.turns import LIGHT

UNKNOWN = COLLECTIVE, None, None  # of a kind that is not defined, which is refused in its client's turn
SHORT = 5e-4  # estimated seconds on one core of all programs of a short run


Fits = Callable[[ClientValues, Run], bool]


class LongKernels(Protocol):
    """The second thread, as the turns know it."""

    inside: bool  # whether the worker's own thread is inside a long kernel
    for_all: bool  # whether this kernel is long enough for short runs of all clients

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
        form, _, ready = values.kinds.get(ins[0], UNKNOWN)
        if form == TRACE:
            seconds += ready.seconds if isinstance(ready, Executable) and not ready.compile and ready.is_plain else inf
        elif form == COLLECTIVE or form != FREED and (ready.large or ready.kind.precision):
            return False
    return seconds <= SHORT


def is_question(values: ClientValues, run: Run) -> bool:
    """Whether a run is launches of recorded questions, and reads of small values."""
    if run.kinds or run.traces or values.has_sharded or len(run.code) > LIGHT:
        return False
    specs = [spec_in(get.spec) for get in run.gets]
    if not all(isinstance(spec, Spec) and spec.nbytes <= INLINE for spec in specs):
        return False
    known = [values.kinds.get(number, UNKNOWN) for number in map(number_of, run.code)]
    return all(form == FREED or form == TRACE and _is_recorded(ready) for form, _, ready in known)


def _is_recorded(ready: Any) -> bool:
    faster = getattr(ready, "faster", None)  # compiled forms of other kinds know nothing of questions
    return bool(getattr(faster, "question", False) and getattr(faster, "recorded", False))
