"""A client's events for observers: waits for values with their lines, uploads, the lines of results, and the tracer's
statistics. Without observers nothing is recorded."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np

from gt.client.native import last_id
from gt.client.user_lines import RING, short_line, user_origin
from gt.program.code import first_kind, first_result
from gt.transport.events import EVERY, OFF, Lines, Loaded, Subscribe, Traced, Waited, Watched, WorkerReport
from gt.transport.messages import VERSION, Batch
from gt.transport.time_stamps import time_stamps

SAMPLE_INTERVAL, REPORT_INTERVAL = 0.5, 0.2  # seconds between reports: of a sample, of all events
MAX_HELD = 1 << 10  # most events, and batches, kept for the next report
MAX_LINES = 1 << 16  # results whose lines one event has
LOOK = RING // 4  # instructions after which their lines are looked up: the ring has room for results of many more
SOME = 4  # batches of which one is noted, where an observer asked for a sample
FIRST_KIND = first_kind()
SAMPLED = 1 << 15  # bytes at either end of an array, and as many between, in its fingerprint


class ClientReports:
    """The unsent events of one session. `asked_code` and `asked_at` are its ring of lines."""

    def __init__(self, level: int, clock: Callable[[], float], session: Any) -> None:
        self.level, self.clock, self.session = level, clock, session
        self.events: list[Any] = []
        self.due = 0.0
        self.reads = time_stamps(clock)  # begin, the user's line and bytes of a read, and when it ended
        self.note_read = self.reads.add
        self.waits: dict[str, tuple[float, float, int, int]] = {}  # at SAMPLED, by line: first, seconds, bytes and count
        self.ids: list[int] = []  # of results, and for each its line's number in `table`
        self.lines: list[int] = []
        self.table: dict[str, int] = {}
        self.sent: list[tuple[int, float]] = []  # serials and times of the batches of these results
        self.batches = time_stamps(clock)  # the last batches and their times, whose lines are not looked up yet
        self.note_batch = self.batches.add
        self.look_at = 0  # count of instructions at which they are
        self.mask = 0 if level >= EVERY else SOME - 1  # of the serials of batches that are not noted
        self.known: dict[tuple[int, int], tuple[str, Any]] = {}  # by the code's id (hashing it is slow) and offset
        self.line_numbers: dict[tuple[int, int], int] = {}  # numbers in `table`, by the same
        self.traced: Any = None

    def waited(self, began: float, nbytes: int) -> None:
        """A reader has received its value, which it waits for no longer: all else is left to the next report."""
        now = self.note_read((began, user_origin(), nbytes))
        if now >= self.due or len(self.reads) >= MAX_HELD // 2:
            with self.session.lock:
                self._take_reads()
                if now >= self.due or len(self.events) >= MAX_HELD // 2:
                    self.send(now)

    def loaded(self, began: float, data: np.ndarray) -> None:
        """Bytes were uploaded."""
        self._add(Loaded("", began, self.clock() - began, self._line(*user_origin()), data.nbytes, digest(data)))

    def send_batch(self, batch: Batch) -> None:
        """Send a batch, and note it. It is called once in thousands of the client's calls, so its time is that of the functions
        which it calls: the lines of its results are looked up with those of many others, before their places in the ring are
        used again."""
        if self.mask:
            at = self.clock()
            self.session.link.send(batch)
        else:
            at = self.note_batch(batch)
            self.session.link.send(batch)
            if self.session.written >= self.look_at:
                self._look_up()
        if at >= self.due or len(self.events) >= MAX_HELD // 2:
            self.send(at)

    def _look_up(self) -> None:
        """Add the lines of the noted batches' results."""
        session, (batches, starts) = self.session, self.batches.take(len(self.batches))
        asked, offsets, last = session.asked_code, session.asked_at, last_id(session)
        line_numbers, ids, lines = self.line_numbers, self.ids, self.lines
        self.look_at = session.written + LOOK
        self.sent += zip([batch.serial for batch in batches], array("d", starts))
        for ins in chain.from_iterable([batch.code for batch in batches]):
            if ins[0] < FIRST_KIND or type(result := first_result(ins)) is not int or last - result >= RING:
                continue
            slot = result % RING
            if (code := asked[slot]) is not None:
                number = line_numbers.get((id(code), offsets[slot]))
                ids.append(result)
                lines.append(number if number is not None else self._line_number(code, offsets[slot]))
        if len(ids) > MAX_LINES or len(self.table) > MAX_HELD or len(self.sent) >= MAX_HELD:
            self._flush_lines()

    def _line_number(self, code: Any, at: int) -> int:
        """The number of a line in `table`."""
        line = self._line(code, at)
        number = self.line_numbers[id(code), at] = self.table.setdefault(line, len(self.table))
        return number

    def _flush_lines(self) -> None:
        if len(self.batches):
            self._look_up()
        if self.sent and max(self.lines, default=0) < 1 << 16:
            columns = array("q", self.ids).tobytes(), array("H", self.lines).tobytes()
            self._add(Lines("", *columns, tuple(self.table), tuple(self.sent)))
        self.ids, self.lines, self.table, self.sent, self.line_numbers = [], [], {}, [], {}

    def _take_reads(self) -> None:
        """Add the waits for values, at SAMPLED those of a line together."""
        reads, ends = self.reads.take(len(self.reads))
        for (began, (code, at), nbytes), end in zip(reads, array("d", ends)):
            line, seconds = self._line(code, at), end - began
            if self.level < EVERY:
                first, before, size, count = self.waits.get(line, (began, 0.0, 0, 0))
                self.waits[line] = first, before + seconds, size + nbytes, count + 1
            else:
                self._add(Waited("", began, seconds, line, nbytes))

    def send(self, now: float) -> None:
        """Send the events since the last report."""
        self.due = now + (REPORT_INTERVAL if self.level >= EVERY else SAMPLE_INTERVAL)
        self._flush_lines()
        self._take_reads()
        waits, self.waits = self.waits, {}
        for line, (began, seconds, nbytes, count) in waits.items():
            self._add(Waited("", began, seconds, line, nbytes, count))
        session = self.session
        if session.tracer:
            tracer = session.tracer
            counts = (tracer.found, tracer.hits, tracer.saved, dict(tracer.misses))
            if counts != self.traced:
                self.traced = counts
                lines = {why: self._line(*asked) if asked else "" for why, asked in tracer.lines.items()}
                misses = tuple((why, n, lines.get(why, "")) for why, n in tracer.misses.items())
                self._add(Traced("", now, tracer.found, tracer.hits, tracer.saved, misses))
        events, self.events = tuple(self.events), []
        if events:
            session.link.tell(WorkerReport(events))

    def end(self) -> None:
        """Send the last events of a session, while it has a connection."""
        if not self.session.lost:
            with self.session.lock:
                self.send(self.clock())

    def _add(self, event: Any) -> None:
        if len(self.events) < MAX_HELD:
            self.events.append(event)

    def _line(self, code: Any, at: int) -> str:
        known = self.known.get((id(code), at))
        if known is None:
            if len(self.known) > MAX_HELD:
                self.known.clear()
                self.line_numbers.clear()  # an id of a code object is another's once it is not known any more
            text = short_line((code, at))
            known = self.known[id(code), at] = text if text.isprintable() else ascii(text), code
        return known[0]


