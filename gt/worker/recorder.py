"""When a worker does what, for whoever listens: while nobody does, there is no recorder."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterator
from typing import Any

from gt.ops import Kind
from gt.spec import Spec
from gt.transport.events import END, EVERY, EXACT, OFF, READ, REPORTED, STRETCH, Compiled, Listen, Meaning, Report, Spans
from gt.transport.messages import Run

MOST = 1 << 17  # instructions that wait to be reported; past it runs are timed as one, past twice that they are dropped
SHORT = 32  # instructions of a run that are always timed one by one
SAMPLE = 16  # of longer runs, one in so many is

Entry = tuple[str, int, int, float, float, Any]  # client, number, id, from, to, and what the number stands for


class Recorder:
    """What was executed since the last report. The worker's thread adds, and any thread takes reports."""

    def __init__(self, clock: Callable[[], float], sync: Callable[[], None]) -> None:
        self.clock, self.sync = clock, sync
        self.level, self.levels = OFF, dict[str, int]()  # of all clients, and of those where it differs
        self.entries: list[Entry] = []
        self.compiled: list[Compiled] = []
        self.broken: list[tuple[str, tuple[int, ...]]] = []
        self.began = 0.0  # when the instruction at hand did
        self.waiting: dict[str, float] = {}  # when the collective did that a client's run waits for
        self.spent: dict[str, float] = {}  # seconds that a program had which was left in its middle
        self.whole: dict[str, int] = {}  # by client: how many instructions of the run at hand are timed as one
        self.long = self.dropped = 0
        self.told: set[tuple[str, int]] = set()  # numbers whose meaning was reported
        self.lock = threading.Lock()

    def listen(self, asked: Listen) -> None:
        """Look more or less closely from here on. Meanings are told again, as someone may have come."""
        with self.lock:
            self.level, self.levels = asked.level, dict(asked.clients)
            self.told.clear()

    def forget(self, client: str) -> None:
        """A client is gone; what was done for it is still to be reported."""
        with self.lock:
            self.told = {known for known in self.told if known[0] != client}
        for table in (self.waiting, self.spent, self.whole):
            table.pop(client, None)

    def of(self, client: str) -> int:
        return self.levels.get(client, self.level)

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
        if sampled and len(self.entries) < MOST:
            return self._timed(run.client, kinds, code, self.sync if level == EXACT else None)
        self.whole[run.client] = len(run.code)
        return code

    def _timed(
        self, client: str, kinds: dict[int, Any], code: Iterator[tuple], sync: Callable[[], None] | None
    ) -> Iterator[tuple]:  # fmt: skip
        clock, add = self.clock, self.entries.append
        for ins in code:
            known = kinds.get(ins[0])
            yield ins
            if sync is not None:
                sync()
            ended = clock()
            add((client, ins[0], ins[1] if len(ins) > 1 else 0, self.began, ended, (known, ins)))
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
        if broken:
            self.broken.append((client, tuple(id for id in broken if type(id) is int)))
        self.entries.append((client, END, run.serial, now, now, None))
        if len(self.entries) > 2 * MOST:
            self.dropped += MOST
            del self.entries[:MOST]

    def _stretch(self, client: str) -> None:
        """What was executed since the run began or went on, as one; how many instructions it is of is said once."""
        if len(self.entries) < 2 * MOST:
            self.entries.append((client, STRETCH, self.whole[client], self.began, self.clock(), None))
        self.whole[client] = 0

    def read(self, client: str, id: int, nbytes: int, began: float) -> None:
        """A tensor was sent to its client."""
        if self.of(client) != OFF:
            self.entries.append((client, READ, id, began, self.clock(), nbytes))

    def compile(self, client: str, seconds: float, text: str) -> None:
        """A program was compiled, or was not."""
        if len(self.compiled) < REPORTED:
            self.compiled.append(Compiled(client, self.clock(), seconds, text[:512]))

    def report(self) -> Report | None:
        """What happened since the last one."""
        with self.lock:
            n = len(self.entries)
            taken, compiled, broken = self.entries[:n], self.compiled[:], self.broken[:]
            del self.entries[:n], self.compiled[: len(compiled)], self.broken[: len(broken)]
            dropped, self.dropped = self.dropped, 0
            if not taken and not compiled and not dropped:
                return None
            by_client: dict[str, list[Entry]] = {}
            for entry in taken:
                by_client.setdefault(entry[0], []).append(entry)
            spans = [self._spans(client, entries, broken, dropped) for client, entries in by_client.items()]
        return Report((*compiled, *spans))

    def _spans(self, client: str, entries: list[Entry], broken: list[tuple[str, tuple[int, ...]]], dropped: int) -> Spans:
        meanings = []
        for _, number, _, _, _, about in entries:
            if number > STRETCH and (client, number) not in self.told:
                self.told.add((client, number))
                if about[0] is not None:
                    meanings.append(meaning(number, about[0][2]))
        return Spans(
            client,
            array("q", [e[1] for e in entries]).tobytes(),
            array("q", [_id(e) for e in entries]).tobytes(),
            array("d", [e[3] for e in entries]).tobytes(),
            array("f", [e[4] - e[3] for e in entries]).tobytes(),
            tuple(e[5] for e in entries if e[1] == READ),
            tuple(id for name, ids in broken if name == client for id in ids),
            tuple(meanings),
            dropped,
        )


def _id(entry: Entry) -> int:
    """The first result; of a collective, the result of the client's that it is for, which is its last operand."""
    _, number, id, _, _, about = entry
    if number <= STRETCH or about[0] is None:
        return id
    (_, _, ready), ins = about
    kind = ready.kind
    id = ins[-1] if isinstance(kind, Kind) and kind.row.collective else id
    return id if type(id) is int else 0


def meaning(number: int, ready: Any) -> Meaning:
    """What a number stands for, as it is told."""
    kind = ready.kind
    if isinstance(kind, Kind):
        nbytes = sum(s.nbytes for s in kind.outs)
        return Meaning(number, kind.row.name, kind.row.group, kind.signal, nbytes, tuple(kind.settings.get("group", ())))
    program = getattr(ready, "program", None)
    if program is None:
        return Meaning(number, str(kind), "free")
    total = sum(work(i.kind) for i in program.instructions) or 1.0
    ops = tuple((i.op.name, i.op.group, work(i.kind) / total, i.line) for i in program.instructions[:REPORTED])
    signals = dict.fromkeys(i.kind.signal for i in program.instructions if i.kind.signal)
    nbytes = sum(s.nbytes for s in ready.results)
    return Meaning(number, kind, "program", ", ".join(signals), nbytes, (), ops, ready.source)


def work(kind: Kind) -> float:
    """An estimate of how long an op takes, in elements that it touches: where a program is timed as a whole, its ops share
    its time by this. A product takes a sixteenth of an element's time for each multiplication."""
    specs = [s for s in (*kind.ins, *kind.outs) if isinstance(s, Spec)]
    touched = float(sum(s.numel for s in specs)) + 64.0
    if kind.row.blas and kind.ins and isinstance(first := kind.ins[0], Spec) and first.shape:
        touched += sum(s.numel for s in kind.outs) * first.shape[-1] / 16
    return touched
