"""Records the times of a worker's instructions for observers. Without observers there is no recorder."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterator
from operator import sub
from typing import Any

from gt.ops import Kind
from gt.transport.events import END, EVERY, EXACT, OFF, READ, REPORTED, STRETCH, Compiled, Listen, Meaning, Spans, WorkerReport
from gt.transport.messages import Run

MAX_UNREPORTED = (
    1 << 17
)  # unreported instructions from which on runs are timed as a whole; at twice as many the oldest are dropped
SHORT = 32  # most instructions of a run that is always timed one by one
SAMPLE = 16  # one of so many longer runs is timed one by one


class Columns:
    """The unreported instructions of one client, as columns: a tuple for each instruction would take longer, and the garbage
    collector would visit it. The worker's thread appends to `ends` last, so a report takes the first `len(ends)` entries."""

    __slots__ = ("numbers", "ids", "starts", "ends", "sizes", "broken", "new", "result_at", "dropped")

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.ids: list[int] = []
        self.starts: list[float] = []
        self.ends: list[float] = []
        self.sizes: list[int] = []  # bytes of READs
        self.broken: list[int] = []
        self.new: list[tuple[int, Any]] = []  # numbers first seen since the last report, each with its Ready or Executable
        self.result_at: dict[int, int] = {}  # by number: position of the client's result id in its instructions
        self.dropped = 0

    def add(self, number: int, id: int, start: float, end: float) -> None:
        self.numbers.append(number)
        self.ids.append(id)
        self.starts.append(start)
        self.ends.append(end)

    def meet(self, ins: tuple, known: Any) -> int:
        """Note the first instruction of a number; returns the position of its result id: 1, or, of a collective, the last one,
        its tag."""
        number = ins[0]
        ready = known[2] if known is not None else None
        kind: Kind | None = getattr(ready, "kind", None)
        at = -1 if kind is not None and kind.row.collective else 1
        if ready is not None:
            self.new.append((number, ready))
        self.result_at[number] = at
        return at

    def drop(self, n: int) -> None:
        """Drop the oldest entries."""
        self.take(n)
        self.dropped += n

    def take(self, n: int) -> tuple[list[int], list[int], list[float], list[float], list[int]]:
        """Remove and return the oldest entries."""
        numbers, ids, starts, ends = self.numbers[:n], self.ids[:n], self.starts[:n], self.ends[:n]
        reads = numbers.count(READ)
        sizes = self.sizes[:reads]
        del self.sizes[:reads], self.numbers[:n], self.ids[:n], self.starts[:n], self.ends[:n]
        return numbers, ids, starts, ends, sizes

    def spans(self, client: str) -> Spans | None:
        """Remove and return all entries as a message."""
        n = len(self.ends)
        if not n and not self.dropped:
            return None
        new, broken = self.new[:], self.broken[:]  # in place, as the worker's thread may be adding
        del self.new[: len(new)], self.broken[: len(broken)]
        dropped, self.dropped = self.dropped, 0
        numbers, ids, starts, ends, sizes = self.take(n)
        seconds = array("f", map(sub, ends, starts))
        packed = (array("q", numbers).tobytes(), _whole(ids).tobytes(), array("d", starts).tobytes(), seconds.tobytes())
        meanings = tuple(meaning(number, ready) for number, ready in new)
        return Spans(client, *packed, tuple(sizes), tuple(id for id in broken if type(id) is int), meanings, dropped)


