"""Waiting for ZMQ sockets and plain descriptors in one system call. (`zmq.Poller` queries every socket before and after it
sleeps, some five system calls for each.)"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import zmq

from gt import environment

SPIN = 300e-6  # seconds: longer than a message and its answer take on one host
STEP = 1e-3  # seconds: the same after a read, whose client sends the next message at the end of its own step
TAKEN = 500e-6  # seconds without the core after which another program needs it: GT's own processes return it sooner
FIRST_REST, REST = 5e-3, 1.0  # seconds without spinning after that: at first, and at most
AGAIN = 0.08  # seconds after a rest, within which the core is taken again by a program that stays
CORES = 4  # least cores of a process that may keep its core while it spins: the processes that it waits for have others
EVENTS = 64  # most descriptors that one look at many of them gives
Source = Any  # a ZMQ socket, or the number of a descriptor


def spin_seconds() -> tuple[float, float]:
    """The seconds for which a wait may spin before it sleeps (GT_SPIN), and the same after a read."""
    asked = environment.SPIN.value()
    if asked is not None:
        return asked, asked
    return (SPIN, STEP) if _cores() > 1 else (0.0, 0.0)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ManyDescriptors:
    """`select.poll` for any number of descriptors: that one asks each of them at every look, some 0.1 us apiece."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.register, self.unregister, self.fileno = self._epoll.register, self._epoll.unregister, self._epoll.fileno
        self.look = partial(self._epoll.poll, 0, EVENTS)

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        return self._epoll.poll(None if timeout is None else timeout / 1000, EVENTS)


def pollable(many: bool) -> select.poll | ManyDescriptors:
    return ManyDescriptors() if many and hasattr(select, "epoll") else select.poll()


class Sources:
    """A ZMQ socket's descriptor only signals that an event may have happened, and is cleared when the socket is next used,
    whether or not all messages were received. So a socket is queried when its descriptor is ready, and, if it was used since
    (`used`) or had messages, before the next sleep.

    A process that sleeps is woken late and with cold caches. So if the last wait was short, as in a loop that reads a value in
    every step, `wait` spins before it sleeps: it polls without sleeping, and yields its core in between. If the core is not
    returned soon, another program needs it, and `wait` does not spin for a while: for a moment, as it may have been a short
    task or another thread of this process, and twice as long each time that this happens again."""

    def __init__(self, timer: int = -1, many: bool = False, keeps_core: bool = False) -> None:
        """`timer` is a descriptor that only some calls wait for, too. `many`: any number of sources costs a wait the same.
        `keeps_core`: spin without yielding the core, where there are enough: for an interactive client, as a yield to another
        program's thread, such as a trainer's, lasts as long as that thread's time slice, some milliseconds."""
        self._poll = self._timed = pollable(many)
        if timer >= 0:
            self._timed = pollable(many)
            self._timed.register(timer, select.POLLIN)
        self._polls = {self._poll, self._timed}
        poll = self._poll  # a look without sleep: the spin's loop calls nothing of Python
        self._look = poll.look if isinstance(poll, ManyDescriptors) else partial(poll.poll, 0)
        self._sockets: dict[int, zmq.Socket[Any]] = {}  # by their descriptors
        self._unsure: set[zmq.Socket[Any]] = set()
        self._spin, self._step = spin_seconds()
        self.read = False  # whether the last message was a read: the next one is sent at the end of the client's step
        self._soon = False  # the last wait was shorter than a wait may spin
        self._yield_core = _nothing if keeps_core and _cores() >= CORES else _yield_core
        self._rest, self._rest_until = FIRST_REST, 0.0
        self.spins = 0  # waits that ended during the spin

    def add(self, source: Source) -> None:
        fd = source
        if not isinstance(source, int):
            fd = source.getsockopt(zmq.FD)
            self._sockets[fd] = source
            self._unsure.add(source)
        for poll in self._polls:
            poll.register(fd, select.POLLIN)

    def remove(self, source: Source) -> None:
        """Stop polling a source, before it is closed."""
        fd = source
        if not isinstance(source, int):
            fd = source.getsockopt(zmq.FD)
            del self._sockets[fd]
            self._unsure.discard(source)
        for poll in self._polls:
            poll.unregister(fd)

    def watch_room(self, fd: int, wanted: bool) -> None:
        """Poll a write-only descriptor for room to write, or stop polling it."""
        if wanted:
            self._poll.register(fd, select.POLLOUT)
        else:
            self._poll.unregister(fd)

    def unsure(self) -> bool:
        """Whether a socket may have messages though its descriptor is silent."""
        return bool(self._unsure)

    def descriptor(self) -> int:
        """A descriptor that is ready while any of many sources is."""
        assert isinstance(self._poll, ManyDescriptors)
        return self._poll.fileno()

    def used(self, *sockets: zmq.Socket[Any]) -> None:
        """Messages were sent over these sockets, or received from them."""
        self._unsure.update(sockets)

    def wait(self, timeout: float | None, timed: bool = False) -> list[Source]:
        """The sources that are ready within this many milliseconds. `timed`: also poll the timer, and do not spin."""
        found: list[Source] = []
        if self._unsure:
            found = [socket for socket in self._unsure if _has_something(socket)]
            self._unsure = set(found)
        try:
            for fd, _ in self._polled(0 if found else timeout, timed):
                socket = self._sockets.get(fd)
                if socket is None:
                    found.append(fd)
                elif socket not in self._unsure and _has_something(socket):
                    self._unsure.add(socket)
                    found.append(socket)
        except BaseException:  # Ctrl-C, perhaps after the poll, which tells of a message once: look into all of them next time
            self._unsure.update(self._sockets.values())
            raise
        return found

    def _polled(self, timeout: float | None, timed: bool) -> list[tuple[int, int]]:
        if timed or timeout == 0 or not self._spin:
            return (self._timed if timed else self._poll).poll(timeout)
        began = now = time.perf_counter()
        longest = self._step if self.read else self._spin
        look, yield_core = self._look, self._yield_core
        while self._soon and now - began < longest and now > self._rest_until:
            if polled := look():
                self.spins += 1
                return polled
            yield_core()
            before, now = now, time.perf_counter()
            if now - before > TAKEN:
                self._taken(now)
        polled = self._poll.poll(timeout)
        self._soon = time.perf_counter() - began < longest
        return polled

    def answered(self) -> None:
        """A message of a read was sent: if its receiver waits for this core, it goes on at once, and the rest of this process's
        work before its next wait comes later. Only where the next wait would spin, which yields the core, too; not called
        where there are several clients, whose messages are handled one after another."""
        if self._soon and self.read and (now := time.perf_counter()) > self._rest_until:
            _yield_core()
            before, now = now, time.perf_counter()
            if now - before > TAKEN:
                self._taken(now)

    def _taken(self, now: float) -> None:
        """Another program has had this core."""
        stays = now - self._rest_until < AGAIN
        self._rest = min(REST, 2 * self._rest) if stays else FIRST_REST
        self._rest_until = now + self._rest


def _has_something(socket: zmq.Socket[Any]) -> bool:
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


def _nothing() -> None:
    pass


_yield_core: Callable[[], None] = os.sched_yield if hasattr(os, "sched_yield") else partial(time.sleep, 0)
