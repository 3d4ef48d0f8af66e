"""What a client's kinds and traces become on a worker: kernels and programs, or the reason why there are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.program import Program
from gt.transport.messages import KindDef, Run
from gt.worker.client_values import ClientValues
from gt.worker.engine import Engine
from gt.worker.programs.compile import Ready
from gt.worker.refusals import RefusedKind


def define(
    space: ClientValues, run: Run, prepare: Callable[[str, KindDef], Ready], refused: Callable[[str, Any, Exception], Any],
    engine: Engine, units: bool, say: Callable[..., None], show: Callable[[str, Program], None],
) -> None:  # fmt: skip
    """Kinds and traces of a run; one that nothing can be made of stands for the reason."""
    for definition in run.kinds:
        try:
            ready: Any = prepare(run.client, definition)
            kernel = ready.watched
        except Exception as wrong:  # an engine may fail in any way where it prepares a kernel; uses of the kind raise it
            refused(run.client, definition, wrong)
            ready = RefusedKind(definition.op, wrong, 1)
            kernel = ready.run
        space.kinds[definition.number] = (ready.form, kernel, ready)
    for trace in run.traces:
        try:
            space.define(trace, engine, units, say, show)
        except Exception as wrong:  # or where it compiles a program; calls of the trace raise it
            refused(run.client, trace, wrong)
            unfit = RefusedKind.trace(trace, wrong)
            space.kinds[trace.number] = (unfit.form, unfit.run, unfit)
