"""A thread that reports from a busy process over a connection of its own: the events before a kernel that hangs must be
reported too, also to an observer that comes while it hangs."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import zmq

from gt.errors import ProtocolError
from gt.transport.auth import Keys, reach
from gt.transport.events import OFF, Listen
from gt.transport.messages import decode, encode
from gt.transport.sockets import open_socket
from gt.transport.wake import Waker

INTERVALS = (0.5, 0.5, 0.2, 0.1, 0.1)  # seconds between reports, by their detail (events.OFF to EXACT)


class Reporter:
    """Sends the result of `collect` periodically while it is to report, or while the last Listen on its own connection, a copy
    of the process's, asks for reports. Its connection lives until the end: the dispatcher takes the end of a connection for
    the end of its process."""

    def __init__(self, address: str, keys: Keys, identity: bytes, collect: Callable[[], Iterable[Any]]) -> None:
        self.address, self.keys, self.identity, self.collect = address, keys, identity, collect
        self.wanted = self.asked = self.closed = False
        self.interval, self.waker = INTERVALS[OFF], Waker()
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        """After the process has joined."""
        self.thread = threading.Thread(target=self._run, name="gt-reports", daemon=True)
        self.thread.start()

    def report(self, level: int) -> None:
        """Report at this detail, or, if it is OFF, only while asked."""
        self.wanted, self.interval = level > OFF, INTERVALS[level]
        self.waker.wake()

    def _run(self) -> None:
        socket = open_socket(zmq.DEALER, self.identity)
        socket.set_hwm(1 << 10)  # reports are dropped if the receiver is slow
        reach(socket, self.address, self.keys)
        socket.send(b"")  # identifies the connection
        poller, due = zmq.Poller(), 0.0
        poller.register(socket, zmq.POLLIN)
        poller.register(self.waker.fd, zmq.POLLIN)
        try:
            while not self.closed:
                on = self.wanted or self.asked
                ready = dict(poller.poll(max(0, math.ceil((due - time.monotonic()) * 1000)) if on else None))
                if self.waker.fd in ready:
                    self.waker.clear()
                if socket in ready:
                    self._receive(socket.recv())
                if on and time.monotonic() >= due:
                    due = time.monotonic() + self.interval
                    for message in self.collect():
                        with contextlib.suppress(zmq.Again):
                            socket.send(encode(message), zmq.NOBLOCK)
        finally:
            socket.close(0)

    def _receive(self, data: bytes) -> None:
        with contextlib.suppress(ProtocolError):
            message = decode(data)
            if isinstance(message, Listen):
                self.asked = message.level > 0 or any(level for _, level in message.clients)

    def close(self) -> None:
        self.closed = True
        self.waker.wake()
        if self.thread is not None:
            self.thread.join(3)
