"""When a worker does what, for whoever listens: while nobody does, there is no recorder."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterator
from operator import sub
from typing import Any

from gt.ops import Kind
from gt.spec import Spec
from gt.transport.events import END, EVERY, EXACT, OFF, READ, REPORTED, STRETCH, Compiled, Listen, Meaning, Spans, WorkerReport
from gt.transport.messages import Run

MOST = 1 << 17  # instructions that wait to be reported; past it runs are timed as one, past twice that they are dropped
SHORT = 32  # instructions of a run that are always timed one by one
SAMPLE = 16  # of longer runs, one in so many is


class Columns:
    """What was done for one client and is not yet reported: a column for each fact, since a tuple for each instruction takes
    longer, and garbage collection visits it. The worker's thread adds to `ends` last, so a report takes as many as that has."""

    __slots__ = ("numbers", "ids", "starts", "ends", "sizes", "broken", "new", "result_at", "dropped")

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.ids: list[int] = []
        self.starts: list[float] = []
        self.ends: list[float] = []
        self.sizes: list[int] = []  # of READs
        self.broken: list[int] = []
        self.new: list[tuple[int, Any]] = []  # numbers that were met first since the last report, and all about each
        self.result_at: dict[int, int] = {}  # by number that was met: where an instruction of it has the result it is for
        self.dropped = 0

    def add(self, number: int, id: int, start: float, end: float) -> None:
        self.numbers.append(number)
        self.ids.append(id)
        self.starts.append(start)
        self.ends.append(end)

    def meet(self, ins: tuple, known: Any) -> int:
        """An instruction of a number that is new here. The first operand after the number is its first result; of a
        collective, the result of the client's that it is for is the last operand."""
        number = ins[0]
        ready = known[2] if known is not None else None
        kind: Kind | None = getattr(ready, "kind", None)
        at = -1 if kind is not None and kind.row.collective else 1
        if ready is not None:
            self.new.append((number, ready))
        self.result_at[number] = at
        return at

    def drop(self, n: int) -> None:
        """Lose the oldest entries."""
        self.take(n)
        self.dropped += n

    def take(self, n: int) -> tuple[list[int], list[int], list[float], list[float], list[int]]:
        """The oldest entries, which then are no longer here."""
        numbers, ids, starts, ends = self.numbers[:n], self.ids[:n], self.starts[:n], self.ends[:n]
        reads = numbers.count(READ)
        sizes = self.sizes[:reads]
        del self.sizes[:reads], self.numbers[:n], self.ids[:n], self.starts[:n], self.ends[:n]
        return numbers, ids, starts, ends, sizes

    def spans(self, client: str) -> Spans | None:
        """All that is here, as it is reported."""
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
    """What was executed since the last report. The worker's thread adds, and any thread takes reports."""

    def __init__(self, clock: Callable[[], float], sync: Callable[[], None]) -> None:
        self.clock, self.sync = clock, sync
        self.level, self.levels = OFF, dict[str, int]()  # of all clients, and of those where it differs
        self.columns: dict[str, Columns] = {}
        self.compiled: list[Compiled] = []
        self.began = 0.0  # when the instruction at hand did
        self.waiting: dict[str, float] = {}  # when the collective did that a client's run waits for
        self.spent: dict[str, float] = {}  # seconds that a program had which was left in its middle
        self.whole: dict[str, int] = {}  # by client: how many instructions of the run at hand are timed as one
        self.long = 0
        self.last: list[Spans] = []  # of clients that are gone
        self.lock = threading.Lock()

    def listen(self, asked: Listen) -> None:
        """Look more or less closely from here on. Meanings are told again, as someone may have come."""
        with self.lock:
            self.level, self.levels = asked.level, dict(asked.clients)
            for columns in self.columns.values():
                columns.result_at.clear()

    def forget(self, client: str) -> None:
        """A client is gone; what was done for it is still to be reported."""
        with self.lock:
            columns = self.columns.pop(client, None)
            spans = columns.spans(client) if columns is not None else None
            if spans is not None:
                self.last.append(spans)
        for table in (self.waiting, self.spent, self.whole):
            table.pop(client, None)

    def of(self, client: str) -> int:
        return self.levels.get(client, self.level)

    def _columns(self, client: str) -> Columns:
        found = self.columns.get(client)
        if found is None:
            with self.lock:
                found = self.columns[client] = Columns()
        return found

    def watch(self, run: Run, kinds: dict[int, Any], code: Iterator[tuple]) -> Iterator[tuple]:
        """The same instructions, each timed between being handed out and the next being asked for; or, of a long run that is
        not in the sample, all at once."""
        level = self.of(run.client)
        self.whole.pop(run.client, None)
        if level == OFF:
            return code
        sampled = level >= EVERY or len(run.code) <= SHORT
        if not sampled:
            sampled = self.long % SAMPLE == 0
            self.long += 1
        columns = self._columns(run.client)
        if sampled and len(columns.ends) < MOST:
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
        """A run begins, or goes on after others had their turn or a collective has ended."""
        self.began = self.waiting.pop(client, 0.0) or self.clock() - self.spent.pop(client, 0.0)

    def pause(self, client: str, parked: bool) -> None:
        """A run is left for others, or for a collective, which lasts until the run goes on."""
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
        if len(columns.ends) > 2 * MOST:
            with self.lock:
                columns.drop(MOST)

    def _stretch(self, client: str) -> None:
        """What was executed since the run began or went on, as one; how many instructions it is of is said once."""
        columns = self._columns(client)
        if len(columns.ends) < 2 * MOST:
            columns.add(STRETCH, self.whole[client], self.began, self.clock())
        self.whole[client] = 0

    def read(self, client: str, id: int, nbytes: int, began: float) -> None:
        """A tensor was sent to its client."""
        if self.of(client) != OFF:
            columns = self._columns(client)
            columns.sizes.append(nbytes)
            columns.add(READ, id, began, self.clock())

    def compile(self, client: str, seconds: float, text: str) -> None:
        """A program was compiled, or was not."""
        if len(self.compiled) < REPORTED:
            self.compiled.append(Compiled(client, self.clock(), seconds, text[:512]))

    def report(self) -> WorkerReport | None:
        """What happened since the last one."""
        with self.lock:
            compiled = self.compiled[:]
            del self.compiled[: len(compiled)]
            last, self.last = self.last, []
            spans = [found for client, columns in self.columns.items() if (found := columns.spans(client)) is not None]
        return WorkerReport((*compiled, *last, *spans)) if compiled or last or spans else None


