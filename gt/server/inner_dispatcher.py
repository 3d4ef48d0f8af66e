"""A dispatcher within the process of its only worker (docs/design/one-process.md). The worker's loop handles the dispatcher's
messages whenever it looks for its own, and finds the latter in a queue: a client's read then wakes one process, not two."""

from __future__ import annotations

import threading
from typing import Any

import zmq

from gt.dispatcher.serve import Server
from gt.server.stand_in import StandIn
from gt.transport.messages import Join, encode
from gt.transport.polling import Sources
from gt.transport.wake import Waker


class InnerDispatcher:
    """The worker's connection to its dispatcher (`gt.worker.dispatcher_socket.Connection`). A thread that uses the dispatcher
    holds its lock: one of the worker's in `receive`, `send` and `join`, or the one that stands in for it."""

    def __init__(self, server: Server) -> None:
        server.begin()
        self.server, self.messages, self.lock = server, server.own_mail, threading.Lock()
        self.inline_runs = 0  # messages that the worker has taken
        self.fd = server.sources.descriptor()
        self.sources_of_its_own: set[Any] = {self.fd}
        self.served = 0  # times that the worker has served the dispatcher
        self.resting = False  # whether the worker sleeps until a message comes
        self.left = Waker()  # ready while the worker has not seen the messages and the work that the other thread has left
        self.something_left = False
        server.sources.add(self.left.fd)
        self.stand_in = StandIn(self)

    def connect(self, address: str, keys: Any, token: str, sources: Sources) -> InnerDispatcher:
        """The connection of a worker with this token, whose event sources are `sources`."""
        self.token, self.sources = token, sources
        return self

    def join(self, join: Join, timeout: float) -> Any:
        with self.lock:
            self.server.own_worker = self.token
            self.server.read(self.token, encode(join), str)
        return self.messages.popleft()

    def poll(self) -> None:
        self.sources.add(self.fd)

    def descriptor(self) -> int:
        return self.fd

    def wait(self, timeout: float) -> list[Any]:
        """The worker's event sources that are ready within so many milliseconds, or when the dispatcher has something to do."""
        if timeout:
            timeout = min(timeout, self.longest_wait())
        if not timeout:
            return self.sources.wait(0)
        self.resting = True
        ready = self.sources.wait(timeout)
        self.resting = False
        if not self.stand_in.watching:
            self.stand_in.watch()
        if not ready and self.server.departed:
            with self.lock:
                self.server.trim()
        return ready

    def longest_wait(self) -> float:
        """Milliseconds that the worker may sleep; 0 if there is a message for it, or more to do for the dispatcher."""
        return 0 if self.messages or self.server.sources.unsure() else self.server.longest_wait()

    def receive(self) -> Any:
        """The next message for the worker, after the dispatcher has handled one of each peer, if there was none."""
        messages = self.messages
        if not messages:
            self.stand_in.check()
            with self.lock:
                self.served += 1
                if self.something_left:
                    self.something_left = False
                    self.left.clear()
                self.server.look(0)
        if not messages:
            return None
        self.inline_runs += 1
        return messages.popleft()

    def serve_for_worker(self, served: int) -> None:
        """On another thread: handle the messages of the dispatcher's peers, if the worker has not since the count `served`."""
        if not self.lock.acquire(blocking=False):
            return
        try:
            if self.served != served or self.resting:
                return
            self.server.look(0)
            if not self.longest_wait():
                self.something_left = True
                self.left.wake()
        finally:
            self.lock.release()

    def send(self, message: Any) -> None:
        with self.lock:
            self.server.read(self.token, encode(message), str)

    def has_ended(self, ready: list[Any]) -> bool:
        return False

    def how_it_ended(self) -> str:
        return ""

    def linger(self, milliseconds: int) -> None:
        """Let the dispatcher's last messages leave: the end of this process is its own."""
        self.server.router.setsockopt(zmq.LINGER, milliseconds)

    def stats(self) -> dict[str, Any]:
        turns, spins = self.stand_in.turns, self.sources.spins
        return {"lane_runs": 0, "inline_runs": self.inline_runs, "stand_ins": turns, "spins": spins}

    def close(self) -> None:
        self.stand_in.close()
        self.lock.acquire()  # whoever closes the server has it from here on