class Recorder:
    """The unreported activities of a worker. The worker's thread adds to it, and any thread may take reports."""

    def __init__(self, clock: Callable[[], float], sync: Callable[[], None]) -> None:
        self.clock, self.sync = clock, sync
        self.level, self.levels = OFF, dict[str, int]()  # default level, and the level of clients with another
        self.columns: dict[str, Columns] = {}
        self.compiled: list[Compiled] = []
        self.began = 0.0  # start of the current instruction
        self.waiting: dict[str, float] = {}  # by client: start of the collective that its run waits for
        self.spent: dict[str, float] = {}  # by client: seconds spent in its preempted program
        self.whole: dict[str, int] = {}  # by client: instructions of the current run that are timed as a whole
        self.long = 0
        self.last: list[Spans] = []  # of departed clients
        self.lock = threading.Lock()

    def listen(self, asked: Listen) -> None:
        """Set the levels of detail. Meanings are sent again, as there may be a new observer."""
        with self.lock:
            self.level, self.levels = asked.level, dict(asked.clients)
            for columns in self.columns.values():
                columns.result_at.clear()

    def forget(self, client: str) -> None:
        """Forget a departed client; its last activities will still be reported."""
        with self.lock:
            columns = self.columns.pop(client, None)
            spans = columns.spans(client) if columns is not None else None
            if spans is not None:
                self.last.append(spans)
        for table in (self.waiting, self.spent, self.whole):
            table.pop(client, None)

    def samples(self) -> bool:
        """Whether nobody wants to know of every instruction."""
        return max(self.level, *self.levels.values(), OFF) < EVERY

    def of(self, client: str) -> int:
        return self.levels.get(client, self.level)

    def _columns(self, client: str) -> Columns:
        found = self.columns.get(client)
        if found is None:
            with self.lock:
                found = self.columns[client] = Columns()
        return found

    def watch(self, run: Run, kinds: dict[int, Any], code: Iterator[tuple]) -> Iterator[tuple]:
        """The same instructions, each timed from its yield to the request for the next one; or, for a long run outside the
        sample, timed as a whole."""
        level = self.of(run.client)
        self.whole.pop(run.client, None)
        if level == OFF:
            return code
        sampled = level >= EVERY or len(run.code) <= SHORT
        if not sampled:
            sampled = self.long % SAMPLE == 0
            self.long += 1
        columns = self._columns(run.client)
        if sampled and len(columns.ends) < MAX_UNREPORTED:
            return self._timed(columns, kinds, code, self.sync if level == EXACT else None)
        self.whole[run.client] = len(run.code)
        return code

    def _timed(
        self, columns: Columns, kinds: dict[int, Any], code: Iterator[tuple], sync: Callable[[], None] | None
    ) -> Iterator[tuple]:  # fmt: skip
        clock, met, result_at = self.clock, columns.result_at.get, columns.meet
        number, id = columns.numbers.append, columns.ids.append
        start, end = columns.starts.append, columns.ends.append
        for ins in code:
            at = met(ins[0]) or result_at(ins, kinds.get(ins[0]))
            yield ins
            if sync is not None:
                sync()
            ended = clock()
            number(ins[0])
            id(ins[at] if len(ins) > 1 else 0)
            start(self.began)
            end(ended)
            self.began = ended

    def begin(self, client: str) -> None:
        """A run begins, or continues after a preemption or a collective."""
        self.began = self.waiting.pop(client, 0.0) or self.clock() - self.spent.pop(client, 0.0)

    def pause(self, client: str, parked: bool) -> None:
        """A run is preempted, or waits for a collective, which lasts until the run continues."""
        if client in self.whole:
            self._stretch(client)
        elif parked:
            self.waiting[client] = self.began
        else:
            self.spent[client] = self.clock() - self.began

    def end(self, run: Run, broken: list[int]) -> None:
        client, now = run.client, self.clock()
        if self.of(client) == OFF:
            return
        if client in self.whole:
            self._stretch(client)
            del self.whole[client]
        columns = self._columns(client)
        columns.broken.extend(broken)
        columns.add(END, run.serial, now, now)
        if len(columns.ends) > 2 * MAX_UNREPORTED:
            with self.lock:
                columns.drop(MAX_UNREPORTED)

    def _stretch(self, client: str) -> None:
        """Add one entry for all instructions since the run began or continued; the first entry has their number."""
        columns = self._columns(client)
        if len(columns.ends) < 2 * MAX_UNREPORTED:
            columns.add(STRETCH, self.whole[client], self.began, self.clock())
        self.whole[client] = 0

    def read(self, client: str, id: int, nbytes: int, began: float) -> None:
        """A tensor was sent to its client."""
        if self.of(client) != OFF:
            columns = self._columns(client)
            columns.sizes.append(nbytes)
            columns.add(READ, id, began, self.clock())

    def compile(self, client: str, seconds: float, text: str) -> None:
        """Add the compilation of a program, which may have failed."""
        if len(self.compiled) < REPORTED:
            self.compiled.append(Compiled(client, self.clock(), seconds, text[:512]))

    def report(self) -> WorkerReport | None:
        """The events since the last report."""
        with self.lock:
            compiled = self.compiled[:]
            del self.compiled[: len(compiled)]
            last, self.last = self.last, []
            spans = [found for client, columns in self.columns.items() if (found := columns.spans(client)) is not None]
        return WorkerReport((*compiled, *last, *spans)) if compiled or last or spans else None


def _whole(ids: list[int]) -> array[int]:
    """Ids as an array for a message, with 0 for operands that are not integers."""
    try:
        return array("q", ids)
    except TypeError:
        return array("q", [id if type(id) is int else 0 for id in ids])


def meaning(number: int, ready: Any) -> Meaning:
    """The meaning of a number for observers."""
    program, kind = getattr(ready, "program", None), getattr(ready, "kind", None)
    if program is None and kind is not None:
        nbytes = sum(s.nbytes for s in kind.outs)
        return Meaning(number, kind.row.name, kind.row.group, kind.signal, nbytes, tuple(kind.settings.get("group", ())))
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
