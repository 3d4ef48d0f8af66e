"""Deferred runs: a client's next question, which the dispatcher has planned, and which is executed when the client sends a
Start over its lane to this worker (docs/design/deferred.md). At most one waits for each client, outside the queue of turns. No
sockets are known here."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from msgspec.structs import replace

from gt.errors import ProtocolError
from gt.program.code import frees, number_of, with_place
from gt.program.deferred import named, stays_behind
from gt.transport.messages import Failed, Mail, Run, Start, size_of
from gt.worker.client_values import ClientValues
from gt.worker.programs.compile import Ready

NONE = (0, None, None)  # of a kind that is not known
MOST = 64  # Starts of a client that wait for their runs: one for each of its threads
CANCELLED = "the question was cancelled before it was asked"
Found = tuple[list[Run], list[Mail]]  # the runs to execute, in order, and answers to reads that are not executed


@dataclass
class _Waiting:
    """A run that waits for its Start, and the messages that wait for its end."""

    run: Run
    names: frozenset[Any]
    behind: list[Run] = field(default_factory=list)


class DeferredRuns:
    """`spaces` are the values of the worker's clients."""

    def __init__(self, spaces: dict[str, ClientValues]) -> None:
        self.spaces = spaces
        self.waiting: dict[str, _Waiting] = {}  # by client
        self.early: dict[str, deque[Start]] = {}  # Starts that came before their runs, which the dispatcher may refuse
        self.cancelled: dict[str, Run] = {}  # each client's last one
        self.started_runs = self.cancelled_runs = 0

    def concerns(self, run: Run) -> bool:
        """Whether a run may not be executed at once."""
        return run.deferred is not None or run.client in self.waiting

    def arrived(self, run: Run) -> Found:
        """A run has come from the dispatcher."""
        waiting = self.waiting.get(run.client)
        if run.deferred is None:
            if waiting is None:
                return [run], []
            if stays_behind(run, waiting.names):
                waiting.behind.append(run)
                return [], []
            return [*self._cancel(waiting), run], []
        before = self._cancel(waiting) if waiting is not None else []
        if (early := self.early.get(run.client)) and (start := _of(early, run.serial)) is not None:
            made, answers = self._started(run, start)
            return before + made, answers
        self.waiting[run.client] = _Waiting(run, named(run))
        return before, []

    def start(self, client: str, start: Start) -> Found:
        """A client starts its run. A ProtocolError if there can be no such run."""
        waiting, cancelled = self.waiting.get(client), self.cancelled.get(client)
        if waiting is not None and waiting.run.serial == start.serial:
            del self.waiting[client]
            made, answers = self._started(waiting.run, start)
            return made + waiting.behind, answers
        if cancelled is not None and cancelled.serial == start.serial:
            del self.cancelled[client]
            return [], _unanswered(cancelled)
        early = self.early.setdefault(client, deque())
        known: list[Any] = [waiting and waiting.run, cancelled, early and early[-1]]
        if len(early) >= MOST or any(last and last.serial >= start.serial for last in known):
            raise ProtocolError(f"batch {start.serial} has no deferred run")
        early.append(start)
        return [], []

    def forget(self, client: str) -> None:
        """A client has left."""
        for known in (self.waiting, self.early, self.cancelled):
            known.pop(client, None)

    def stats(self) -> dict[str, int]:
        return {"deferred_runs": self.started_runs, "deferred_cancelled": self.cancelled_runs}

    def _started(self, run: Run, start: Start) -> Found:
        """The run with its loads' places; without its question if it has other loads than its client believes."""
        count = len(start.places)
        loads = [*takewhile(lambda ins: self._loads(run.client, ins), run.code)] if count else []
        if not run.deferred == count == len(loads):
            return [self._without_question(run)], _unanswered(run)
        self.started_runs += 1
        code = [*map(with_place, loads, start.places), *run.code[count:]] if count else run.code
        return [replace(run, code=code, deferred=None)], []

    def _cancel(self, waiting: _Waiting) -> list[Run]:
        run = waiting.run
        del self.waiting[run.client]
        self.cancelled[run.client] = run
        self.cancelled_runs += 1
        return [self._without_question(run), *waiting.behind]

    def _without_question(self, run: Run) -> Run:
        left = replace(run, code=frees(run.code), gets=(), deferred=None)
        if run.client in self.spaces:
            self.spaces[run.client].executed += size_of(run) - size_of(left)  # as the dispatcher counts the whole run
        return left

    def _loads(self, client: str, ins: tuple[Any, ...]) -> bool:
        values = self.spaces.get(client)
        ready = values.kinds.get(number_of(ins), NONE)[2] if values is not None else None
        return isinstance(ready, Ready) and ready.kind.row.loads


def _of(early: deque[Start], serial: int) -> Start | None:
    """Remove and return the Start of a batch; those of earlier batches will get no run."""
    while early and early[0].serial < serial:
        early.popleft()
    return early.popleft() if early and early[0].serial == serial else None


def _unanswered(run: Run) -> list[Mail]:
    """For each read that will not be answered the reason, which has its client ask again."""
    return [Mail(run.client, Failed(get.ticket, "RemoteError", CANCELLED, get.id)) for get in run.gets]
