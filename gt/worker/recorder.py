"""Records the times of a worker's instructions for observers. Without observers there is no recorder."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import sub
from typing import Any

from gt.ops import Kind
from gt.ops.collective import kept_by
from gt.program.code import first_result, number_of, tag_of
from gt.transport.events import (
    BEGIN,
    END,
    EVERY,
    EXACT,
    INSIDE,
    OFF,
    READ,
    REPORTED,
    SAMPLED,
    STRETCH,
    Compiled,
    Listen,
    Meaning,
    Spans,
    WorkerReport,
)
from gt.transport.messages import Run
from gt.worker.programs.ticks import Ticks
from gt.worker.run_sample import RunSample

BEGUN = (BEGIN, 0)
MAX_UNREPORTED = (
    1 << 17
)  # unreported instructions from which on runs are timed as a whole; at twice as many the oldest are dropped
GAP, LONGEST = 0.01, 0.1  # seconds between two runs, and of runs, that are timed together


@dataclass(slots=True)
class WholeRuns:
    """Successive runs of one client that are timed together."""

    client: str
    start: float
    seconds: float  # without the pauses between them
    count: int  # of their instructions
    stop: float
    runs: int = 1

    def entries(self) -> tuple[tuple[tuple, float], ...]:
        """As entries of Columns, without pauses."""
        return (BEGUN, self.start), ((STRETCH, self.count), self.start + self.seconds)


class Columns:
    """The unreported instructions of one client and the time at which each ended; it began when the entry before it ended.
    Further entries are BEGUN, whose time is the beginning of the next, (END, serial), (READ, id, bytes)
    and (STRETCH, count). The worker's thread appends to `ends` last, so a report takes the first `len(ends)` entries. Kept
    are instructions as they are: a report takes them apart, so that the worker's thread only appends."""

    __slots__ = ("code", "ends", "last", "broken", "new", "met", "tagged", "reads", "dropped")

    def __init__(self) -> None:
        self.code: list[tuple] = []
        self.ends: list[float] = []
        self.last = 0.0  # end of the last reported entry
        self.broken: list[int] = []
        self.new: list[tuple[int, Any]] = []  # numbers first seen since the last report, each with its Ready or Executable
        self.met: set[int] = set()  # numbers whose meaning is reported, or in `new`
        self.tagged: set[int] = set()  # numbers of collectives, whose result's id is the last of the instruction, its tag
        self.reads = False  # whether there is a READ among the entries
        self.dropped = 0

    def add(self, entry: tuple, end: float) -> None:
        self.code.append(entry)
        self.ends.append(end)

    def meet(self, number: int, known: Any) -> None:
        """Note the first instruction of a number."""
        ready = known[2] if known is not None else None
        kind: Kind | None = getattr(ready, "kind", None)
        if ready is not None:
            self.new.append((number, ready))
        if kind is not None and kind.row.collective:
            self.tagged.add(number)
        self.met.add(number)

    def drop(self, n: int) -> None:
        """Drop the oldest entries."""
        self.dropped += sum(entry[0] != BEGIN for entry in self.take(n)[0])

    def take(self, n: int) -> tuple[list[tuple], list[float], float]:
        """Remove and return the oldest entries, their ends, and the end of the one before them."""
        code, ends, before = self.code[:n], self.ends[:n], self.last
        del self.code[:n], self.ends[:n]
        self.last = ends[-1] if ends else before
        return code, ends, before

    def spans(self, client: str, stretch: WholeRuns | None = None) -> Spans | None:
        """Remove and return all entries as a message, and those of an unfinished stretch. It is made column by column: the
        worker's thread waits meanwhile."""
        n = len(self.ends)
        if not n and not self.dropped and stretch is None:
            return None
        new, broken = self.new[:], self.broken[:]  # in place, as the worker's thread may be adding
        del self.new[: len(new)], self.broken[: len(broken)]
        dropped, self.dropped = self.dropped, 0
        code, ended, before = self.take(n)
        for entry, end in stretch.entries() if stretch is not None else ():
            code.append(entry)
            ended.append(end)
        ends = array("d", ended)
        starts = array("d", (before,)) + ends[:-1] if ends else ends
        numbers, seconds = array("q", map(number_of, code)), array("f", map(sub, ends, starts))
        columns = numbers.tobytes(), self._ids(code).tobytes(), starts.tobytes(), seconds.tobytes()
        reads, self.reads = self.reads, False
        sizes = tuple([entry[2] for entry in code if entry[0] == READ]) if reads else ()
        meanings = tuple(meaning(number, ready) for number, ready in new)
        failed = tuple(id for id in broken if type(id) is int)
        return Spans(client, *columns, sizes, failed, meanings, dropped)

    def _ids(self, code: list[tuple]) -> array[int]:
        """The id of each entry's result; 0 where it has none, or one that is not an integer."""
        tagged = self.tagged
        try:
            return array(
                "q", [tag_of(e) if e[0] in tagged else first_result(e) for e in code] if tagged else map(first_result, code)
            )
        except (TypeError, IndexError):
            found = [tag_of(e) if e[0] in tagged else first_result(e) if len(e) > 1 else 0 for e in code]
            return array("q", [id if type(id) is int else 0 for id in found])


