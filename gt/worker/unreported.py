"""The unreported instructions of one client, which a report takes apart."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np

from gt.ops import Kind
from gt.ops.collective import kept_by
from gt.program.code import first_result, number_of, tag_of
from gt.transport.events import BEGIN, READ, REPORTED, STRETCH, Meaning, Spans

BEGUN = (BEGIN, 0)


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
        times = np.array((before, *ended))
        numbers, ids, seconds = array("q", list(map(number_of, code))), self._ids(code), np.diff(times).astype(np.float32)
        columns = numbers.tobytes(), ids.tobytes(), times[:-1].tobytes(), seconds.tobytes()
        reads, self.reads = self.reads, False
        sizes = tuple([entry[2] for entry in code if entry[0] == READ]) if reads else ()
        meanings = tuple(meaning(number, ready) for number, ready in new)
        failed = tuple(id for id in broken if type(id) is int)
        return Spans(client, *columns, sizes, failed, meanings, dropped)

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
