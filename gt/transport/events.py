"""Events for observers. Clients and workers record events while an observer is connected, the dispatcher adds its own and sends
each observer the events that it may see; `gt.watch.events` reads them. A worker's instructions are packed in columns, as there
may be a million a second, and so are batches; other events come once a read or a second."""

from __future__ import annotations

import msgspec

from gt.transport.message import Message

OFF, SAMPLED, EVERY, INSIDE, EXACT = range(5)
"""Detail of a worker's recording: INSIDE also times the instructions inside of programs, EXACT waits for the device after each
instruction."""
WINDOW = 64  # messages that an observer has not acknowledged, above which events are dropped and counted
REPORTED = 1 << 12  # most events of one report
COLUMN = 4 << 20  # bytes of a column
STRETCH, END, READ, BEGIN = (-(1 << 62) - i for i in range(4))  # numbers in a column of kinds that are no kinds
PART = -(1 << 62)  # an id from here downwards: an instruction inside of the program of this number, PART less its position


class Event(msgspec.Struct, frozen=True, array_like=True, tag_field="t"):
    """The root of all events. Times are seconds since 1970 by the clock of the process that records them. `client` is a
    client's name, which the dispatcher replaces by its label."""


class Meaning(msgspec.Struct, frozen=True, array_like=True):
    """The meaning of a kind's or trace's number on a worker: an op, a collective with its workers, or a program with its ops:
    (name, group, estimated share of its time, the user's line) of each."""

    number: int
    name: str
    group: str
    signal: str = ""
    nbytes: int = 0  # bytes of its results
    workers: tuple[int, ...] = ()  # the workers of a collective
    ops: tuple[tuple[str, str, float, str], ...] = ()
    source: str = ""  # the source of a program: "trace", "unit", "segment"
    rule: str = ""  # of a gathered tensor: a rule by which it could have stayed sharded


class Spans(Event, frozen=True, tag=1):
    """Instructions that a worker executed for one client, in columns: `numbers` of kinds and `ids` of first results (for a
    collective, the result it computes) as int64, `starts` as float64, `seconds` as float32. Numbers that are no kinds: STRETCH,
    instructions timed together, with their count as id; END of a run, with its serial as id (not at SAMPLED); READ of a
    tensor, with its bytes in `sizes`; BEGIN, which ends where the next one starts. `broken` are results that could not be
    computed. `meanings` precede their first use."""

    client: str
    numbers: bytes
    ids: bytes
    starts: bytes
    seconds: bytes
    sizes: tuple[int, ...] = ()
    broken: tuple[int, ...] = ()
    meanings: tuple[Meaning, ...] = ()
    dropped: int = 0  # instructions that were not recorded, as reports were not sent in time
    worker: str = ""  # set by the dispatcher


class Received(Event, frozen=True, tag=2):
    """Batches reached the dispatcher: one, or, at SAMPLED, those since the last such event, with the last one's serial. Frees
    are no instructions."""

    client: str
    serial: int
    at: float
    instructions: int
    batches: int = 1


class Sent(Event, frozen=True, tag=3):
    """The dispatcher sent a worker its part of a batch. Not at SAMPLED."""

    client: str
    serial: int
    worker: str
    at: float
    instructions: int


class Waited(Event, frozen=True, tag=4):
    """A client waited for a value, at the user's line; at SAMPLED for all values of a line since the last report, from `at` on
    and for so many seconds in all."""

    client: str
    at: float
    seconds: float
    line: str
    nbytes: int
    count: int = 1


class Loaded(Event, frozen=True, tag=5):
    """A client sent an array; the same `digest` is the same bytes."""

    client: str
    at: float
    seconds: float
    line: str
    nbytes: int
    digest: str


class Traced(Event, frozen=True, tag=6):
    """The state of a client's tracer: counts since the session began, misses by reason with a line of each."""

    client: str
    at: float
    found: int
    hits: int
    saved: int
    misses: tuple[tuple[str, int, str], ...] = ()


class Lines(Event, frozen=True, tag=7):
    """The user's lines: `ids` of results as int64, for each the number of its line in `table`, as uint16. `sent` are the
    serials of their batches and the times at which the client sent them."""

    client: str
    ids: bytes
    lines: bytes
    table: tuple[str, ...]
    sent: tuple[tuple[int, float], ...] = ()

    @property
    def at(self) -> float:
        return self.sent[0][1] if self.sent else 0.0


