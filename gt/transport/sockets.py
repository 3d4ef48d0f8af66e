"""Options of sockets, and how the end of a peer is detected: ROUTER sockets see the end of the connection itself, so a killed
process is detected at once and a busy one never mistaken for dead. On one host the kernel reports every end, so a stopped
process is waited for; between hosts a peer that is silent for GT_TIMEOUT seconds counts as lost."""

from __future__ import annotations

import contextlib
import socket as plain
import struct
import time
from collections.abc import Sequence
from typing import Any

import zmq

from gt import environment
from gt.errors import ConnectionFailed
from gt.transport.addresses import host_and_port, nobody, on_this_host
from gt.transport.messages import Bye, Welcome, decode

PART = 32 << 20  # most bytes of a frame: a listener may have to buffer one of an unauthenticated peer
LAST_WORD = 100  # milliseconds for the last messages of a socket that is closed, between processes of one host
# Flags of a part with successors, and of the last. (An enum's `|` takes as long as a send.)
FIRST, LAST = int(zmq.SNDMORE | zmq.NOBLOCK), int(zmq.NOBLOCK)


def open_socket(socket_type: int, identity: bytes | None = None) -> zmq.Socket[Any]:
    """A socket that never delays an exit and never drops an accepted message."""
    socket: zmq.Socket[Any] = zmq.Context.instance().socket(socket_type)
    socket.linger = 0
    socket.set_hwm(0)  # the session bounds the bytes in flight, without drops
    if identity is not None:
        socket.setsockopt(zmq.IDENTITY, identity)
    if socket_type == zmq.ROUTER:
        socket.setsockopt(zmq.HANDSHAKE_IVL, 10_000)  # milliseconds for a peer's handshake
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 0)
    return socket


def parts(frames: Sequence[Any]) -> list[Any]:
    """The bytes of a message's frames, cut into parts of at most PART bytes."""
    return [memoryview(f)[i : i + PART] for f in frames for i in range(0, max(1, len(f)), PART)]


def whole(frames: Sequence[Any]) -> tuple[Any, ...]:
    """The frames of a message, joined from the parts that `parts` cut."""
    return (b"".join(frames),) if len(frames) > 1 else tuple(frames)


def notice_silence(socket: zmq.Socket[Any], address: str) -> None:
    """To be called before the socket binds or connects: libzmq then ends silent connections to other hosts, and no others."""
    seconds = 0.0 if on_this_host(address) else environment.TIMEOUT.value()
    socket.setsockopt(zmq.HEARTBEAT_IVL, int(min(5.0, seconds / 3) * 1000))
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(seconds * 1000))


def how_it_ended(address: str) -> str:
    """A description of why the connection to an address has ended."""
    if on_this_host(address):
        return "went away"
    host, port = host_and_port(address)
    silent = f"gave no sign of life for {environment.TIMEOUT.value():g} s (GT_TIMEOUT)"
    try:
        with plain.create_connection((host, int(port)), 1.0):
            return f"{silent}, or ended and was started again"
    except ConnectionRefusedError:
        return "went away"
    except OSError:
        return silent


REFUSED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)  # fmt: skip


class Ends:
    """Reports ended connections, from a socket's monitor."""

    def __init__(self, socket: zmq.Socket[Any], more: int = 0) -> None:
        self.of = socket
        self.socket = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | REFUSED | more)

    def drain(self) -> list[int]:
        """Descriptors whose connections have ended since the last call."""
        ended = []
        while self.socket.poll(0):
            event, value = self._next()
            if event == zmq.EVENT_DISCONNECTED:
                ended.append(value)
        return ended

    def _next(self) -> tuple[int, int]:
        """An event and its value. (pyzmq's own parser imports asyncio, which takes each process 20 ms.)"""
        event, value = struct.unpack("=Hi", self.socket.recv_multipart()[0])
        return event, value

    def refused(self) -> bool:
        """Whether the peer closed the connection before the handshake."""
        seen = 0
        while self.socket.poll(0):
            seen |= self._next()[0]
        return bool(seen)

    def close(self) -> None:
        self.of.disable_monitor()
        self.socket.close(0)


def greet(socket: zmq.Socket[Any], ends: Ends, address: str, greeting: bytes, timeout: float) -> bytes:
    """Send the first message to a dispatcher, and return its answer; raises ConnectionFailed with possible reasons after
    `timeout` seconds. A server that refuses the key may close the connection before the greeting is sent: a blocking send would
    wait for ever."""
    until = time.monotonic() + timeout
    if socket.poll(int(timeout * 1000), zmq.POLLOUT):
        with contextlib.suppress(zmq.Again):
            socket.send(greeting, zmq.NOBLOCK)
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(ends.socket, zmq.POLLIN)
    ready = dict(poller.poll(int(max(0.0, until - time.monotonic()) * 1000)))
    refused = ends.socket in ready and ends.refused()
    if socket in ready or refused and socket.poll(0):  # an answer may have come after the poll looked for one, before the end
        return socket.recv()
    if refused:
        raise ConnectionFailed(
            f"the process that listens at {address} broke off: is it a gt-server, is the key (GT_KEY) its own, "
            "and its salt (GT_SALT), or is it crowded?"
        )
    raise ConnectionFailed(nobody(address, timeout))


def welcomed(answer: bytes, address: str) -> Welcome:
    """The dispatcher's answer to a greeting; raises ConnectionFailed if it is another."""
    match decode(answer):
        case Welcome() as welcome:
            return welcome
        case Bye(why):
            raise ConnectionFailed(f"the dispatcher at {address} {why}")
    raise ConnectionFailed(f"expected a GT dispatcher of this version at {address}, found another process")