class Recorder:
    """The unreported activities of a worker. The worker's thread adds to it, and any thread may take reports."""

    def __init__(self, clock: Callable[[], float], sync: Callable[[], None], ticks: Ticks) -> None:
        self.clock, self.sync, self.ticks = clock, sync, ticks
        self.level, self.levels = OFF, dict[str, int]()  # default level, and the level of clients with another
        self.columns: dict[str, Columns] = {}
        self.compiled: list[Compiled] = []
        self.began = 0.0  # start of the current instruction
        self.waiting: dict[str, float] = {}  # by client: start of the collective that its run waits for
        self.spent: dict[str, tuple[float, float]] = {}  # by client: seconds since its last entry, and in its preempted program
        self.whole: dict[str, int] = {}  # by client: instructions of the current run that are timed as a whole
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

    def watch(self, run: Run, kinds: dict[int, Any], code: Iterator[tuple]) -> Iterator[tuple]:
        """The same instructions, each timed from its yield to the request for the next one; or, for a run outside the sample,
        timed as a whole."""
        client, sample = run.client, self.sample
        level = self.levels.get(client, self.level)
        if level == OFF:
            return code
        if level == SAMPLED and sample.skip:
            sample.skip -= 1
            self.whole[client] = len(run.code)
            return code
        columns = self._columns(client)
        if len(columns.ends) >= MAX_UNREPORTED:
            self.whole[client] = len(run.code)
            return code
        if level < INSIDE:
            return self._timed(columns, kinds, code)
        return self._timed_inside(columns, kinds, code, self.sync if level == EXACT else None)

    def _timed(self, columns: Columns, kinds: dict[int, Any], code: Iterator[tuple]) -> Iterator[tuple]:
        clock, met, add, end = self.clock, columns.met, columns.code.append, columns.ends.append
        for ins in code:
            if ins[0] not in met:
                columns.meet(ins[0], kinds.get(ins[0]))
            yield ins
            add(ins)
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

    def begin(self, client: str) -> None:
        """A run begins, or continues after a preemption or a collective."""
        now = began = self.began = self.clock()
        if client in self.whole:
            self.ticks.note = None
            return
        if client in self.spent:
            since, called = self.spent.pop(client)
            began, self.began = now - since, now - called
        elif client in self.waiting:
            began = self.began = self.waiting.pop(client)
        level = self.levels.get(client, self.level)
        self.ticks.note = self._note(self._columns(client)) if level >= INSIDE else None
        if level == OFF:
            return
        if self.stretch is not None:
            with self.lock:
                self._end_stretch()
        columns = self._columns(client)
        columns.code.append(BEGUN)
        columns.ends.append(began)

    def pause(self, client: str, parked: bool) -> None:
        """A run is preempted, or waits for a collective, which lasts until the run continues."""
        if client in self.whole:
            self._stretch(client)
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
        client = run.client
        level = self.levels.get(client, self.level)
        if client in self.whole:
            self._stretch(client)
            del self.whole[client]
        elif level == SAMPLED:
            with self.lock:
                self.sample.add(self.clock() - self.began, len(run.code))
                self.sample.next()
        if level < EVERY:
            return
        columns = self._columns(client)
        if broken:
            columns.broken.extend(broken)
        columns.add((END, run.serial), self.clock())
        if len(columns.ends) > 2 * MAX_UNREPORTED:
            with self.lock:
                columns.drop(MAX_UNREPORTED)

    def _stretch(self, client: str) -> None:
        """Add the instructions since the run began or continued to a stretch; the first time it has their number."""
        began, now, count = self.began, self.clock(), self.whole[client]
        self.whole[client] = 0
        with self.lock:  # a report may be taking it
            found = self.stretch
            if found is None or found.client != client or began - found.stop > GAP or now - found.start > LONGEST:
                self._end_stretch()
                self.columns.setdefault(client, Columns())
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


def meaning(number: int, ready: Any) -> Meaning:
    """The meaning of a number for observers."""
    program, kind = getattr(ready, "program", None), getattr(ready, "kind", None)
    if program is None and kind is not None:
        nbytes = sum(s.nbytes for s in kind.outs)
        group, rule = tuple(kind.settings.get("group", ())), kept_by(kind)
        return Meaning(number, kind.row.name, kind.row.group, kind.signal, nbytes, group, rule=rule)
    if program is None:
        return Meaning(number, ready.title, "free")
    executed = {r for i in ready.executed.instructions for r in i.results}
    # By these its ops share the program's time; an unused op is not executed, and has none of it.
    seconds = [i.seconds if not executed.isdisjoint(i.results) else 0.0 for i in program.instructions]
    total = sum(seconds)
    timed = list(zip(program.instructions, seconds))[:REPORTED]
    ops = tuple((i.op.name, i.op.group, each / (total or 1.0), i.line) for i, each in timed)
    signals = dict.fromkeys(i.kind.signal for i in program.instructions if i.kind.signal)
    nbytes = sum(s.nbytes for s in ready.results)
    return Meaning(number, ready.title, "program", ", ".join(signals), nbytes, (), ops, ready.source)
