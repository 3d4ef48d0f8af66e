"""The event stream, decoded: packed spans become typed events, with names in place of numbers. It is the only input of the
instruction log, `gt top`, `gt trace`, `gt visualize`, the dashboard and `gt doctor`."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import msgspec

from gt.ops import TABLE
from gt.transport import events as wire
from gt.transport.events import BEGIN, END, PART, READ, STRETCH, Event, Lines, Meaning, Spans

MAX_LINES = 1 << 18  # most results whose lines are remembered
MAX_MEANINGS = 1 << 17  # most numbers whose meaning is remembered; spans of older numbers are shown as unknown
GONE = 64  # departed clients whose numbers are still remembered
UNKNOWN = Meaning(0, "unknown", "unknown")
TO_CLIENT = Meaning(READ, "read", "transfer")  # a tensor sent to its client; not an op


@dataclass(frozen=True, slots=True)
class Activity:
    """One timed unit of a worker's work for a client: start, duration, name and group of ops (`Row.group`). `id` is the
    client's id of its result."""

    worker: str
    client: str
    name: str
    group: str
    start: float
    seconds: float
    id: int = 0
    signal: str = ""
    nbytes: int = 0

    @property
    def stop(self) -> float:
        return self.start + self.seconds


@dataclass(frozen=True, slots=True)
class OpActivity(Activity):
    """One op."""


@dataclass(frozen=True, slots=True)
class ProgramCall(Activity):
    """A trace, a unit or a segment, which is timed as a whole. `ops` are (name, group, estimated share, line)."""

    ops: tuple[tuple[str, str, float, str], ...] = ()
    source: str = "trace"


@dataclass(frozen=True, slots=True)
class Collective(Activity):
    """A collective, until this worker had its result. `workers` are the indices of its group. `rule`: of a gathered tensor, a
    rule by which it could have stayed sharded."""

    workers: tuple[int, ...] = ()
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Move(Activity):
    """Bytes to or from a client: `load` or `read`."""


@dataclass(frozen=True, slots=True)
class Free(Activity):
    """A tensor was freed."""


@dataclass(frozen=True, slots=True)
class StretchActivity(Activity):
    """Instructions that were timed together: only a sample is timed one by one."""

    count: int = 0  # frees included


@dataclass(frozen=True, slots=True)
class OpInProgram:
    """The instruction at a position inside of a program that a worker runs now. The ProgramCall follows when all are done."""

    call: ProgramCall  # the program; its times are those of the instruction
    position: int


@dataclass(frozen=True, slots=True)
class RunEnd:
    """A worker has executed its part of a batch; the results in `broken` could not be computed."""

    worker: str
    client: str
    serial: int
    at: float
    broken: tuple[int, ...] = ()


Item = Activity | OpInProgram | RunEnd | Event


class Reader:
    """Decodes events. It remembers the meaning of numbers and, for a bounded number of results, the user's line of each."""

    def __init__(self) -> None:
        self.meanings: dict[tuple[str, str, int], Meaning] = {}
        self.lines: dict[tuple[str, int], str] = {}
        self.gone: dict[str, None] = {}
        self.dropped = 0

    def read(self, events: Iterable[Event]) -> Iterator[Item]:
        for event in events:
            match event:
                case Spans():
                    yield from self._spans(event)
                case Lines():
                    self._lines(event)
                    yield event
                case wire.Batches():
                    yield from batches(event)
                case wire.Departed(name, _, _, index):
                    self.gone[name] = None  # workers may still report spans of a departed client
                    if index >= 0 or len(self.gone) > GONE:
                        old = name if index >= 0 else next(iter(self.gone))
                        del self.gone[old]
                        self.meanings = {k: m for k, m in self.meanings.items() if old not in k[:2]}
                    yield event
                case _:
                    yield event

    def line(self, work: Activity) -> str:
        """The user's line of this work, where known; of a program, the lines of its ops."""
        if isinstance(work, ProgramCall):
            return ", ".join(dict.fromkeys(op[3] for op in work.ops if op[3]))
        return self.lines.get((work.client, work.id), "")

    def _lines(self, event: Lines) -> None:
        for id, line in zip(array("q", event.ids), array("H", event.lines)):
            if line < len(event.table):
                self.lines[event.client, id] = event.table[line]
        while len(self.lines) > MAX_LINES:
            del self.lines[next(iter(self.lines))]

    def _spans(self, spans: Spans) -> Iterator[Item]:
        who = spans.worker, spans.client
        for meaning in spans.meanings:
            self.meanings[(*who, meaning.number)] = meaning
        while len(self.meanings) > MAX_MEANINGS:
            del self.meanings[next(iter(self.meanings))]
        self.dropped += spans.dropped
        sizes = iter(spans.sizes)
        columns = (array("q", spans.numbers), array("q", spans.ids), array("d", spans.starts), array("f", spans.seconds))
        broken = spans.broken
        for number, id, start, seconds in zip(*columns):
            if number == END:
                yield RunEnd(*who, id, start, broken)
            elif number == BEGIN:
                pass
            elif number == STRETCH:
                yield StretchActivity(*who, "instructions", "stretch", start, seconds, count=id)
            elif number == READ:
                yield Move(*who, TO_CLIENT.name, TO_CLIENT.group, start, seconds, id, nbytes=next(sizes, 0))
            else:
                done = typed(self.meanings.get((*who, number), UNKNOWN), Activity(*who, "", "", start, seconds, id))
                if id > PART:
                    yield done
                elif isinstance(done, ProgramCall) and PART - id < len(done.ops):
                    yield OpInProgram(done, PART - id)


