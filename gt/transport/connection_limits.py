"""Connections to a socket that listens: how many there may be, of whom, and for how long before they are let in. libzmq aborts
a process that has no descriptor left for a connection, so that must not come to pass."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import socket as plain
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import zmq

from gt.transport.sockets import Ends

PATIENCE = 10.0  # seconds for a connection to be let in
ENOUGH = 1 << 16  # descriptors
OF_A_CLIENT = 2  # connections to its dispatcher: one that it receives from, one that it sends over
LOCAL = ""  # the address of all Unix connections


def raise_descriptor_limit() -> int:
    """Raise the limit of descriptors as far as this process may, up to what is enough. Gives the limit."""
    try:
        import resource
    except ImportError:
        return 1024
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ENOUGH if soft == resource.RLIM_INFINITY else soft


class ConnectionLimits(Ends):
    """All connections to a socket. Half the descriptors are for them; half of that for one other address, and half for those
    that wait to be let in, of whom one address has no more than half again. Of too many that wait, the one that has
    sent nothing for longest is cut off: a GT process sends its greeting at once."""

    def __init__(
        self, socket: zmq.Socket[Any], limit: int, patience: float = PATIENCE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(socket, zmq.EVENT_ACCEPTED)
        self.most, self.patience, self.clock = max(limit // 2, 8), patience, clock
        self.waiting: dict[int, float] = {}  # by descriptor, until when it is waited for
        self.owners: dict[int, str] = {}  # by descriptor, the address
        self.crowds: Counter[str] = Counter()  # connections of each address
        self.pending: Counter[str] = Counter()  # of these, connections that wait to be let in
        self.cut_off = 0

    @property
    def clients(self) -> int:
        """Clients that there are connections for, with some left for workers and for those that are told that there is no
        room: who comes when all are taken is cut off before a word can be said."""
        return self.most * 7 // 8 // OF_A_CLIENT

    def drain(self) -> list[int]:
        ended = []
        while self.socket.poll(0):
            event, fd = self._next()
            if event == zmq.EVENT_DISCONNECTED:
                self._forget(fd)
                ended.append(fd)
            elif event == zmq.EVENT_ACCEPTED:
                self._forget(fd)
                self._came(fd)
        self._expire()
        return ended

    def let_in(self, fd: int) -> None:
        """Whoever has this connection belongs here."""
        if self.waiting.pop(fd, None) is not None:
            self.pending[self.owners[fd]] -= 1

    def _came(self, fd: int) -> None:
        owner = address_of_peer(fd)
        self.owners[fd], self.waiting[fd] = owner, self.clock() + self.patience
        self.crowds[owner] += 1
        self.pending[owner] += 1
        one = self.most if owner == LOCAL else self.most // 2
        if self.pending[owner] > one // 2:
            self._cut(next(other for other in self.waiting if self.owners[other] == owner))
        elif len(self.waiting) > self.most // 2:
            self._cut(next(iter(self.waiting)))
        elif len(self.owners) > self.most or self.crowds[owner] > one:
            self._cut(fd)

    def _expire(self) -> None:
        now = self.clock()
        while self.waiting and (first := next(iter(self.waiting))) in self.waiting and self.waiting[first] < now:
            self._cut(first)

    def _cut(self, fd: int) -> None:
        """End a connection: libzmq sees that the peer is gone, closes the descriptor and tells."""
        self.cut_off += 1
        self._forget(fd)
        if sys.platform == "linux":
            ctypes.CDLL(None).shutdown(fd, plain.SHUT_RDWR)

    def _forget(self, fd: int) -> None:
        self.let_in(fd)
        owner = self.owners.pop(fd, None)
        if owner is not None:
            self.crowds[owner] -= 1
            for count in (self.crowds, self.pending):
                if not count[owner]:
                    del count[owner]


class WatchedSocket(ConnectionLimits):
    """A crowd that a thread of its own looks after, as the process may be long at something else."""

    def __init__(self, socket: zmq.Socket[Any], limit: int) -> None:
        self.lock = threading.RLock()
        super().__init__(socket, limit, math.inf)  # an admitted address may connect again, and be silent
        self.closing = False
        self.thread = threading.Thread(target=self._watch, name="gt-crowd", daemon=True)
        self.thread.start()

    def let_in(self, fd: int) -> None:
        with self.lock:
            super().let_in(fd)

    def drain(self) -> list[int]:
        with self.lock:
            return super().drain()

    def _watch(self) -> None:
        while not self.closing:
            self.socket.poll(200)
            if not self.closing:
                self.drain()
        super().close()

    def close(self) -> None:
        self.closing = True
        self.thread.join(5)


def address_of_peer(fd: int) -> str:
    """The address that a connection comes from, without a port; `LOCAL` for a Unix connection."""
    with contextlib.suppress(OSError), plain.socket(fileno=os.dup(fd)) as copy:  # it may have ended meanwhile
        if copy.family in (plain.AF_INET, plain.AF_INET6):
            return str(copy.getpeername()[0])
    return LOCAL