class Joined(Event, frozen=True, tag=8):
    """A worker (with its index) or a client (-1) connected, or was connected when the observer came."""

    name: str
    at: float
    index: int = -1
    about: str = ""


class Departed(Event, frozen=True, tag=9):
    """A worker (with its index) or a client (-1) ended, and the reason."""

    name: str
    at: float
    why: str
    index: int = -1


class Stalled(Event, frozen=True, tag=10):
    """A collective that has not ended in time."""

    client: str
    at: float
    text: str
    worker: str = ""
    id: int = 0


class Compiled(Event, frozen=True, tag=11):
    """A worker compiled a program, which begins at the user's line, or gave up compiling it."""

    client: str
    at: float
    seconds: float
    text: str
    worker: str = ""
    line: str = ""


class State(Event, frozen=True, tag=12):
    """The current state of a worker. `busy` and `idle` are seconds since it started."""

    at: float
    busy: float
    idle: float
    queue: int
    nbytes: int
    total: int
    tensor_count: int
    gpu: float = -1.0  # utilisation over the last second; below zero if unknown
    current: str = ""  # the executed op
    since: float = 0.0  # seconds since it began
    stack: str = ""  # the stack of its main thread, if the op takes long
    worker: str = ""
    client: str = ""  # the client of this op


class Placed(Event, frozen=True, tag=13):
    """The name, spec and placement of a named tensor."""

    client: str
    at: float
    name: str
    spec: str
    placement: str


class Batches(Event, frozen=True, tag=14):
    """Received and Sent of one client, in the order in which they happened, in columns: `serials` as int64, `times` as float64,
    counts of `instructions` as int32, and the index of the worker, or -1 for Received, as int32. `names` are those of the
    workers, by index."""

    client: str
    serials: bytes
    times: bytes
    instructions: bytes
    workers: bytes
    names: dict[int, str]


SMALL = 256  # bytes of an event, a meaning or a line without its columns


def nbytes(event: Event) -> int:
    """The approximate bytes of an event in an observer's queue."""
    match event:
        case Spans(_, numbers, ids, starts, seconds, sizes, broken, meanings):
            columns = len(numbers) + len(ids) + len(starts) + len(seconds) + 8 * (len(sizes) + len(broken))
            return SMALL * (1 + sum(1 + len(m.ops) for m in meanings)) + columns
        case Lines(_, ids, lines, table, sent):
            return SMALL * (1 + len(table)) + len(ids) + len(lines) + 16 * len(sent)
        case Batches(_, serials, times, instructions, workers, names):
            return SMALL * (1 + len(names)) + len(serials) + len(times) + len(instructions) + len(workers)
        case Traced(misses=misses):
            return SMALL * (1 + len(misses))
        case Compiled(text=text) | Stalled(text=text):
            return SMALL + len(text)
        case State(current=current, stack=stack):
            return SMALL + len(current) + len(stack)
    return SMALL


AnyEvent = (
    Spans
    | Batches
    | Received
    | Sent
    | Waited
    | Loaded
    | Traced
    | Lines
    | Joined
    | Departed
    | Stalled
    | Compiled
    | State
    | Placed
)


class Subscribe(Message, frozen=True, tag=40):
    """From an observer: the detail it requests. A client sees its own events; a pure observer sees all if its key permits, or
    those of the client that it names. OFF ends the observation."""

    version: int
    level: int
    client: str = ""


class Listen(Message, frozen=True, tag=41):
    """To workers and clients: the detail to record. To a worker also the detail of single clients, by name, where it
    differs."""

    level: int
    clients: tuple[tuple[str, int], ...] = ()


class WorkerReport(Message, frozen=True, tag=42):
    """From workers and clients: recorded events."""

    events: tuple[AnyEvent, ...]


class Watched(Message, frozen=True, tag=43):
    """To an observer: events. `dropped` counts the messages that were not sent because the observer was slow."""

    number: int
    events: tuple[AnyEvent, ...]
    dropped: int = 0


class Seen(Message, frozen=True, tag=44):
    """From an observer: it has received the messages up to this number."""

    number: int
