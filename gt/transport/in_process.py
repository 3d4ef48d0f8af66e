"""A whole cluster in one thread: every message is encoded and decoded as on a wire, and delivered in order. For tests, and for
programs without other processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from gt.transport.events import Seen
from gt.transport.lent_segments import LentSegments
from gt.transport.messages import Mail, decode, encode


class Hub:
    """Delivers mail to the parties of a cluster until none is left. A party is a function from mail to mail."""

    def __init__(self) -> None:
        self.parties: dict[str, Callable[[Mail], list[Mail]]] = {}
        self.queue: deque[tuple[str, str, bytes, tuple[Any, ...]]] = deque()
        self.frames_seen: dict[str, int] = {}  # bytes of frames that each party received

    def post(self, sender: str, mail: Mail) -> None:
        self.post_encoded(sender, mail.peer, encode(mail.message), mail.frames)

    def post_encoded(self, sender: str, to: str, data: bytes, frames: tuple[Any, ...] = ()) -> None:
        self.queue.append((sender, to, data, tuple([bytes(f) for f in frames]) if frames else ()))

    def deliver(self) -> None:
        while self.queue:
            sender, to, data, frames = self.queue.popleft()
            party = self.parties.get(to)
            if party is None:
                continue
            self.frames_seen[to] = self.frames_seen.get(to, 0) + (sum(map(len, frames)) if frames else 0)
            for answer in party(Mail(sender, decode(data), frames)):
                self.post(to, answer)


class MemoryLink:
    """A session's link to a hub. With `shares`, loads are in a table that workers read; without, they are uploaded."""

    starts = True  # whether deferred batches can be started

    def __init__(
        self, hub: Hub, name: str, dispatcher: str, workers: list[str], shares: bool, clock: Callable[[], float]
    ) -> None:
        self.hub, self.name, self.dispatcher, self.workers, self.shares = hub, name, dispatcher, workers, shares
        self.clock = clock
        self.segments: dict[int, np.ndarray] = {}
        self.names = count(1)
        self.lent: LentSegments[int] = LentSegments()
        self.session: Any = None

    def send(self, message: Any) -> None:
        self.hub.post(self.name, Mail(self.dispatcher, message))

    tell = send

    @property
    def can_start(self) -> bool:
        return self.starts and self.shares and len(self.workers) == 1

    def start_run(self, message: Any) -> bool:
        self.send_to(0, message)
        return True

    def seen(self, number: int) -> None:
        self.send(Seen(number))

    def send_to(self, worker: int, message: Any, frames: tuple[Any, ...] = ()) -> None:
        self.hub.post(self.name, Mail(self.workers[worker], message, frames))

    def wake(self) -> None:
        pass

    def let_sleep(self) -> None:
        pass

    def wait(self, reply: Any, timeout: float | None) -> None:
        self.hub.deliver()
        if not reply.done:
            raise RuntimeError("no reply to a read, and no message is left to deliver")

    def put(self, data: np.ndarray) -> tuple[int, int, int]:
        name = next(self.names)
        self.lent.filled.append(name)
        self.segments[name] = data.copy()
        return (name, 0, data.nbytes)

    def view(self, place: tuple[int, int, int], nbytes: int, worker: str) -> np.ndarray:
        raise RuntimeError("workers of the in-process transport lend no memory")

    def outstanding(self) -> int:
        return 0

    def sealed(self, serial: int) -> bool:
        return self.lent.sealed(serial)

    def executed(self, serial: int) -> None:
        for name in self.lent.executed(serial):
            del self.segments[name]

    def close(self) -> None:
        pass
