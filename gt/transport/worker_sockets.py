"""A client's connections to the workers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

from gt.transport.addresses import nearest
from gt.transport.auth import Keys, reach
from gt.transport.client_memory import ClientMemory
from gt.transport.lane_tables import ClientLanes
from gt.transport.messages import Attach, encode
from gt.transport.polling import Sources
from gt.transport.sockets import LAST_WORD, open_socket, parts

ANSWER = 1.0  # seconds for workers to answer whether they share memory


class WorkerSockets:
    """For each worker a socket and, if it is of this host and user, a lane for its answers and shared memory. Only the thread
    that receives uses the sockets; other threads leave messages for it. `drain(fd)` handles the next message of a lane, and
    returns whether another may follow."""

    def __init__(self, name: str, keys: Keys, sources: Sources, drain: Callable[[int], bool]) -> None:
        self.name, self.keys, self.sources, self.drain = name, keys, sources, drain
        self.memory, self.lanes = ClientMemory(), ClientLanes(sources)
        self.workers: tuple[Any, ...] = ()  # from the dispatcher's last message
        self.names: dict[int, str] = {}  # by index
        self.sockets: dict[str, zmq.Socket[Any]] = {}  # by name
        self.polled: dict[zmq.Socket[Any], str] = {}  # sockets that are received from, and their workers
        self.moved = False  # whether the set of workers has changed since sockets were polled
        self.sharing: dict[str, bool] = {}  # by name, the answer whether it shares memory
        self.slow: set[str] = set()  # workers that have not answered in time
        self.changed = threading.Condition()  # guards `sockets` and `sharing`
        self.posts: deque[tuple[str, Any, tuple[Any, ...]]] = deque()  # messages for workers, with frames

    def meet(self, workers: tuple[Any, ...]) -> None:
        """Connect to new workers, and disconnect from lost ones."""
        self.moved, self.workers = True, workers
        names = {w.name for w in workers}
        for gone in self.sockets.keys() - names:
            self.sharing.pop(gone, None)
            self._part(gone)
            socket = self.sockets.pop(gone)
            if socket not in self.polled:  # `follow` closes the others
                socket.close(0)
        self.names = {w.index: w.name for w in workers}
        for worker in workers:
            if worker.name in self.sockets:
                continue
            socket, address = open_socket(zmq.DEALER, self.name.encode()), nearest(worker.address, worker.remote)
            try:
                reach(socket, address, self.keys)
            except zmq.ZMQError:  # an address of a kind that this host does not have; tensors there cannot be read from here
                socket.close(0)
                continue
            lane = self.lanes.connect(worker.name, address)
            socket.send(encode(Attach(self.name, self.memory.share(worker.name, address), lane)))
            self.sockets[worker.name] = socket

    def _part(self, worker: str) -> None:
        """A worker has ended: handle its last messages."""
        self.memory.part(worker)
        for fd in self.lanes.of(worker):
            while fd in self.lanes.workers and self.drain(fd):
                pass
            self.lanes.end(fd)

    def follow(self) -> None:
        """Poll the sockets of the current workers."""
        self.moved = False
        now = {socket: name for name, socket in self.sockets.items()}
        for socket in self.polled.keys() - now.keys():
            self.sources.remove(socket)
            socket.close(0)
        for socket in now.keys() - self.polled.keys():
            self.sources.add(socket)
        self.polled = now

    def shares(self, ended: Callable[[], object]) -> bool:
        """Whether all workers share memory with this process. Waits for a first worker, and once a moment for each, unless the
        session has `ended`."""
        if not self.sockets or self.sockets.keys() != self.sharing.keys():
            self._await_answers(ended)
        return self._met() and all(self.sharing.values())

    def _await_answers(self, ended: Callable[[], object]) -> None:
        silent = self.sockets.keys() - self.sharing.keys()
        if not self.sockets or not silent <= self.slow:
            with self.changed:
                self.changed.wait_for(lambda: ended() or self.sockets, 60)
                self.changed.wait_for(lambda: ended() or self._met(), ANSWER)
            self.slow = self.sockets.keys() - self.sharing.keys()

    def _met(self) -> bool:
        return bool(self.sockets) and len(self.sharing) == len(self.sockets)

    def post(self) -> None:
        """Send the messages that were left for workers."""
        while self.posts:
            name, message, frames = self.posts.popleft()
            if name in self.sockets:
                self.sockets[name].send_multipart([encode(message), *parts(frames)])
                self.sources.used(self.sockets[name])

    def wake(self) -> None:
        """Wake the threads that wait in `shares`."""
        with self.changed:
            self.changed.notify_all()

    def addresses(self) -> list[str]:
        return [at for w in self.workers for at in (w.address, w.remote) if at]

    def abandon(self) -> None:
        """In a forked child: leave the parent's connections alone."""
        self.changed = threading.Condition()
        self.posts.clear()
        self.lanes.close()
        self.memory.abandon()

    def close(self) -> None:
        for socket in {*self.sockets.values(), *self.polled}:  # `polled`: also the sockets of workers just lost
            socket.close(LAST_WORD)
        self.lanes.close()
        self.memory.close()
