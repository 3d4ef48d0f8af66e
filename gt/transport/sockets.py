"""How sockets are made, and how their ends are noticed: ROUTER sockets learn of a peer's end from the connection itself, so a
killed process is noticed at once and a busy one never mistaken for dead."""

from __future__ import annotations

import struct

import zmq

from gt.errors import ConnectionFailed

# Flags of a part that others follow, and of the last. (An enum's `|` costs as much as a send.)
FIRST, LAST = int(zmq.SNDMORE | zmq.NOBLOCK), int(zmq.NOBLOCK)


def open_socket(kind: int, identity: bytes | None = None) -> zmq.Socket:
    """A socket that never delays an exit, never drops what it has taken, and notices a silent peer."""
    socket: zmq.Socket = zmq.Context.instance().socket(kind)
    socket.linger = 0
    socket.set_hwm(0)  # what is under way is bounded by the session, not by dropping
    socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 10000)
    if identity is not None:
        socket.setsockopt(zmq.IDENTITY, identity)
    if kind == zmq.ROUTER:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 0)
    return socket


REFUSED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)  # fmt: skip


class Ends:
    """Tells of connections that end, from a socket's monitor."""

    def __init__(self, socket: zmq.Socket) -> None:
        self.of = socket
        self.socket = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | REFUSED)

    def drain(self) -> list[int]:
        """Descriptors whose connections have ended since the last call."""
        ended = []
        while self.socket.poll(0):
            event, value = self._next()
            if event == zmq.EVENT_DISCONNECTED:
                ended.append(value)
        return ended

    def _next(self) -> tuple[int, int]:
        """An event and its value. (pyzmq's own reader of these would load asyncio, which costs each process 20 ms.)"""
        event, value = struct.unpack("=Hi", self.socket.recv_multipart()[0])
        return event, value

    def refused(self) -> bool:
        """Whether whoever is there broke off before a word was exchanged."""
        seen = 0
        while self.socket.poll(0):
            seen |= self._next()[0]
        return bool(seen)

    def close(self) -> None:
        self.of.disable_monitor()
        self.socket.close(0)


def first_word(socket: zmq.Socket, ends: Ends, address: str, timeout: float) -> bytes:
    """What the dispatcher answers to a greeting, or a ConnectionFailed that says what may be wrong."""
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(ends.socket, zmq.POLLIN)
    ready = dict(poller.poll(int(timeout * 1000)))
    if socket in ready:
        return socket.recv()
    if ends.socket in ready and ends.refused():
        raise ConnectionFailed(f"what listens at {address} broke off: is it a gt-server, and is the key (GT_KEY) its own?")
    raise ConnectionFailed(f"no dispatcher answered at {address} within {timeout:g} s: is `gt-server` running there?")
