"""What GT tells those who watch it. Clients and workers write events while someone listens, the dispatcher adds its own and
passes each observer those that it may see; `gt.watch.events` reads them. What a worker did is packed in columns, as there may
be a million instructions a second; all other events come by the batch, by the read or by the second."""

from __future__ import annotations

import msgspec

from gt.transport.message import Message

OFF, SAMPLED, EVERY, EXACT = range(4)  # how closely a worker looks; EXACT waits for the device behind each instruction
WINDOW = 64  # messages to an observer that it has not taken in yet, past which events are dropped and counted
REPORTED = 1 << 12  # events of one report
COLUMN = 4 << 20  # bytes of a column
STRETCH, END, READ = (-(1 << 62) - i for i in range(3))  # numbers that stand for no kind, in a column of numbers


class Event(msgspec.Struct, frozen=True, array_like=True, tag_field="t"):
    """The root of all events. Times are seconds since 1970 by the clock of the process that writes them. `client` is a
    client's name, which the dispatcher replaces by its label."""


class Meaning(msgspec.Struct, frozen=True, array_like=True):
    """What a number of a client's stands for on a worker: an op, a collective with its workers, or a program with its ops:
    (name, group, estimated share of its time, the user's line) of each."""

    number: int
    name: str
    group: str
    signal: str = ""
    nbytes: int = 0  # of its results
    workers: tuple[int, ...] = ()  # of a collective
    ops: tuple[tuple[str, str, float, str], ...] = ()
    source: str = ""  # of a program: "trace", "unit", "segment"


class Spans(Event, frozen=True, tag=1):
    """Instructions that a worker executed for one client, in columns: `numbers` of kinds and `ids` of first results (of a
    collective, the result that it is for) as int64, `starts` as float64, `seconds` as float32. Numbers without a kind: STRETCH,
    instructions that were timed as one, whose id is how many; END of a run, whose id is its serial; READ of a tensor, with its
    bytes in `sizes`. `broken` are results that could not be made. `meanings` come before their first use."""

    client: str
    numbers: bytes
    ids: bytes
    starts: bytes
    seconds: bytes
    sizes: tuple[int, ...] = ()
    broken: tuple[int, ...] = ()
    meanings: tuple[Meaning, ...] = ()
    dropped: int = 0  # instructions that were not recorded, as nobody took them in
    worker: str = ""  # the dispatcher fills it in


class Received(Event, frozen=True, tag=2):
    """A batch reached the dispatcher."""

    client: str
    serial: int
    at: float
    instructions: int
    calls: int = 0
    frees: int = 0
    reads: int = 0


class Sent(Event, frozen=True, tag=3):
    """The dispatcher sent a worker its part of a batch."""

    client: str
    serial: int
    worker: str
    at: float
    instructions: int


class Waited(Event, frozen=True, tag=4):
    """A client waited for a value, at the user's line."""

    client: str
    at: float
    seconds: float
    line: str
    nbytes: int


class Loaded(Event, frozen=True, tag=5):
    """A client sent an array; the same `digest` is the same bytes."""

    client: str
    at: float
    seconds: float
    line: str
    nbytes: int
    digest: str


class Traced(Event, frozen=True, tag=6):
    """What a client's tracer has come to: counts since its beginning, misses by reason with the line of one."""

    client: str
    at: float
    found: int
    hits: int
    saved: int
    misses: tuple[tuple[str, int, str], ...] = ()


class Lines(Event, frozen=True, tag=7):
    """The user's lines: `ids` of results as int64, for each the number of its line in `table`, as uint16."""

    client: str
    ids: bytes
    lines: bytes
    table: tuple[str, ...]
    at: float = 0.0
    serial: int = 0  # of the batch that they are of


class Joined(Event, frozen=True, tag=8):
    """A worker (with its index) or a client (-1) came, or was there when someone began to listen."""

    name: str
    at: float
    index: int = -1
    about: str = ""


class Departed(Event, frozen=True, tag=9):
    """A worker (with its index) or a client (-1) went, and why."""

    name: str
    at: float
    why: str
    index: int = -1


class Stalled(Event, frozen=True, tag=10):
    """A collective does not end."""

    client: str
    at: float
    text: str
    worker: str = ""
    id: int = 0


class Compiled(Event, frozen=True, tag=11):
    """A worker compiled a program, or gave that up."""

    client: str
    at: float
    seconds: float
    text: str
    worker: str = ""


class State(Event, frozen=True, tag=12):
    """A worker as it is now. `busy` and `idle` are seconds since its beginning."""

    at: float
    busy: float
    idle: float
    queue: int
    nbytes: int
    total: int
    tensor_count: int
    gpu: float = -1.0  # share of the last second; below zero where nobody can tell
    current: str = ""  # what it executes
    since: float = 0.0  # seconds that it has been at that
    stack: str = ""  # of its first thread, where that takes long
    worker: str = ""
    client: str = ""  # for whom it executes that


class Placed(Event, frozen=True, tag=13):
    """Where a named tensor lies: its name, spec and placement."""

    client: str
    at: float
    name: str
    spec: str
    placement: str


SMALL = 256  # bytes that an event, a meaning or a line takes up beside its columns


def nbytes(event: Event) -> int:
    """About how many bytes an event takes up while it waits for an observer."""
    match event:
        case Spans(_, numbers, ids, starts, seconds, sizes, broken, meanings):
            columns = len(numbers) + len(ids) + len(starts) + len(seconds) + 8 * (len(sizes) + len(broken))
            return SMALL * (1 + sum(1 + len(m.ops) for m in meanings)) + columns
        case Lines(_, ids, lines, table):
            return SMALL * (1 + len(table)) + len(ids) + len(lines)
        case Traced(misses=misses):
            return SMALL * (1 + len(misses))
        case Compiled(text=text) | Stalled(text=text):
            return SMALL + len(text)
        case State(current=current, stack=stack):
            return SMALL + len(current) + len(stack)
    return SMALL


AnyEvent = Spans | Received | Sent | Waited | Loaded | Traced | Lines | Joined | Departed | Stalled | Compiled | State | Placed


class Subscribe(Message, frozen=True, tag=40):
    """From an observer: how closely it looks on. A client sees its own events; who connects only for this sees all where it has
    the right to, or those of the client that it names. OFF ends it."""

    version: int
    level: int
    client: str = ""


class Listen(Message, frozen=True, tag=41):
    """To workers and clients: how closely to look. To a worker also, for clients by name, where that differs."""

    level: int
    clients: tuple[tuple[str, int], ...] = ()


class WorkerReport(Message, frozen=True, tag=42):
    """From workers and clients: what happened."""

    events: tuple[AnyEvent, ...]


class Watched(Message, frozen=True, tag=43):
    """To an observer: what happened. `dropped` counts all messages that it was not sent, as it did not take them in."""

    number: int
    events: tuple[AnyEvent, ...]
    dropped: int = 0


class Seen(Message, frozen=True, tag=44):
    """From an observer: it has taken in what it was sent up to this number."""

    number: int
