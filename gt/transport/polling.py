"""What a thread waits for: ZMQ sockets and plain descriptors, in one system call. (`zmq.Poller` asks every socket before and
after it sleeps, which is some five system calls for each of them.)"""

from __future__ import annotations

import select
from typing import Any

import zmq

Source = Any  # a ZMQ socket, or the number of a descriptor


class Sources:
    """A ZMQ socket's descriptor only says that something may have happened, and falls silent when the socket is next used,
    whether or not all of it was received. So a socket is asked when its descriptor says so, and, where it was used since
    (`used`) or had something to receive, before the next sleep."""

    def __init__(self, timer: int = -1) -> None:
        """`timer` is a descriptor that only some calls wait for, too."""
        self._poll, self._timed = select.poll(), select.poll()
        if timer >= 0:
            self._timed.register(timer, select.POLLIN)
        self._sockets: dict[int, zmq.Socket[Any]] = {}  # by their descriptors
        self._unsure: set[zmq.Socket[Any]] = set()

    def add(self, source: Source) -> None:
        fd = source
        if not isinstance(source, int):
            fd = source.getsockopt(zmq.FD)
            self._sockets[fd] = source
            self._unsure.add(source)
        for poll in (self._poll, self._timed):
            poll.register(fd, select.POLLIN)

    def remove(self, source: Source) -> None:
        """Before it is closed."""
        fd = source
        if not isinstance(source, int):
            fd = source.getsockopt(zmq.FD)
            del self._sockets[fd]
            self._unsure.discard(source)
        for poll in (self._poll, self._timed):
            poll.unregister(fd)

    def watch_room(self, fd: int, wanted: bool) -> None:
        """Have `wait` also give a descriptor that is not received from when it can be written to, or no longer."""
        if wanted:
            self._poll.register(fd, select.POLLOUT)
        else:
            self._poll.unregister(fd)

    def used(self, *sockets: zmq.Socket[Any]) -> None:
        """Something was sent over these sockets, or received from them."""
        self._unsure.update(sockets)

    def wait(self, timeout: float | None, timed: bool = False) -> list[Source]:
        """What can be received from, within so many milliseconds; `timed`: also the timer, if it rang."""
        found: list[Source] = []
        if self._unsure:
            found = [socket for socket in self._unsure if _has_something(socket)]
            self._unsure = set(found)
        for fd, _ in (self._timed if timed else self._poll).poll(0 if found else timeout):
            socket = self._sockets.get(fd)
            if socket is None:
                found.append(fd)
            elif socket not in self._unsure and _has_something(socket):
                self._unsure.add(socket)
                found.append(socket)
        return found


def _has_something(socket: zmq.Socket[Any]) -> bool:
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)
