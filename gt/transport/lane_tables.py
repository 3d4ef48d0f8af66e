"""The lanes of a dispatcher, a worker and a client, by the names of their peers, and counts of messages over them."""

from __future__ import annotations

import select
from collections.abc import Iterable, Iterator
from typing import Any

from gt.errors import ProtocolError
from gt.transport import shm
from gt.transport.addresses import NAMES, listens
from gt.transport.channels import ChannelListener
from gt.transport.lanes import PACKET, Lane, connect, packet_buffer
from gt.transport.messages import LIMIT
from gt.transport.polling import Sources


class DispatcherLanes:
    """A dispatcher's lanes: it receives over the lanes of clients, and sends over the lanes of workers. It accepts lanes before
    its ZMQ socket listens, as a peer that finds it listening connects to both."""

    def __init__(self, addresses: Iterable[str], sources: Sources) -> None:
        local = [at for at in addresses if at.startswith("ipc://") and not listens(at)] if shm.supported() else []
        self.listeners = [ChannelListener(address) for address in local]
        for listener in self.listeners:
            NAMES.hold(listener.path)
        self.sources, self.packet = sources, packet_buffer()
        self.senders: dict[int, tuple[str, Lane, str]] = {}  # clients, by descriptor, with the roles of their keys
        self.to: dict[str, Lane] = {}  # workers

    def claim(self, token: bytes) -> Lane | None:
        """The lane on which this token was received."""
        for listener in self.listeners:
            if (taken := listener.take(token)) is not None:
                return Lane(taken, self.packet)
        return None

    def receive_from(self, name: str, lane: Lane, role: str) -> None:
        self.senders[lane.fd] = (name, lane, role)
        self.sources.add(lane.fd)

    def post(self, name: str, message: bytes) -> bool | None:
        """Send a message over a worker's lane. Returns whether the lane took it, None for a peer without a lane. Raises OSError
        if the worker has ended."""
        lane = self.to.get(name)
        if lane is None:
            return None
        return lane.send(message)

    def pushed(self, name: str) -> bool:
        """Whether the last long message to a worker was sent completely."""
        lane = self.to.get(name)
        try:
            return lane is None or not lane.rest or lane.push()
        except OSError:
            return True  # the end of the worker is noticed elsewhere

    def watch_room(self, name: str, wanted: bool) -> None:
        """Poll a worker's lane for room to write, or stop polling it."""
        if name in self.to:
            self.sources.watch_room(self.to[name].fd, wanted)

    def of(self, name: str) -> list[tuple[str, Lane, str]]:
        """The lanes over which a peer sends: one or none."""
        return [sender for sender in self.senders.values() if sender[0] == name]

    def end(self, name: str) -> None:
        for _, lane, _ in self.of(name):
            del self.senders[lane.fd]
            self.sources.remove(lane.fd)
            lane.close()
        if name in self.to:
            self.to.pop(name).close()

    def close(self) -> None:
        for lane in (*(lane for _, lane, _ in self.senders.values()), *self.to.values()):
            lane.close()
        for listener in self.listeners:
            listener.close()


class AnswerLanes:
    """A worker's lanes to clients of its host and user. They carry answers that have no frames, and back the Starts of deferred
    runs."""

    def __init__(self) -> None:
        self.listener: ChannelListener | None = None
        self.to: dict[str, Lane] = {}
        self.sent = 0
        self.packet = packet_buffer()
        self.starting: dict[int, str] = {}  # clients that may start a run, by the descriptors of their lanes
        self.starts = select.epoll() if hasattr(select, "epoll") else None
        self.starts_fd = self.starts.fileno() if self.starts is not None else -1  # ready when one of them has done so

    def claim(self, client: str, token: bytes) -> None:
        """A client has attached, with this token of its lane, if it has one."""
        taken = self.listener.take(token) if self.listener is not None else None
        if taken is not None:
            self.end(client)
            self.to[client] = Lane(taken, self.packet)

    def post(self, client: str, message: bytes) -> bool:
        """Send an answer over a client's lane. Returns False if the client has no lane or is slow to read: the answer then goes
        over ZMQ."""
        lane = self.to.get(client)
        if lane is None or len(message) > PACKET:
            return False
        try:
            taken = lane.send(message)
        except OSError:  # the client has ended, which the dispatcher reports too
            self.end(client)
            return False
        self.sent += taken
        return taken

    def expect_starts(self, client: str) -> bool:
        """Receive from this client, too. Returns whether it has a lane."""
        lane = self.to.get(client)
        if lane is None or self.starts is None:
            return False
        if lane.fd not in self.starting:
            self.starting[lane.fd] = client
            self.starts.register(lane.fd, select.EPOLLIN)
        return True

    def received(self) -> Iterator[tuple[str, Any]]:
        """The next message of each client that has sent one, by name. A client that has ended, or has sent a message that is
        too long, has no lane any more."""
        ready: Iterable[int] = self.starting  # a single one without another call of the system
        if self.starts is not None and len(self.starting) > 1:
            ready = [fd for fd, _ in self.starts.poll(0)]
        for client in [self.starting[fd] for fd in ready]:
            try:
                data = self.to[client].receive(PACKET)
            except ProtocolError:
                data = b""
            if data:
                yield client, data
            elif data is not None:
                self.end(client)

    def end(self, client: str) -> None:
        if (lane := self.to.pop(client, None)) is not None:
            if self.starts is not None and self.starting.pop(lane.fd, None) is not None:
                self.starts.unregister(lane.fd)
            lane.close()

    def close(self) -> None:
        for client in list(self.to):
            self.end(client)
        if self.starts is not None:
            self.starts.close()


class ClientLanes:
    """A client's lanes from workers of its host and user, over which most answers come."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.workers: dict[int, tuple[str, Lane]] = {}  # by descriptor
        self.received = 0  # messages

    def connect(self, worker: str, address: str) -> bytes:
        """The token of a lane from the worker at this address; empty if it offers none."""
        lane, token = connect(address)
        if lane is not None:
            self.workers[lane.fd] = (worker, lane)
            self.sources.add(lane.fd)
        return token

    def receive(self, fd: int) -> Any:
        """The next message of a lane, None if there is none; a lane that has ended is closed."""
        _, lane = self.workers[fd]
        try:
            data: Any = lane.receive(LIMIT)
        except ProtocolError:
            data = b""
        if data:
            self.received += 1
        elif data is not None:
            self.end(fd)
            return None
        return data

    def of(self, worker: str) -> list[int]:
        return [fd for fd, (name, _) in self.workers.items() if name == worker]

    def send(self, message: bytes) -> bool:
        """Send to the only worker. Returns whether its lane took the message. Any thread may call this."""
        (_, lane), *others = list(self.workers.values()) or ((None, None),)
        try:
            return lane is not None and not others and lane.send(message)
        except OSError:
            return False  # the end of the worker is noticed elsewhere

    def end(self, fd: int) -> None:
        if fd in self.workers:
            self.sources.remove(fd)
            self.workers.pop(fd)[1].close()

    def close(self) -> None:
        for _, lane in self.workers.values():
            lane.close()
