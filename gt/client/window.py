"""Flow control: how much of a session's work is in flight, in instructions and in device seconds, and when the dispatcher is
asked to acknowledge a batch. Seconds are guessed from the sizes of operands and corrected by what workers have measured."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from itertools import repeat
from typing import Any

from gt.client.replies import Reply
from gt.ops import TABLE
from gt.ops.work import guess
from gt.program.code import number_of
from gt.program.wire import TraceDef
from gt.transport.messages import KindDef

WINDOW = 1 << 14  # instructions that may be in flight
SECONDS = 1.0  # device seconds that may be in flight
HEAVY = 1e-4  # seconds from which an instruction is counted by its own guess; others count as instructions alone


class Costs:
    """Guesses of how long the instructions of a session take, by number of their kind or trace."""

    def __init__(self) -> None:
        self.each: dict[int, float] = {}
        self.heavy: dict[int, float] = {}  # of those, what counts by itself

    def learn(self, kinds: Iterable[KindDef], traces: Iterable[TraceDef], drops: Iterable[int]) -> None:
        for kind in kinds:
            self._note(kind.number, guess(TABLE[kind.op], kind.ins))
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
    """Instructions sent and known to be executed. A call of a trace counts for all instructions it stands for."""

    __slots__ = ("sent", "executed", "guessed", "done", "measured", "rate", "asked", "lock", "waiting", "costs", "waits")

    def __init__(self) -> None:
        self.sent = self.executed = 0
        self.guessed = self.done = 0.0  # guessed seconds of the instructions sent, and of those executed
        self.measured = 0.0  # device seconds of the executed instructions, as workers measured
        self.rate = 1.0  # measured seconds for a guessed one
        # Of batches that are to be acknowledged: serial, and the instructions and guessed seconds that were sent by then
        self.asked: list[tuple[int, int, float]] = []
        self.lock = threading.Lock()
        self.waiting: Reply | None = None  # settled by the next acknowledgement
        self.costs = Costs()
        self.waits = 0  # how often the client waited for room

    def seconds(self) -> float:
        """Device seconds in flight, as they are guessed."""
        return (self.guessed - self.done) * self.rate

    def full(self) -> bool:
        return self.sent - self.executed > WINDOW or bool(self.asked) and self.seconds() > SECONDS

    def batch(self, serial: int, sent: int, ack: bool, guessed: float = 0.0) -> bool:
        """A batch goes out, by which so many instructions are sent in all. Whether it is to be acknowledged: if that is wanted
        anyway, or a quarter of the window went out since the last that is."""
        self.sent = sent
        self.guessed += guessed
        _, last, then = self.asked[-1] if self.asked else (0, self.executed, self.done)
        ack = ack or sent - last >= WINDOW // 4 or (self.guessed - then) * self.rate >= SECONDS / 4
        if ack:
            self.asked.append((serial, sent, self.guessed))
        return ack

    def acknowledged(self, serial: int, measured: float = 0.0) -> Reply | None:
        """All batches up to this one are executed, in so many device seconds since the session began. The reply of who waits
        for room, if anyone does."""
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
        """No acknowledgement will come any more."""
        with self.lock:
            waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting.settle()
