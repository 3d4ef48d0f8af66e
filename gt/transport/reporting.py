"""A thread that reports from a busy process over a connection of its own: the events before a kernel that hangs must be
reported too."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from typing import Any

import zmq

from gt.transport.auth import Keys, reach
from gt.transport.messages import encode
from gt.transport.sockets import open_socket

EVERY, SELDOM = 0.1, 0.2  # seconds between reports: of every instruction, of a sample


class Reporter:
    """Sends the result of `collect` periodically while it is on. The thread and its connection are created at the first use and
    live until the end: the dispatcher takes the end of a connection for the end of its process."""

    def __init__(self, address: str, keys: Keys, identity: bytes, collect: Callable[[], Iterable[Any]]) -> None:
        self.address, self.keys, self.identity, self.collect = address, keys, identity, collect
        self.wanted, self.closed = threading.Event(), threading.Event()
        self.thread: threading.Thread | None = None
        self.interval = EVERY

    def on(self, wanted: bool, interval: float = EVERY) -> None:
        self.interval = interval
        if wanted and self.thread is None:
            self.thread = threading.Thread(target=self._run, name="gt-reports", daemon=True)
            self.thread.start()
        self.wanted.set() if wanted else self.wanted.clear()

    def _run(self) -> None:
        socket = open_socket(zmq.DEALER, self.identity)
        socket.set_hwm(1 << 10)  # reports are dropped if the receiver is slow
        reach(socket, self.address, self.keys)
        socket.send(b"")  # identifies the connection
        try:
            while not self.closed.wait(self.interval):
                if self.wanted.wait(1.0):
                    for message in self.collect():
                        with contextlib.suppress(zmq.Again):
                            socket.send(encode(message), zmq.NOBLOCK)
        finally:
            socket.close(0)

    def close(self) -> None:
        self.closed.set()
        if self.thread is not None:
            self.thread.join(3)
