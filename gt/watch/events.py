"""The event stream as readers see it: what came packed is taken apart into typed events, each with what its numbers stand for.
The instruction log, `gt top`, `gt trace`, `gt visualize`, the dashboard and `gt doctor` read nothing else."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from gt.ops import TABLE
from gt.transport import events as wire
from gt.transport.events import END, READ, STRETCH, Event, Lines, Meaning, Spans

LINES = 1 << 18  # results whose lines are remembered
MEANINGS = 1 << 17  # numbers that are known; past it the oldest are forgotten, and shown as unknown
GONE = 64  # clients that are gone whose numbers are still known
UNKNOWN = Meaning(0, "unknown", "unknown")
TO_CLIENT = Meaning(READ, "read", "transfer")  # a tensor sent to its client, which is no op


@dataclass(frozen=True, slots=True)
class Activity:
    """Something that a worker did for a client: from when, for how long, under which name and group of ops (`Row.group`).
    `id` is the result of the client's that it is for."""

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
    """What several workers did together, until this one had its result. `workers` are their indices."""

    workers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Move(Activity):
    """Bytes to or from a client: `load` or `read`."""


@dataclass(frozen=True, slots=True)
class Free(Activity):
    """A tensor went."""


@dataclass(frozen=True, slots=True)
class StretchActivity(Activity):
    """Instructions that were timed as one, as only a sample is timed one by one."""

    count: int = 0


@dataclass(frozen=True, slots=True)
class RunEnd:
    """A worker has executed its part of a batch; `broken` results could not be made."""

    worker: str
    client: str
    serial: int
    at: float
    broken: tuple[int, ...] = ()


Item = Activity | RunEnd | Event


class Reader:
    """Takes events apart. It remembers what numbers mean and, for a while, which line asked for which result."""

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
                case wire.Departed(name, _, _, index):
                    self.gone[name] = None  # what it did may still be told
                    if index >= 0 or len(self.gone) > GONE:
                        old = name if index >= 0 else next(iter(self.gone))
                        del self.gone[old]
                        self.meanings = {k: m for k, m in self.meanings.items() if old not in k[:2]}
                    yield event
                case _:
                    yield event

    def line(self, work: Activity) -> str:
        """The user's line that asked for it, where that is known; of a program, the lines of its ops."""
        if isinstance(work, ProgramCall):
            return ", ".join(dict.fromkeys(op[3] for op in work.ops if op[3]))
        return self.lines.get((work.client, work.id), "")

    def _lines(self, event: Lines) -> None:
        for id, line in zip(array("q", event.ids), array("H", event.lines)):
            if line < len(event.table):
                self.lines[event.client, id] = event.table[line]
        while len(self.lines) > LINES:
            del self.lines[next(iter(self.lines))]

    def _spans(self, spans: Spans) -> Iterator[Item]:
        who = spans.worker, spans.client
        for meaning in spans.meanings:
            self.meanings[(*who, meaning.number)] = meaning
        while len(self.meanings) > MEANINGS:
            del self.meanings[next(iter(self.meanings))]
        self.dropped += spans.dropped
        sizes = iter(spans.sizes)
        columns = (array("q", spans.numbers), array("q", spans.ids), array("d", spans.starts), array("f", spans.seconds))
        broken = spans.broken
        for number, id, start, seconds in zip(*columns):
            if number == END:
                yield RunEnd(*who, id, start, broken)
            elif number == STRETCH:
                yield StretchActivity(*who, "instructions", "stretch", start, seconds, count=id)
            elif number == READ:
                yield Move(*who, TO_CLIENT.name, TO_CLIENT.group, start, seconds, id, nbytes=next(sizes, 0))
            else:
                yield typed(self.meanings.get((*who, number), UNKNOWN), Activity(*who, "", "", start, seconds, id))


def meaning_of(name: str) -> Meaning:
    """The meaning of work of which only the name is known, as in a log."""
    if name == TO_CLIENT.name:
        return TO_CLIENT
    row = TABLE.get(name)
    return Meaning(0, name, row.group if row is not None else UNKNOWN.group)


def typed(meaning: Meaning, work: Activity) -> Activity:
    """Activity under its name."""
    given = (work.worker, work.client, meaning.name, meaning.group, work.start, work.seconds, work.id)
    more = (meaning.signal, meaning.nbytes)
    match meaning.group:
        case "free":
            return Free(*given)
        case "program":
            return ProgramCall(*given, *more, meaning.ops, meaning.source)
        case "collective":
            return Collective(*given, *more, meaning.workers)
        case "transfer":
            return Move(*given, *more)
    return OpActivity(*given, *more)


@dataclass(slots=True)
class Recording:
    """What was seen: items in the order in which they came, and the lines that asked for results."""

    items: list[Item] = field(default_factory=list)
    reader: Reader = field(default_factory=Reader)
    dropped: int = 0  # messages that came too fast for whoever recorded

    def add(self, events: Iterable[Event], dropped: int = 0) -> None:
        self.items += self.reader.read(events)
        self.dropped = max(self.dropped, dropped)

    @property
    def work(self) -> list[Activity]:
        """What workers did, by its beginning; frees are no work."""
        return sorted((i for i in self.items if isinstance(i, Activity) and not isinstance(i, Free)), key=lambda w: w.start)

    @property
    def workers(self) -> list[str]:
        """By index, as far as it is known."""
        known = {i.name: i.index for i in self.items if isinstance(i, wire.Joined) and i.index >= 0}
        names = {i.worker for i in self.items if isinstance(i, Activity)} | known.keys()
        return sorted(names, key=lambda name: (known.get(name, 1 << 30), name))

    @property
    def clients(self) -> list[str]:
        return sorted({name for i in self.items if (name := getattr(i, "client", ""))})

    def line(self, work: Activity) -> str:
        return self.reader.line(work)

    def between(self, start: float, stop: float) -> list[Activity]:
        """Activity within a time, what reaches over its ends cut off there."""
        return [cut(w, start, stop) for w in self.work if w.start < stop and w.stop > start]


def cut(work: Activity, start: float, stop: float) -> Activity:
    """The part of some work that lies within a time."""
    begin = max(work.start, start)
    return replace(work, start=begin, seconds=max(0.0, min(work.stop, stop) - begin))
