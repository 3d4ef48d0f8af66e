"""Flow control: how many of a session's instructions are in flight, and when the dispatcher is asked to acknowledge a batch."""

from __future__ import annotations

import threading

from gt.client.replies import Reply

WINDOW = 1 << 14  # instructions that may be in flight


class Window:
    """Instructions sent and known to be executed. A call of a trace counts for all instructions it stands for."""

    __slots__ = ("sent", "executed", "asked", "lock", "waiting")

    def __init__(self) -> None:
        self.sent = self.executed = 0
        self.asked: list[tuple[int, int]] = []  # (serial, instructions sent by then) of batches that are to be acknowledged
        self.lock = threading.Lock()
        self.waiting: Reply | None = None  # settled by the next acknowledgement

    def full(self) -> bool:
        return self.sent - self.executed > WINDOW

    def batch(self, serial: int, sent: int, ack: bool) -> bool:
        """A batch goes out, by which so many instructions are sent in all. Whether it is to be acknowledged: if that is wanted
        anyway, or a quarter of the window went out since the last that is."""
        self.sent = sent
        ack = ack or sent - (self.asked[-1][1] if self.asked else self.executed) >= WINDOW // 4
        if ack:
            self.asked.append((serial, sent))
        return ack

    def acknowledged(self, serial: int) -> Reply | None:
        """All batches up to this one are executed. The reply of who waits for room, if anyone does."""
        with self.lock:
            while self.asked and self.asked[0][0] <= serial:
                self.executed = self.asked.pop(0)[1]
            waiting, self.waiting = self.waiting, None
        return waiting

    def end(self) -> None:
        """No acknowledgement will come any more."""
        with self.lock:
            waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting.settle()