Observe = Callable[[Watched], None]


def subscribe(session: Any, level: int, observe: Observe) -> None:
    """Call `observe` with a client's own events, on the receiving thread."""
    with session.lock:
        session.observers[observe] = level
        _tell(session)


def unsubscribe(session: Any, observe: Observe) -> None:
    with session.lock:
        session.observers.pop(observe, None)
        _tell(session)


def _tell(session: Any) -> None:
    """Subscribe at the highest level of the observers."""
    session.link.tell(Subscribe(VERSION, max(session.observers.values(), default=OFF)))


def take(session: Any, watched: Watched) -> None:
    """Pass received events to the observers."""
    session.link.seen(watched.number)
    for observe in tuple(session.observers):
        observe(watched)


def digest(data: np.ndarray) -> str:
    """A fingerprint of bytes: of their ends, and a sample between."""
    flat = data.reshape(-1)
    if flat.nbytes <= 3 * SAMPLED:
        return f"{flat.nbytes}-{zlib.crc32(flat.data):08x}"
    step = flat.nbytes // SAMPLED
    between = np.ascontiguousarray(flat[::step])
    crc = zlib.crc32(flat[-SAMPLED:].data, zlib.crc32(flat[:SAMPLED].data, zlib.crc32(between.data)))
    return f"{flat.nbytes}-{crc:08x}"
