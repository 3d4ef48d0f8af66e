"""Flow control: the work of a session in flight, in instructions and in device seconds, and which batches are acknowledged.
Seconds are estimated from the kinds of instructions (gt/ops/estimate.py) and corrected by the workers' measurements."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import repeat
from typing import Any

from gt.client.replies import Reply
from gt.ops.estimate import estimated_seconds
from gt.ops.table import Kind
from gt.program.code import number_of
from gt.program.wire import TraceDef
from gt.transport.messages import KindDef

WINDOW = 1 << 14  # most instructions in flight
SECONDS = 1.0  # most device seconds in flight
BYTES = 16 << 20  # most loaded bytes in flight, or as many as two arrays of the size to load
HEAVY = 1e-4  # estimated seconds from which an instruction's time counts; faster ones count as instructions alone


class Costs:
    """Estimated seconds of a session's instructions, by number of their kind or trace."""

    def __init__(self) -> None:
        self.each: dict[int, float] = {}
        self.heavy: dict[int, float] = {}  # the kinds and traces of HEAVY seconds and more

    def learn(
        self,
        meaning: Mapping[int, Kind],
        kinds: Iterable[KindDef],
        traces: Iterable[TraceDef],
        drops: Iterable[int],
        forget: int,
    ) -> None:
        """The definitions of a batch; `meaning` are the session's kinds by number. Kinds and traces below `forget` get other
        numbers at their next use."""
        if forget:
            self.each = {number: seconds for number, seconds in self.each.items() if number >= forget}
            self.heavy = {number: seconds for number, seconds in self.heavy.items() if number >= forget}
        for kind in kinds:
            self._note(kind.number, estimated_seconds(meaning[kind.number]))
        for trace in traces:
            self._note(trace.number, sum(self.each.get(number_of(ins), 0.0) for ins in trace.body))
        for number in drops:
            self.each.pop(number, None)
            self.heavy.pop(number, None)

    def _note(self, number: int, seconds: float) -> None:
        self.each[number] = seconds
        if seconds >= HEAVY:
            self.heavy[number] = seconds

    def of(self, batch: list[tuple[Any, ...]]) -> float:
        heavy = self.heavy
        return sum(map(heavy.get, map(number_of, batch), repeat(0.0))) if heavy else 0.0


class FlowWindow:
    """Counts of sent and executed instructions. A call of a trace counts as all its instructions."""

    __slots__ = ("sent", "executed", "estimated", "done", "measured", "rate", "asked", "lock", "waiting", "costs", "waits")

    def __init__(self) -> None:
        self.sent = self.executed = 0
        self.estimated = self.done = 0.0  # estimated seconds of the sent, and of the executed instructions
        self.measured = 0.0  # measured device seconds of the executed instructions
        self.rate = 1.0  # measured seconds per estimated second
        # For each batch to be acknowledged: serial, and the instructions and estimated seconds sent until then
        self.asked: list[tuple[int, int, float]] = []
        self.lock = threading.Lock()
        self.waiting: Reply | None = None  # settled by the next acknowledgement
        self.costs = Costs()
        self.waits = 0  # number of waits for room

    def seconds(self) -> float:
        """Estimated device seconds in flight."""
        return (self.estimated - self.done) * self.rate

    def full(self) -> bool:
        return self.sent - self.executed > WINDOW or bool(self.asked) and self.seconds() > SECONDS

    def batch(self, serial: int, sent: int, ack: bool, estimated: float = 0.0) -> bool:
        """A batch is sent, with `sent` instructions in all so far. Returns whether it has to be acknowledged: if requested, or
        if a quarter of the window was sent since the last acknowledged one."""
        self.sent = sent
        self.estimated += estimated
        _, last, then = self.asked[-1] if self.asked else (0, self.executed, self.done)
        ack = ack or sent - last >= WINDOW // 4 or (self.estimated - then) * self.rate >= SECONDS / 4
        if ack:
            self.asked.append((serial, sent, self.estimated))
        return ack

    def acknowledged(self, serial: int, measured: float = 0.0) -> Reply | None:
        """All batches up to this one are executed, in `seconds` of device time since the session began. Returns the reply of a
        thread that waits for room, if any."""
        with self.lock:
            before = self.done
            while self.asked and self.asked[0][0] <= serial:
                _, self.executed, self.done = self.asked.pop(0)
            if measured > self.measured and self.done - before > HEAVY:
                rate = (measured - self.measured) / (self.done - before)
                self.rate = min(1e3, max(1e-4, (self.rate + rate) / 2))
            self.measured = max(measured, self.measured)
            waiting, self.waiting = self.waiting, None
        return waiting

    def end(self) -> None:
        """End the wait for acknowledgements: none will come."""
        with self.lock:
            waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting.settle()


def wait_for_room(session: Any, crowded: Callable[[], bool]) -> None:
    """Wait for acknowledgements until the flow-control window has room."""
    window = session.window
    while crowded() and not session.lost and not session.closed:
        window.waits += 1
        reply = session.reply()
        with window.lock:
            if not crowded():
                session.replies.pop(reply.ticket, None)
                break
            window.waiting = reply
        session.link.wait(reply, None if session.workers else 1.0)
        session.replies.pop(reply.ticket, None)
    if session.buffered():
        session.link.wake()  # the timer is not set again while a thread waits


def wait_for_bytes(session: Any, nbytes: int) -> None:
    """Wait until this many more bytes may be in flight."""

    def crowded() -> bool:
        under_way = session.link.outstanding() + (sum(map(len, session.uploads.values())) if session.uploads else 0)
        return bool(under_way + nbytes > max(BYTES, 2 * nbytes))

    if crowded():
        session.flush(wait=False)
        wait_for_room(session, lambda: bool(session.window.asked) and crowded())
