"""Records the times of a worker's instructions for observers. Without observers there is no recorder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from gt.transport.events import OFF, REPORTED, Compiled, Listen, Spans, WorkerReport
from gt.worker.client_values import ClientValues
from gt.worker.programs.ticks import Ticks
from gt.worker.unreported import Columns


class Recorder:
    """The unreported activities of a worker: each client's are in its Columns, which are also its `values.watched`. The
    worker's thread adds to them, and any thread may take reports."""

    def __init__(self, clock: Callable[[], float], sync: Callable[[], None], ticks: Ticks) -> None:
        self.clock, self.sync, self.ticks = clock, sync, ticks
        self.level, self.levels = OFF, dict[str, int]()  # default level, and the level of clients with another
        self.columns: dict[str, Columns] = {}
        self.compiled: list[Compiled] = []
        self.last: list[Spans] = []  # of departed clients
        self.lock = threading.RLock()

    def listen(self, asked: Listen, clients: Iterable[ClientValues] = ()) -> None:
        """Set the levels of detail."""
        self.level, self.levels = asked.level, dict(asked.clients)
        for values in clients:
            self.watch(values)

    def watch(self, values: ClientValues) -> None:
        """Record a client's activities at its level."""
        level = self.levels.get(values.client, self.level)
        with self.lock:
            columns = self.columns.get(values.client)
            if columns is None and level != OFF:
                made = Columns(values.kinds, self.clock, self.sync, self.ticks, self.lock)
                columns = self.columns[values.client] = made
            if columns is not None:
                columns.listen(level)
        values.watched = columns if level != OFF else None

    def forget(self, client: str) -> None:
        """Forget a departed client; its last activities will still be reported."""
        with self.lock:
            columns = self.columns.pop(client, None)
            spans = columns.spans(client) if columns is not None else None
            if spans is not None:
                self.last.append(spans)

    def highest(self) -> int:
        """The highest level of all clients."""
        return max(self.level, *self.levels.values(), OFF)

    def compile(self, client: str, seconds: float, text: str, line: str) -> None:
        """Add the compilation of a program, which may have failed."""
        if len(self.compiled) < REPORTED:
            self.compiled.append(Compiled(client, self.clock(), seconds, text[:512], line=line))

    def report(self) -> WorkerReport | None:
        """The events since the last report."""
        with self.lock:
            compiled = self.compiled[:]
            del self.compiled[: len(compiled)]
            last, self.last = self.last, []
            spans = [found for client, columns in self.columns.items() if (found := columns.spans(client)) is not None]
        return WorkerReport((*compiled, *last, *spans)) if compiled or last or spans else None
