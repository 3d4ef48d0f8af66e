"""What a client tells those who watch it: how long it waited for values and where, what it sent, which lines asked for
what, and what its tracer has come to. While nobody listens there is none of this."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np

from gt.client.user_lines import RING, origin, short_line
from gt.program.code import is_client_kind
from gt.transport.events import EVERY, OFF, Lines, Loaded, Subscribe, Traced, Waited, Watched, WorkerReport
from gt.transport.messages import VERSION

OFTEN = 0.2  # seconds between reports
HELD = 1 << 10  # events kept for the next
SAMPLED = 1 << 15  # bytes at either end of an array, and as many between, by which it is known again


class ClientReports:
    """Events of one session, until they are sent. `asked_code` and `asked_at` are its ring of lines."""

    def __init__(self, level: int, clock: Callable[[], float], session: Any) -> None:
        self.level, self.clock, self.session = level, clock, session
        self.events: list[Any] = []
        self.due = 0.0
        self.known: dict[tuple[Any, int], str] = {}  # lines by code and offset
        self.traced: Any = None

    def waited(self, began: float, nbytes: int) -> None:
        """A reader has its value."""
        now = self.clock()
        with self.session.lock:
            self._add(Waited("", began, now - began, self._line(*origin(1)), nbytes))
            self.send(now)

    def loaded(self, began: float, data: np.ndarray) -> None:
        """Bytes were copied to where workers find them."""
        self._add(Loaded("", began, self.clock() - began, self._line(*origin(1)), data.nbytes, digest(data)))

    def batch(self, serial: int, code: list[tuple]) -> None:
        """A batch goes out: the lines that its instructions come from."""
        if self.level < EVERY:
            return
        asked, at = self.session.asked_code, self.session.asked_at
        ids: list[int] = []
        lines: list[int] = []
        table: dict[str, int] = {}
        for ins in code:
            if is_client_kind(ins[0]) and type(id := ins[1]) is int and asked[id % RING] is not None:
                ids.append(id)
                line = self._line(asked[id % RING], at[id % RING])
                lines.append(table.setdefault(line, len(table)))
        if len(table) < 1 << 16:
            packed = array("q", ids).tobytes(), array("H", lines).tobytes()
            self._add(Lines("", *packed, tuple(table), self.clock(), serial))

    def send(self, now: float, late: bool = False) -> None:
        """Send what there is, unless that was done a moment ago."""
        if now < self.due and not late and len(self.events) < HELD // 2:
            return
        self.due = now + OFTEN
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
        if len(self.events) < HELD:
            self.events.append(event)

    def _line(self, code: Any, at: int) -> str:
        line = self.known.get((code, at))
        if line is None:
            if len(self.known) > HELD:
                self.known.clear()
            text = short_line((code, at))
            line = self.known[code, at] = text if text.isprintable() else ascii(text)
        return line


Observe = Callable[[Watched], None]


def subscribe(session: Any, level: int, observe: Observe) -> None:
    """Have a client's own events given to `observe`, from whichever thread receives."""
    with session.lock:
        session.observers[observe] = level
        _tell(session)


def unsubscribe(session: Any, observe: Observe) -> None:
    with session.lock:
        session.observers.pop(observe, None)
        _tell(session)


def _tell(session: Any) -> None:
    """Subscribe at the level of the observer that looks most closely."""
    session.link.tell(Subscribe(VERSION, max(session.observers.values(), default=OFF)))


def take(session: Any, watched: Watched) -> None:
    """Events of a client that watches itself have come."""
    session.link.seen(watched.number)
    for observe in tuple(session.observers):
        observe(watched)


def digest(data: np.ndarray) -> str:
    """What bytes are known again by: their ends, and a sample between."""
    flat = data.reshape(-1)
    if flat.nbytes <= 3 * SAMPLED:
        return f"{flat.nbytes}-{zlib.crc32(flat.data):08x}"
    step = flat.nbytes // SAMPLED
    between = np.ascontiguousarray(flat[::step])
    crc = zlib.crc32(flat[-SAMPLED:].data, zlib.crc32(flat[:SAMPLED].data, zlib.crc32(between.data)))
    return f"{flat.nbytes}-{crc:08x}"
