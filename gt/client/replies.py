"""Replies that a session's readers wait for: by ticket, values in pieces, and reads that are repeated."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from gt.spec import Spec
from gt.transport.messages import Value


class Reply:
    """The reply that a reader waits for."""

    __slots__ = ("ticket", "wanted", "done", "value", "error", "pieces", "_lock")

    def __init__(self, ticket: int) -> None:
        self.ticket, self.done = ticket, False
        self.wanted: tuple[int, tuple[int, ...]] | None = None  # the id and spec of a tensor that is read
        self.value: Any = None
        self.error: BaseException | None = None
        self.pieces = 0
        self._lock = threading.Lock()
        self._lock.acquire()

    def settle(self, value: Any = None, error: BaseException | None = None) -> None:
        if not self.done:
            self.value, self.error, self.done = value, error, True
            self._lock.release()

    def check(self) -> None:
        """Raise what went wrong. The error's frames hold this reply, so it lets go of the error, or all those frames hold would
        wait for the garbage collector."""
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it came in time. Ctrl-C interrupts."""
        if self._lock.acquire(timeout=-1 if timeout is None else timeout):
            self._lock.release()
        return self.done

    def add(self, value: Value, spec: Spec, data: np.ndarray) -> None:
        """Settle with the value's bytes, once all its pieces are there."""
        if value.pieces == 1:
            self.settle(data)
            return
        item = spec.dtype.size
        if self.value is None:
            self.value = np.empty((*value.whole, item), np.uint8)
        box = tuple(slice(s, s + d) for s, d in zip(value.start, spec.shape))
        self.value[box] = data.reshape(*spec.shape, item)
        self.pieces += 1
        if self.pieces == value.pieces:
            self.settle(self.value.reshape(-1))


class Replies(dict[int, Reply]):
    """The replies that are waited for, by ticket."""

    def __init__(self) -> None:
        self.next_ticket = count(1).__next__

    def new(self) -> Reply:
        reply = Reply(self.next_ticket())
        self[reply.ticket] = reply
        return reply

    def awaited(self) -> bool:
        """Whether anyone waits for a reply that has not come yet."""
        return len(self) > 1 and any(not reply.done for reply in list(self.values()))

    def settle(self, ticket: int, value: Any = None, error: BaseException | None = None) -> None:
        """Settle the reply of a ticket; that of a reader that was interrupted is gone."""
        reply = self.get(ticket)
        if reply is not None:
            reply.settle(value, error)

    def end(self, error: Callable[[], BaseException]) -> None:
        """No reply will come any more: every waiting reader gets an error of its own."""
        for reply in list(self.values()):
            reply.settle(error=error())

    def renew(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """Give unanswered reads new tickets, so that late pieces from a lost worker do not count. Gives the reads to repeat."""
        gets = []
        for reply in list(self.values()):
            if reply.wanted is not None and not reply.done:
                self.pop(reply.ticket, None)
                reply.ticket, reply.value, reply.pieces = self.next_ticket(), None, 0
                self[reply.ticket] = reply
                gets.append((reply.ticket, *reply.wanted))
        return gets


def as_numpy(data: np.ndarray, spec: Spec) -> np.ndarray:
    """Received bytes as an array; bfloat16, which NumPy lacks, widened to float32."""
    if spec.dtype.name == "bfloat16":
        wide = data.view(np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(spec.shape)
    if not data.flags.writeable:
        data = data.copy()
    return data.view(np.ndarray).view(spec.dtype.name).reshape(spec.shape)
