"""A worker's socket to its dispatcher, the lane over which most of its messages come, and the end of the connection."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import zmq
from msgspec.structs import replace

from gt.errors import ProtocolError
from gt.transport import lanes
from gt.transport.addresses import on_this_host
from gt.transport.auth import Keys, reach
from gt.transport.lanes import Lane
from gt.transport.messages import LIMIT, Join, Welcome, decode, encode
from gt.transport.polling import Sources
from gt.transport.sockets import Ends, greet, how_it_ended, open_socket


class Connection(Protocol):
    """A worker's connection to its dispatcher, which may be within the same process."""

    sources_of_its_own: set[Any]  # the event sources of this connection

    def join(self, join: Join, timeout: float) -> Any: ...
    def poll(self) -> None: ...
    def wait(self, timeout: float) -> list[Any]: ...
    def descriptor(self) -> int: ...
    def receive(self) -> Any: ...
    def send(self, message: Any) -> None: ...
    def has_ended(self, ready: list[Any]) -> bool: ...
    def how_it_ended(self) -> str: ...
    def linger(self, milliseconds: int) -> None: ...
    def stats(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


Connect = Callable[[str, Keys, str, Sources], Connection]


class DispatcherSocket:
    """`sources` are the worker's event sources, which have to be marked whenever the socket was used."""

    def __init__(self, address: str, keys: Keys, token: str, sources: Sources) -> None:
        self.address, self.keys, self.sources = address, keys, sources
        self.lane: Lane | None = None  # carries all messages after the first one, if there is one
        self.lane_runs = 0  # messages received over it
        self.socket = open_socket(zmq.DEALER, token.encode())
        self.sources_of_its_own: set[Any] = {self.socket}  # the event sources of this connection
        self.ends = Ends(self.socket)
        self.poller = zmq.Poller()
        self.poller.register(self.socket, zmq.POLLIN)

    def join(self, join: Join, timeout: float) -> Any:
        """Connect and join. Returns the frame of the dispatcher's first message."""
        reach(self.socket, self.address, self.keys)
        until = time.monotonic() + timeout
        lane, token = lanes.connect(self.address, timeout)  # the dispatcher may still be starting
        greeting = encode(replace(join, lane=token))
        try:
            first = greet(self.socket, self.ends, self.address, greeting, max(1.0, until - time.monotonic()))
            self.sources.used(self.socket)
            if lane is not None and _welcomes(first):
                self.lane, lane = lane, None
            return first
        finally:
            if lane is not None:
                lane.close()

    def poll(self) -> None:
        """Add the connection to the worker's event sources."""
        if self.lane is not None:
            self.sources_of_its_own.add(self.lane.fd)
        for source in (*self.sources_of_its_own, self.ends.socket):
            self.sources.add(source)

    def wait(self, timeout: float) -> list[Any]:
        """The worker's event sources that are ready within so many milliseconds."""
        return self.sources.wait(timeout)

    def has_ended(self, ready: list[Any]) -> bool:
        return self.ends.socket in ready and bool(self.ends.drain())

    def linger(self, milliseconds: int) -> None:
        """Let the last messages leave, for so long, when the socket is closed."""
        self.socket.setsockopt(zmq.LINGER, milliseconds)

    def descriptor(self) -> int:
        """The descriptor that is ready when messages may have arrived."""
        return self.lane.fd if self.lane is not None else int(self.socket.getsockopt(zmq.FD))

    def send(self, message: Any) -> None:
        self.socket.send(encode(message))
        self.sources.used(self.socket)

    def receive(self) -> Any:
        """The next message's frame, or None. A frame of the lane is valid until the next call."""
        if self.lane is None:
            self.sources.used(self.socket)
            return self.socket.recv() if self.poller.poll(0) else None
        frame = self.lane.receive(LIMIT) or None  # the socket reports the end of the connection
        self.lane_runs += frame is not None
        return frame

    def how_it_ended(self) -> str:
        """Why the connection ended; "" if both ends were on this host."""
        return "" if on_this_host(self.address) else f"the dispatcher at {self.address} {how_it_ended(self.address)}"

    def stats(self) -> dict[str, Any]:
        return {"lane_runs": self.lane_runs, "inline_runs": 0, "stand_ins": 0, "spins": self.sources.spins}

    def close(self) -> None:
        if self.lane is not None:
            self.lane.close()
        self.ends.close()
        self.socket.close()


def _welcomes(frame: Any) -> bool:
    """Whether the dispatcher admits this worker and uses its lane."""
    try:
        message = decode(frame)
    except ProtocolError:
        return False
    return isinstance(message, Welcome) and message.lane
