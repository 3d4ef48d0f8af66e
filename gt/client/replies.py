"""Pending replies of a session's readers: by ticket, values in pieces, and repeated reads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from struct import Struct
from typing import Any

import numpy as np

from gt.ops.table import spec_in
from gt.spec import Spec
from gt.transport.messages import SmallValues, Value

# By dtype, the function that takes an element's bytes apart; complex numbers and bfloat16 are NumPy's work.
FORMS = {
    name: Struct(f"={form}").unpack
    for name, form in {
        "bool": "?", "uint8": "B", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "float16": "e", "float32": "f",
        "float64": "d",
    }.items()
}  # fmt: skip


class Reply:
    """A reader's pending reply."""

    __slots__ = ("ticket", "wanted", "done", "value", "error", "pieces", "_lock")

    def __init__(self, ticket: int) -> None:
        self.ticket, self.done = ticket, False
        self.wanted: tuple[int, tuple[int, ...]] | None = None  # id and spec of the tensor to read
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
        """Raise the error. Its frames refer to this reply, so the reply drops the error, or the frames' objects would wait for
        the garbage collector."""
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the reply. Returns whether it came in time. KeyboardInterrupt interrupts it."""
        if self._lock.acquire(timeout=-1 if timeout is None else timeout):
            self._lock.release()
        return self.done

    def add(self, value: Value, data: Any) -> None:
        """Settle with the value's bytes, once all its pieces have arrived."""
        if value.pieces == 1:
            self.settle(data)
            return
        spec = spec_in(value.spec)
        assert isinstance(spec, Spec)
        item = spec.dtype.size
        if self.value is None:
            self.value = np.empty((*value.whole, item), np.uint8)
        box = tuple(slice(s, s + d) for s, d in zip(value.start, spec.shape))
        self.value[box] = np.frombuffer(data, np.uint8).reshape(*spec.shape, item)
        self.pieces += 1
        if self.pieces == value.pieces:
            self.settle(self.value.reshape(-1))


class Replies(dict[int, Reply]):
    """The pending replies, by ticket; in `ahead` the replies without a reader yet."""

    def __init__(self) -> None:
        self.next_ticket = count(1).__next__
        self.ahead: dict[int, Reply] = {}
        self.wakes = False  # whether the next reader that leaves sets the link's timer

    def new(self) -> Reply:
        reply = Reply(self.next_ticket())
        self[reply.ticket] = reply
        return reply

    def ahead_of(self, id: int, spec: tuple[int, ...]) -> Reply:
        """The reply to a read that nobody waits for yet."""
        reply = Reply(self.next_ticket())
        reply.wanted = (id, spec)
        self.ahead[reply.ticket] = reply
        return reply

    def promote(self, reply: Reply) -> None:
        """A reader waits for it."""
        self[reply.ticket] = reply
        self.ahead.pop(reply.ticket, None)

    def awaited(self) -> bool:
        """Whether any reply is pending."""
        return len(self) > 1 and any(not reply.done for reply in list(self.values()))

    def reader_wakes(self) -> bool:
        """Have a reader that waits set the link's timer when it leaves: nothing is due before. Returns whether there is one."""
        self.wakes = True  # first: a reader looks at it when its reply is done
        self.wakes = any(not reply.done for reply in list(self.values()))
        return self.wakes

    def take(self, value: Value, data: Any) -> None:
        """The bytes of a value, or of a piece of it, unless its reader was interrupted."""
        reply = self.get(value.ticket) or self.ahead.get(value.ticket)
        if reply is not None:
            reply.add(value, data)

    def take_small(self, message: Value | SmallValues) -> bool:
        """Take values whose bytes are in their message. Returns whether they are."""
        if isinstance(message, SmallValues):
            for value in message.values:
                self.take(value, value.data)
            return True
        if message.place is None:
            self.take(message, message.data)
        return message.place is None

    def settle(self, ticket: int, value: Any = None, error: BaseException | None = None) -> None:
        """Settle the reply of a ticket, unless its reader was interrupted."""
        reply = self.get(ticket) or self.ahead.get(ticket)
        if reply is not None:
            reply.settle(value, error)

    def end(self, error: Callable[[], BaseException]) -> None:
        """End all pending replies, each with a new error."""
        for reply in list(self.values()):
            reply.settle(error=error())

    def renew(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """Give pending reads new tickets, so that late pieces of a lost worker are ignored. Returns the reads to repeat."""
        gets = []
        for reply in list(self.values()):
            if reply.wanted is not None and not reply.done:
                self.pop(reply.ticket, None)
                reply.ticket, reply.value, reply.pieces = self.next_ticket(), None, 0
                self[reply.ticket] = reply
                gets.append((reply.ticket, *reply.wanted))
        return gets


def as_numpy(data: Any, spec: Spec) -> np.ndarray:
    """Received bytes as an array; bfloat16, which NumPy lacks, as float32."""
    if spec.dtype.name == "bfloat16":
        wide = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(spec.shape)
    if not isinstance(data, np.ndarray):  # bytes of a message, which nobody may write
        return np.frombuffer(bytearray(data), spec.dtype.name).reshape(spec.shape)
    if not data.flags.writeable:
        data = data.copy()
    return data.view(np.ndarray).view(spec.dtype.name).reshape(spec.shape)


def as_number(data: Any, spec: Spec) -> Any:
    """Received bytes of one element as a Python number."""
    form = FORMS.get(spec.dtype.name)
    return as_numpy(data, spec).item() if form is None else form(data)[0]
