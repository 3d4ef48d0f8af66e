"""A client's events for observers: waits for values with their lines, uploads, the lines of results, and the tracer's
statistics. Without observers nothing is recorded."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from gt.client.user_lines import RING, origin, short_line
from gt.program.code import first_result, is_client_kind
from gt.transport.events import EVERY, OFF, Lines, Loaded, Subscribe, Traced, Waited, Watched, WorkerReport
from gt.transport.messages import VERSION, Batch

REPORT_INTERVAL = 0.2  # seconds between reports
MAX_HELD = 1 << 10  # most events kept for the next report
SAMPLED = 1 << 15  # bytes at either end of an array, and as many between, in its fingerprint


class ClientReports:
    """The unsent events of one session. `asked_code` and `asked_at` are its ring of lines."""

    def __init__(self, level: int, clock: Callable[[], float], session: Any) -> None:
        self.level, self.clock, self.session = level, clock, session
        self.events: list[Any] = []
        self.due = 0.0
        self.known: dict[tuple[Any, int], str] = {}  # lines by code and offset
        self.traced: Any = None

    def waited(self, began: float, nbytes: int) -> None:
        """A reader has received its value."""
        now = self.clock()
        with self.session.lock:
            self._add(Waited("", began, now - began, self._line(*origin(1)), nbytes))
            self.send(now)

    def loaded(self, began: float, data: np.ndarray) -> None:
        """Bytes were uploaded."""
        self._add(Loaded("", began, self.clock() - began, self._line(*origin(1)), data.nbytes, digest(data)))

    def send_batch(self, batch: Batch) -> None:
        """Send a batch, and add the lines of its instructions."""
        at = self.clock()
        self.session.link.send(batch)
        if self.level < EVERY:
            return
        asked, offsets = self.session.asked_code, self.session.asked_at
        ids: list[int] = []
        lines: list[int] = []
        table: dict[str, int] = {}
        for ins in batch.code:
            if is_client_kind(ins[0]) and type(id := first_result(ins)) is int and asked[id % RING] is not None:
                ids.append(id)
                line = self._line(asked[id % RING], offsets[id % RING])
                lines.append(table.setdefault(line, len(table)))
        if len(table) < 1 << 16:
            packed = array("q", ids).tobytes(), array("H", lines).tobytes()
            self._add(Lines("", *packed, tuple(table), at, batch.serial))

    def send(self, now: float, late: bool = False) -> None:
        """Send the events, unless the last report was a moment ago."""
        if now < self.due and not late and len(self.events) < MAX_HELD // 2:
            return
        self.due = now + REPORT_INTERVAL
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

    def _add(self, event: Any) -> None:
        if len(self.events) < MAX_HELD:
            self.events.append(event)

    def _line(self, code: Any, at: int) -> str:
        line = self.known.get((code, at))
        if line is None:
            if len(self.known) > MAX_HELD:
                self.known.clear()
            text = short_line((code, at))
            line = self.known[code, at] = text if text.isprintable() else ascii(text)
        return line


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
