"""The unreported activities of one client, which a report takes apart."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from gt.ops import Kind
from gt.ops.collective import kept_by
from gt.program.code import first_result, number_of, tag_of
from gt.transport.events import EVERY, EXACT, INSIDE, OFF, READ, REPORTED, SAMPLED, STRETCH, Meaning, Spans
from gt.transport.time_stamps import time_stamps
from gt.worker.programs.ticks import Ticks
from gt.worker.run_sample import BEGUN, CLOSED, MergedRuns, RunSample

MAX_UNREPORTED = 1 << 17  # entries above which the oldest half is dropped


class Columns:
    """The unreported activities of one client: entries, and the time at which each begins; it lasts until the next one begins.
    An entry is an instruction as it is, (READ, id, bytes), (STRETCH, count) for a run that is timed as a whole, or one after
    which nothing happens until the next: (END, serial) of a run, and BEGUN.

    Between two kernels all code and data is cold: recording costs by the number of functions that it calls, in C or not, and
    hardly by the entries that it keeps. So one call begins a run, whose instructions and end are noted as they are asked for. A
    report keeps the last entry while it lasts (at INSIDE all have ended)."""

    __slots__ = (
        "stamps", "add", "append", "over", "level", "plain", "skip", "sample", "clock", "sync", "ticks", "lock", "kinds",
        "retired", "before", "broken", "met", "tagged", "dropped", "paused", "began", "part",
    )  # fmt: skip

    def __init__(
        self, kinds: dict[int, tuple[int, Any, Any]], clock: Callable[[], float], sync: Callable[[], None], ticks: Ticks,
        lock: AbstractContextManager[Any],
    ) -> None:  # fmt: skip
        self.kinds, self.clock, self.sync, self.ticks = kinds, clock, sync, ticks
        self.lock = lock  # of reports
        self.stamps = time_stamps(clock)
        self.add, self.append, self.over = self.stamps.add, self.stamps.append, self.stamps.over
        self.level, self.plain = OFF, False  # whether to time every instruction, and nothing inside of them
        self.skip, self.sample = 0, RunSample()  # runs until the next that is timed one by one
        self.retired: dict[int, tuple[int, Any, Any]] = {}  # kinds that were dropped since the last report, and before it
        self.before: dict[int, tuple[int, Any, Any]] = {}
        self.broken: list[int] = []
        self.met: set[int] = set()  # numbers whose meaning is reported
        self.tagged: set[int] = set()  # numbers of collectives, whose result's id is the last of the instruction, its tag
        self.dropped = 0
        # Of a paused run: its entry and the seconds so far; or BEGUN, and since when.
        self.paused: tuple[tuple, float] | None = None
        # At INSIDE: the start of the current instruction, and the end of the last entry.
        self.began = self.part = 0.0

    def listen(self, level: int) -> None:
        """Set the level of detail, and report meanings again, as there may be a new observer."""
        if level != self.level:
            self.skip, self.sample = 0, RunSample()
            if len(self.stamps):
                self.close()
        self.level, self.plain = level, level == EVERY
        self.met.clear()

    def close(self) -> None:
        """Nothing happens from now on."""
        self.add(BEGUN)

    def watch(self, code: Iterator[tuple], end: tuple | None) -> Iterator[tuple]:
        """A run begins that is timed one by one, at another level than EVERY. `end` is its END, unless reads follow."""
        if self.level >= INSIDE:
            return self._inside(code)
        self.skip = self.sample.next()
        return self.over(code, end)

    def _inside(self, code: Iterator[tuple]) -> Iterator[tuple]:
        """The same instructions; those inside of a program are added as they end, so it is added after them."""
        try:
            for ins in code:
                self.ticks.note = self._note
                self.began = self.part = self.clock()
                yield ins
                if self.level == EXACT:
                    self.sync()
                ended, self.part = self.part, self.clock()
                self.append(BEGUN, ended)
                self.append(ins, self.began)
        finally:
            self.ticks.note = None

    def _note(self, entries: tuple) -> None:
        """Instructions inside of a program have ended: those of one call, which share its time."""
        now, began = self.clock(), self.part
        each = (now - began) / len(entries) if entries else 0.0
        for left, entry in zip(range(len(entries) - 1, -1, -1), entries):
            start, self.part = self.part, now - left * each  # before a report may see the entry
            self.append(entry, start)

    def read(self, id: int, nbytes: int, began: float) -> None:
        """A tensor was sent to its client, and its run ends."""
        self.append((READ, id, nbytes), began)

    def pause(self, waits: bool) -> None:
        """The current run is preempted: others' time is not that of its instruction, which begins anew. Or it waits for a
        collective, which lasts until the run continues."""
        now, self.ticks.note = self.clock(), None
        if self.level >= INSIDE:
            self.paused = BEGUN, 0.0 if waits else now
            self.append(BEGUN, self.part)
            return
        with self.lock:
            last, start = self.stamps.last() or (BEGUN, now)
            if last[0] != STRETCH and last[0] not in CLOSED and not waits:  # else it began before it was watched, or it lasts
                self.paused = last, now - start
                self.stamps.replace_last(BEGUN)
        if last[0] == STRETCH:
            self.paused = (STRETCH, 0), 0.0
            self.close()

    def go_on(self) -> None:
        """The paused run continues."""
        assert self.paused is not None
        now, (entry, since), self.paused = self.clock(), self.paused, None
        if entry is not BEGUN:
            self.append(entry, now - since)
            return
        pause, self.ticks.note = now - since if since else 0.0, self._note
        self.began, self.part = self.began + pause, self.part + pause

    def retire(self, number: int) -> None:
        """A kind is dropped, of which there may be unreported instructions."""
        self.retired[number] = self.kinds[number]

    def cut(self) -> None:
        """The current run has ended by an internal error."""
        with self.lock:
            last, self.ticks.note = self.stamps.last(), None
            if last is not None:
                self.append(BEGUN, max(self.part, last[1]) if self.level >= INSIDE else self.clock())

    def drop(self) -> None:
        """Drop the oldest entries: reports are not taken in time."""
        with self.lock:
            entries, _ = self.stamps.take(MAX_UNREPORTED // 2)
            self.dropped += sum(entry[0] not in CLOSED for entry in entries)

    def spans(self, client: str) -> Spans | None:
        """Remove and return all entries that have ended as a message. It is made column by column: the worker's thread waits
        meanwhile. The caller has the lock."""
        known, self.before, self.retired = self.before | self.retired, self.retired, {}
        n, last = len(self.stamps), self.stamps.last()
        lasts = last is not None and last[0][0] not in CLOSED
        if lasts and self.level < INSIDE:
            n -= 1
        if n <= 0 and not self.dropped:
            return None
        dropped, self.dropped = self.dropped, 0
        code, found = self.stamps.take(n)
        times = np.frombuffer(found)
        if len(times) == len(code):
            times = np.append(times, self.part if lasts else times[-1] if len(times) else 0.0)
        if self.level == SAMPLED:
            merged = MergedRuns(code, times.tolist())
            code, times = merged.code, np.array(merged.starts)
            self.sample.add(merged.seconds, merged.instructions, merged.runs)
        numbers = list(map(number_of, code))
        unique = set(numbers)
        meanings = self._meet(unique, known)
        seconds = np.diff(times).astype(np.float32)
        columns = array("q", numbers).tobytes(), self._ids(code).tobytes(), times[:-1].tobytes(), seconds.tobytes()
        sizes = tuple([entry[2] for entry in code if entry[0] == READ]) if READ in unique else ()
        broken = self.broken[:]  # in place, as the worker's thread may be adding
        del self.broken[: len(broken)]
        return Spans(client, *columns, sizes, tuple(id for id in broken if type(id) is int), meanings, dropped)

    def _meet(self, numbers: set[int], retired: dict[int, tuple[int, Any, Any]]) -> tuple[Meaning, ...]:
        """The meanings of numbers that are reported for the first time."""
        new = numbers - self.met
        self.met |= new
        found = []
        for number in new:
            known = self.kinds.get(number) or retired.get(number) or self.retired.get(number)
            if known is None or known[2] is None:
                continue
            kind: Kind | None = getattr(known[2], "kind", None)
            if kind is not None and kind.row.collective:
                self.tagged.add(number)
            found.append(meaning(number, known[2]))
        return tuple(found)

    def _ids(self, code: list[tuple]) -> array[int]:
        """The id of each entry's result; 0 where it has none, or one that is not an integer."""
        tagged = self.tagged
        try:
            found = (
                [tag_of(e) if e[0] in tagged else first_result(e) for e in code] if tagged else list(map(first_result, code))
            )
            return array("q", found)  # of a list: of an iterator it takes twice as long
        except (TypeError, IndexError):
            found = [tag_of(e) if e[0] in tagged else first_result(e) if len(e) > 1 else 0 for e in code]
            return array("q", [id if type(id) is int else 0 for id in found])


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
