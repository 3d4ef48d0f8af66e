"""Limits on the connections to a listening socket: how many in all and of one address, and how long they may stay
unauthenticated. libzmq aborts the process when no descriptor is left for a connection, so descriptors must never run out."""

from __future__ import annotations

import contextlib
import math
import os
import socket as plain
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import zmq

from gt.transport.addresses import copy_of
from gt.transport.sockets import Ends

PATIENCE = 10.0  # seconds for a connection to be admitted
ENOUGH = 1 << 16  # descriptors
OF_A_CLIENT = 2  # connections to its dispatcher: one that it receives from, one that it sends over
LOCAL = ""  # the address of all Unix connections


def raise_descriptor_limit() -> int:
    """Raise the limit of descriptors as far as this process may, up to ENOUGH. Returns the limit."""
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
    """All connections to a socket. They may use half of the descriptors. One remote address may have half of these connections,
    and half of them may wait for admission, at most half of those from one address. If too many wait, the one that was silent
    for longest is closed: a GT process sends its greeting at once."""

    def __init__(
        self, socket: zmq.Socket[Any], limit: int, patience: float = PATIENCE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(socket, zmq.EVENT_ACCEPTED)
        self.most, self.patience, self.clock = max(limit // 2, 8), patience, clock
        self.waiting: dict[int, float] = {}  # by descriptor, the deadline for its admission
        self.owners: dict[int, str] = {}  # by descriptor, the address
        self.inodes: dict[int, int] = {}  # by descriptor, the number of its socket, which no other has
        self.crowds: Counter[str] = Counter()  # connections of each address
        self.pending: Counter[str] = Counter()  # connections of each address that wait for admission
        self.cut_off = 0

    @property
    def clients(self) -> int:
        """The number of clients for which there are connections. Some are reserved for workers and for refused clients: a
        client that connects when all are taken is disconnected without a reason."""
        return self.most * 7 // 8 // OF_A_CLIENT

    def drain(self) -> list[int]:
        ended, events = [], []
        while self.socket.poll(0):
            events.append(self._next())
        closed = {fd: at for at, (event, fd) in enumerate(events) if event == zmq.EVENT_DISCONNECTED}
        for at, (event, fd) in enumerate(events):
            if event == zmq.EVENT_DISCONNECTED:
                self._forget(fd)
                ended.append(fd)
            elif event == zmq.EVENT_ACCEPTED:
                self._forget(fd)
                if closed.get(fd, -1) < at:  # else its number may be another file's by now
                    self._came(fd)
        self._expire()
        return ended

    def let_in(self, fd: int) -> None:
        """The connection is admitted."""
        if self.waiting.pop(fd, None) is not None:
            self.pending[self.owners[fd]] -= 1

    def _came(self, fd: int) -> None:
        owner = address_of_peer(fd)
        with contextlib.suppress(OSError):
            self.inodes[fd] = os.fstat(fd).st_ino
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
        """End a connection: libzmq sees the end, closes the descriptor and emits an event. If libzmq has closed it already, its
        number may be another connection's, which stays."""
        self.cut_off += 1
        inode = self.inodes.get(fd)
        self._forget(fd)
        with contextlib.suppress(OSError), copy_of(fd) as copy:
            if os.fstat(copy.fileno()).st_ino == inode:
                copy.shutdown(plain.SHUT_RDWR)

    def _forget(self, fd: int) -> None:
        self.let_in(fd)
        self.inodes.pop(fd, None)
        owner = self.owners.pop(fd, None)
        if owner is not None:
            self.crowds[owner] -= 1
            for count in (self.crowds, self.pending):
                if not count[owner]:
                    del count[owner]


class WatchedSocket(ConnectionLimits):
    """A crowd that a thread of its own checks, as the process's main thread may be busy for long."""

    def __init__(self, socket: zmq.Socket[Any], limit: int) -> None:
        self.lock = threading.RLock()
        super().__init__(socket, limit, math.inf)  # an admitted address may connect again and stay silent
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
    with contextlib.suppress(OSError), copy_of(fd) as copy:  # the connection may have ended
        if copy.family in (plain.AF_INET, plain.AF_INET6):
            return str(copy.getpeername()[0])
    return LOCAL
