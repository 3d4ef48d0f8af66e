"""Records the times of a worker's instructions for observers. Without observers there is no recorder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from gt.transport.events import END, EVERY, EXACT, INSIDE, OFF, READ, REPORTED, SAMPLED, Compiled, Listen, Spans, WorkerReport
from gt.transport.messages import Run
from gt.worker.client_values import ClientValues
from gt.worker.programs.ticks import Ticks
from gt.worker.run_sample import RunSample
from gt.worker.unreported import BEGUN, Columns, WholeRuns

MAX_UNREPORTED = (
    1 << 17
)  # unreported instructions from which on runs are timed as a whole; at twice as many the oldest are dropped
GAP, LONGEST = 0.01, 0.1  # seconds between two runs, and of runs, that are timed together


class Recorder:
    """The unreported activities of a worker. The worker's thread adds to it, and any thread may take reports."""

    def __init__(self, clock: Callable[[], float], sync: Callable[[], None], ticks: Ticks) -> None:
        self.clock, self.sync, self.ticks = clock, sync, ticks
        self.level, self.levels = OFF, dict[str, int]()  # default level, and the level of clients with another
        self.columns: dict[str, Columns] = {}
        self.compiled: list[Compiled] = []
        self.began = 0.0  # start of the current instruction
        self.paused = set[str]()  # clients whose run is preempted or waits for a collective
        self.waiting: dict[str, float] = {}  # by client: start of the collective that its run waits for
        self.spent: dict[str, tuple[float, float]] = {}  # by client: seconds since its last entry, and in its preempted program
        self.whole: dict[str, int] = {}  # by client: instructions of the current run that are timed as a whole
        self.unended = set[str]()  # clients of whose current run `end` is to be told
        self.stretch: WholeRuns | None = None  # of the last runs that were timed as a whole
        self.sample = RunSample()
        self.last: list[Spans] = []  # of departed clients
        self.lock = threading.Lock()

    def listen(self, asked: Listen) -> None:
        """Set the levels of detail. Meanings are sent again, as there may be a new observer."""
        with self.lock:
            self.level, self.levels, self.sample = asked.level, dict(asked.clients), RunSample()
            for columns in self.columns.values():
                columns.met.clear()

    def forget(self, client: str) -> None:
        """Forget a departed client; its last activities will still be reported."""
        with self.lock:
            self._end_stretch()
            columns = self.columns.pop(client, None)
            spans = columns.spans(client) if columns is not None else None
            if spans is not None:
                self.last.append(spans)
        for table in (self.waiting, self.spent, self.whole):
            table.pop(client, None)
        for clients in (self.paused, self.unended):
            clients.discard(client)

    def highest(self) -> int:
        """The highest level of all clients."""
        return max(self.level, *self.levels.values(), OFF)

    def of(self, client: str) -> int:
        return self.levels.get(client, self.level)

    def _columns(self, client: str) -> Columns:
        found = self.columns.get(client)
        if found is None:
            with self.lock:
                found = self.columns[client] = Columns()
        return found

    def watch(self, run: Run, values: ClientValues, code: Iterator[tuple]) -> Iterator[tuple]:
        """A run begins. Returns the same instructions, each timed from its yield to the request for the next one; or, for a run
        outside the sample, timed as a whole. There are thousands of runs a second, and a function that is called once a run
        takes several times as long as in a loop: so the iteration over the instructions also tells the run's end."""
        client, sample, self.ticks.note = run.client, self.sample, None
        level = self.levels.get(client, self.level)
        if level == OFF:
            return code
        began = self.began = self.clock()
        if level == SAMPLED and sample.skip:
            sample.skip -= 1
            self.whole[client] = len(run.code)
            self.unended.add(client)
            return code
        columns = self.columns.get(client) or self._columns(client)
        if len(columns.ends) >= MAX_UNREPORTED:
            self.whole[client] = len(run.code)
            self.unended.add(client)
            return code
        if self.stretch is not None:
            with self.lock:
                self._end_stretch()
        columns.code.append(BEGUN)
        columns.ends.append(began)
        if run.gets or level >= INSIDE:
            self.unended.add(client)
        if level < INSIDE:
            return self._timed(run, values, columns, code, level)
        self.ticks.note = self._note(columns)
        return self._timed_inside(columns, values.kinds, code, self.sync if level == EXACT else None)

    def _timed(
        self, run: Run, values: ClientValues, columns: Columns, code: Iterator[tuple], level: int
    ) -> Iterator[tuple]:  # fmt: skip
        clock, met, add, end = self.clock, columns.met, columns.code.append, columns.ends.append
        for ins in code:
            if ins[0] not in met:
                columns.meet(ins[0], values.kinds.get(ins[0]))
            yield ins
            add(ins)
            end(clock())
        if level == SAMPLED:
            with self.lock:
                self.sample.add(clock() - self.began, len(run.code))
                self.sample.next()
        elif not run.gets:  # else the reads come before the end
            if values.broken:
                columns.broken.extend(values.broken)
            add((END, run.serial))
            end(clock())

    def _timed_inside(
        self, columns: Columns, kinds: dict[int, Any], code: Iterator[tuple], sync: Callable[[], None] | None
    ) -> Iterator[tuple]:  # fmt: skip
        """The same, where a program's instructions may add entries before its own, which therefore needs its beginning."""
        for ins in code:
            if ins[0] not in columns.met:
                columns.meet(ins[0], kinds.get(ins[0]))
            yield ins
            if sync is not None:
                sync()
            columns.add(BEGUN, self.began)
            self.began = self.clock()
            columns.add(ins, self.began)

    def _note(self, columns: Columns) -> Callable[[tuple], None]:
        """Adds entries for instructions inside of a program that have ended."""

        def note(entries: tuple) -> None:
            now = self.clock()
            for entry in entries:
                columns.add(entry, now)

        return note

    def go_on(self, client: str) -> None:
        """A run continues after a preemption or a collective."""
        now = began = self.began = self.clock()
        self.paused.discard(client)
        self.ticks.note = None
        if client in self.whole:
            return
        if client in self.spent:
            since, called = self.spent.pop(client)
            began, self.began = now - since, now - called
        elif client in self.waiting:
            began = self.began = self.waiting.pop(client)
        level = self.levels.get(client, self.level)
        if level == OFF:
            return
        if self.stretch is not None:
            with self.lock:
                self._end_stretch()
        columns = self._columns(client)
        self.ticks.note = self._note(columns) if level >= INSIDE else None
        columns.add(BEGUN, began)

    def pause(self, client: str, parked: bool) -> None:
        """A run is preempted, or waits for a collective, which lasts until the run continues."""
        self.paused.add(client)
        if client in self.whole:
            self._stretch(client, self.whole[client])
            self.whole[client] = 0
            return
        columns = self._columns(client)
        with self.lock:  # a report may be taking the entries
            began = columns.ends[-1] if columns.ends else columns.last
        if parked:
            self.waiting[client] = began
        else:
            now = self.clock()
            inside = self.of(client) >= INSIDE  # the current program may have added entries
            self.spent[client] = now - began, now - (self.began if inside else began)

    def end(self, run: Run, broken: list[int]) -> None:
        """A run of a client in `unended` has ended."""
        client = run.client
        self.unended.discard(client)
        if (count := self.whole.pop(client, None)) is not None:
            self._stretch(client, count)
        if self.levels.get(client, self.level) < EVERY:
            return
        columns = self._columns(client)
        if broken:
            columns.broken.extend(broken)
        columns.add((END, run.serial), self.clock())
        if len(columns.ends) > 2 * MAX_UNREPORTED:
            with self.lock:
                columns.drop(MAX_UNREPORTED)

    def _stretch(self, client: str, count: int) -> None:
        """Add the time since the run began or continued, and so many instructions, to a stretch."""
        began, now = self.began, self.clock()
        with self.lock:  # a report may be taking it
            found = self.stretch
            if found is None or found.client != client or began - found.stop > GAP or now - found.start > LONGEST:
                self._end_stretch()
                if client not in self.columns:
                    self.columns[client] = Columns()
                self.stretch = WholeRuns(client, began, now - began, count, now)
            else:
                found.seconds += now - began
                found.count += count
                found.stop = now
                found.runs += 1
            if self.levels.get(client, self.level) >= EVERY:
                self._end_stretch()

    def _end_stretch(self) -> None:
        """Add a stretch to the entries of its client; its other instructions follow. The worker's thread has the lock."""
        ended = self._take_stretch()
        columns = self.columns.get(ended.client) if ended is not None else None
        if ended is None or columns is None:
            return
        if len(columns.ends) < 2 * MAX_UNREPORTED:
            for entry, end in ended.entries():
                columns.add(entry, end)
        else:
            columns.dropped += ended.count

    def _take_stretch(self) -> WholeRuns | None:
        """Remove and return the stretch, if there is one. The caller has the lock."""
        ended, self.stretch = self.stretch, None
        if ended is not None:
            self.sample.add(ended.seconds, ended.count, ended.runs)
        return ended

    def read(self, client: str, id: int, nbytes: int, began: float) -> None:
        """A tensor was sent to its client."""
        if self.of(client) != OFF:
            columns = self._columns(client)
            columns.add(BEGUN, began)
            columns.reads = True
            columns.add((READ, id, nbytes), self.clock())

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
            ended, spans = self._take_stretch(), []
            for client, columns in self.columns.items():
                own = ended if ended is not None and ended.client == client else None
                if (found := columns.spans(client, own)) is not None:
                    spans.append(found)
        return WorkerReport((*compiled, *last, *spans)) if compiled or last or spans else None