def _whole(ids: list[int]) -> array[int]:
    """Ids as they are sent; 0 for an operand that is no id."""
    try:
        return array("q", ids)
    except TypeError:
        return array("q", [id if type(id) is int else 0 for id in ids])


def meaning(number: int, ready: Any) -> Meaning:
    """What a number stands for, as it is told."""
    kind: Kind | None = getattr(ready, "kind", None)
    if kind is not None:
        nbytes = sum(s.nbytes for s in kind.outs)
        return Meaning(number, kind.row.name, kind.row.group, kind.signal, nbytes, tuple(kind.settings.get("group", ())))
    program = getattr(ready, "program", None)
    if program is None:
        return Meaning(number, ready.title, "free")
    total = sum(work(i.kind) for i in program.instructions) or 1.0
    ops = tuple((i.op.name, i.op.group, work(i.kind) / total, i.line) for i in program.instructions[:REPORTED])
    signals = dict.fromkeys(i.kind.signal for i in program.instructions if i.kind.signal)
    nbytes = sum(s.nbytes for s in ready.results)
    return Meaning(number, ready.title, "program", ", ".join(signals), nbytes, (), ops, ready.source)


def work(kind: Kind) -> float:
    """An estimate of how long an op takes, in elements that it touches: where a program is timed as a whole, its ops share
    its time by this. A product takes a sixteenth of an element's time for each multiplication."""
    specs = [s for s in (*kind.ins, *kind.outs) if isinstance(s, Spec)]
    touched = float(sum(s.numel for s in specs)) + 64.0
    if kind.row.blas and kind.ins and isinstance(first := kind.ins[0], Spec) and first.shape:
        touched += sum(s.numel for s in kind.outs) * first.shape[-1] / 16
    return touched
