"""A client's session whose link keeps the messages that it sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gt.client.replies import Reply
from gt.client.session import Session
from gt.transport.messages import Batch, Mail, Value


class Wire:
    """A link that keeps the sent messages. `answer` plays the other side while the session waits."""

    can_start = False

    def __init__(self, shares: bool = True) -> None:
        self.shares, self.sent, self.posted, self.wakes, self.waits = shares, [], [], 0, 0
        self.session: Session
        self.answer: Callable[[Reply], Any] = lambda reply: None
        self.placed: list[bytes] = []
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def send_to(self, worker: int, message: Any, frames: tuple = ()) -> None:
        self.posted.append((worker, message, frames))

    def wake(self) -> None:
        self.wakes += 1

    def let_sleep(self) -> None:
        pass

    def start_run(self, message: Any) -> bool:
        return False

    def wait(self, reply: Reply, timeout: float | None) -> None:
        self.waits += 1
        self.answer(reply)

    def put(self, data: np.ndarray) -> tuple[int, int, int]:
        self.placed.append(data.tobytes())
        return (len(self.placed), 0, 0)

    def outstanding(self) -> int:
        return 0

    def sealed(self, serial: int) -> bool:
        return False

    def executed(self, serial: int) -> None:
        pass

    def view(self, place: tuple[int, int, int], nbytes: int, worker: str) -> np.ndarray:
        raise AssertionError("nothing is lent here")

    def close(self) -> None:
        pass

    @property
    def code(self) -> list[tuple]:
        return [ins for m in self.sent if isinstance(m, Batch) for ins in m.code]


def gives(wire: Wire, value: np.ndarray) -> None:
    """Have the next reads answered with this value."""

    def answer(reply: Reply) -> None:
        ticket, _, spec = wire.sent[-1].gets[0]
        wire.session.handle(Mail("w0", Value(ticket, spec, (0,) * value.ndim, value.shape, 1), (value.tobytes(),)))

    wire.answer = answer
