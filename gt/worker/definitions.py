"""Turns a client's kinds and traces into kernels and programs, or into refusals with the reason."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gt.program import Program
from gt.transport.checks import kind_in
from gt.transport.messages import KindDef, Run
from gt.worker import transfers
from gt.worker.client_values import ClientValues
from gt.worker.collectives.mail import Collectives
from gt.worker.executor import InstructionExecutor
from gt.worker.programs.compile import COLLECTIVE, Ready
from gt.worker.refusals import RefusedKind
from gt.worker.segments import Memory


class Definitions:
    """Defines the kinds and traces of clients, whose values are in `spaces`. `refused` is called for invalid definitions."""

    def __init__(
        self,
        executor: InstructionExecutor,
        memory: Memory,
        spaces: dict[str, ClientValues],
        refused: Callable[[str, Any, Exception], Any],
    ) -> None:
        self.executor, self.memory, self.spaces, self.refused = executor, memory, spaces, refused
        self.show: Callable[[str, Program], None] = lambda stage, program: None  # called with the result of each pass

    def define(self, values: ClientValues, run: Run, collectives: Collectives, compile: bool, say: Callable[..., None]) -> None:
        """Define the kinds and traces of a run. An invalid one becomes a RefusedKind with the reason."""
        for definition in run.kinds:
            try:
                ready: Any = self._ready(values, definition, collectives)
                kernel = ready.watched
            except Exception as wrong:  # an engine may raise anything while it prepares a kernel; uses of the kind raise it
                self.refused(run.client, definition, wrong)
                ready = RefusedKind(definition.op, wrong, 1)
                kernel = ready.run
            values.kinds[definition.number] = (ready.form, kernel, ready)
        for trace in run.traces:
            try:
                values.define(trace, self.executor.engine, compile, say, self.show, collectives)
            except Exception as wrong:  # or while it prepares a program; calls of the trace raise it
                self.refused(run.client, trace, wrong)
                values.refuse(trace, wrong, collectives)

    def _ready(self, values: ClientValues, definition: KindDef, collectives: Collectives) -> Ready:
        kind, engine, client = kind_in(definition), self.executor.engine, values.client
        if kind.row.collective:
            return Ready(kind, partial(collectives.begin, client, kind), form=COLLECTIVE)
        if kind.row.loads:
            spaces = self.spaces  # not the values themselves, which would make a reference cycle
            return Ready(kind, lambda *at: transfers.load(engine, self.memory, client, spaces[client], kind, at))
        ready = Ready(kind, engine.kernel(kind), engine.way(kind))
        ready.watched = self.executor.cancellation.watched(client, kind, ready.run)
        self._check_first(client, definition.number, ready)
        return ready

    def _check_first(self, client: str, number: int, ready: Ready) -> None:
        """Compare the first results of a kind with its specs. Later results have the same shapes."""
        kernel, spaces = ready.watched, self.spaces

        def first(*operands: Any) -> Any:
            made = kernel(*operands)
            if ready.watched is kernel:  # checked before: a program that was prepared earlier still calls this function
                return made
            ready.check(made)
            ready.watched, kinds = kernel, spaces[client].kinds
            if number in kinds and kinds[number][2] is ready:
                kinds[number] = (ready.form, kernel, ready)
            return made

        ready.watched = first