def batches(event: wire.Batches) -> Iterator[wire.Received | wire.Sent]:
    """The single events."""
    columns = array("q", event.serials), array("d", event.times), array("i", event.instructions), array("i", event.workers)
    for serial, at, instructions, worker in zip(*columns):
        if worker < 0:
            yield wire.Received(event.client, serial, at, instructions)
        else:
            yield wire.Sent(event.client, serial, event.names.get(worker, ""), at, instructions)


def meaning_of(name: str) -> Meaning:
    """The meaning of work known only by its name, as in a log."""
    if name == TO_CLIENT.name:
        return TO_CLIENT
    row = TABLE.get(name)
    return Meaning(0, name, row.group if row is not None else UNKNOWN.group)


def typed(meaning: Meaning, work: Activity) -> Activity:
    """The activity as the class of its group, with the meaning's fields."""
    given = (work.worker, work.client, meaning.name, meaning.group, work.start, work.seconds, work.id)
    more = (meaning.signal, meaning.nbytes)
    match meaning.group:
        case "free":
            return Free(*given)
        case "program":
            return ProgramCall(*given, *more, meaning.ops, meaning.source)
        case "collective":
            return Collective(*given, *more, meaning.workers, meaning.rule)
        case "transfer":
            return Move(*given, *more)
    return OpActivity(*given, *more)


@dataclass(slots=True)
class Recording:
    """Recorded items in the order of their arrival, and the user's line of each result."""

    items: list[Item] = field(default_factory=list)
    reader: Reader = field(default_factory=Reader)
    dropped: int = 0  # messages that the dispatcher dropped because this reader was too slow
    lacks: str = ""  # the events that its source has not

    def add(self, events: Iterable[Event], dropped: int = 0) -> None:
        self.items += self.reader.read(events)
        self.dropped = max(self.dropped, dropped)

    @property
    def work(self) -> list[Activity]:
        """The workers' activities except frees, sorted by start."""
        return sorted((i for i in self.items if isinstance(i, Activity) and not isinstance(i, Free)), key=lambda w: w.start)

    @property
    def workers(self) -> list[str]:
        """The workers' names, sorted by index; workers of unknown index last."""
        known = {i.name: i.index for i in self.items if isinstance(i, wire.Joined) and i.index >= 0}
        names = {i.worker for i in self.items if isinstance(i, Activity)} | known.keys()
        return sorted(names, key=lambda name: (known.get(name, 1 << 30), name))

    @property
    def clients(self) -> list[str]:
        return sorted({name for i in self.items if (name := getattr(i, "client", ""))})

    def line(self, work: Activity) -> str:
        return self.reader.line(work)

    def between(self, start: float, stop: float) -> list[Activity]:
        """The activities within an interval, each clipped to it."""
        return [clipped(w, start, stop) for w in self.work if w.start < stop and w.stop > start]


def clipped(work: Activity, start: float, stop: float) -> Activity:
    """An activity clipped to an interval."""
    begin = max(work.start, start)
    return replace(work, start=begin, seconds=max(0.0, min(work.stop, stop) - begin))


def since(item: Item, start: float) -> Item:
    """An item without the time before `start`."""
    if isinstance(item, Activity) and item.start < start:
        return clipped(item, start, max(start, item.stop))
    if isinstance(item, wire.Waited) and item.at < start:
        return msgspec.structs.replace(item, at=start, seconds=max(0.0, item.at + item.seconds - start))
    return item
