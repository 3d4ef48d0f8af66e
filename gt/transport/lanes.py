"""Messages between two processes of one host and one user over a Unix connection that the threads themselves write and read. A
ZMQ socket hands each message to a thread of its own and another thread reads it: on one host the four thread switches and some
forty system calls of each hop take longer than most kernels. A lane carries whole messages without frames; the peer was
identified over an authenticated ZMQ connection (docs/security.md)."""

from __future__ import annotations

import secrets
import select
import socket
from collections.abc import Callable

from gt import environment
from gt.errors import ProtocolError
from gt.transport import shm
from gt.transport.addresses import await_listener
from gt.transport.channels import TOKEN, path_of, same_user

PACKET = 32 << 10  # bytes of a message in one packet; a longer message takes several
BEGINS, ENDS = 1, 2  # flags in the first byte of a packet: the message begins, or ends, with it
WHOLE = bytes([BEGINS | ENDS])
LOOK = 100  # milliseconds between checks of a waiting sender whether its connection was closed here


def supported() -> bool:
    """Whether this host supports lanes and GT_LANES enables them."""
    return shm.supported() and environment.LANES.value()


class Lane:
    """One end of a lane. A packet is sent whole or not at all, so an interrupted sender leaves at most the beginning of a
    message, which the receiver drops when the next message begins."""

    __slots__ = ("connection", "fd", "rest", "_packet", "_parts", "_size")

    def __init__(self, connection: socket.socket, packet: memoryview | None = None) -> None:
        """`packet` (`packet_buffer`) is its receive buffer. Lanes that one thread receives from share one, as a dispatcher
        has a lane for each client; a lane that only sends needs none."""
        connection.setblocking(False)
        self.connection, self.fd = connection, connection.fileno()
        self.rest: list[bytes] = []  # packets of a message that there was no room for yet
        self._packet = packet
        self._parts: list[bytes] = []  # of a message whose end has not come
        self._size = 0

    def send(self, message: bytes) -> bool:
        """Send a message without blocking. Returns False if the kernel's buffer is full. Packets of a long message may be left
        over: `push` sends them. Raises OSError if the peer has ended."""
        if self.rest and not self.push():
            return False
        if len(message) <= PACKET:
            try:
                self.connection.send(WHOLE + message)
            except BlockingIOError:
                return False
            return True
        first, *rest = _packets(message)
        if not self._send(first):
            return False
        self.rest = rest
        self.push()
        return True

    def push(self) -> bool:
        """Send the rest of a long message. Returns whether all of it was sent."""
        while self.rest and self._send(self.rest[0]):
            del self.rest[0]
        return not self.rest

    def _send(self, packet: bytes) -> bool:
        try:
            self.connection.send(packet)
        except BlockingIOError:
            return False
        return True

    def send_waiting(self, message: bytes, closed: Callable[[], bool]) -> None:
        """Send a message and wait for room, until the lane is `closed` here. A message to a peer that has ended is dropped. If
        the wait is interrupted, the message is sent before the next one."""
        try:
            if not self.rest and len(message) <= PACKET:
                try:
                    self.connection.send(WHOLE + message)
                    return
                except BlockingIOError:
                    pass
            self.rest += _packets(message)
            while not self.push() and not closed():
                room = select.poll()
                room.register(self.fd, select.POLLOUT)
                room.poll(LOOK)
        except OSError:
            self.rest.clear()

    def receive(self, limit: int) -> memoryview | bytes | None:
        """The next message, None if none is complete; empty bytes once the connection has ended. A ProtocolError for a packet
        or a message that is too long. The returned bytes are valid until the next call, of any lane with the same buffer."""
        if self._packet is None:
            self._packet = packet_buffer()
        packet = self._packet
        while True:
            try:
                n = self.connection.recv_into(packet)
            except BlockingIOError:
                return None
            except OSError:
                return b""
            if n == 0:
                return b""
            if n > PACKET + 1:
                raise ProtocolError(f"a packet of more than {PACKET} bytes")
            flags = packet[0]
            if flags == BEGINS | ENDS:
                self._parts.clear()
                return packet[1:n]
            if flags & BEGINS:
                self._parts, self._size = [], 0
            elif not self._parts:
                continue  # the rest of a message whose beginning was dropped
            self._parts.append(packet[1:n].tobytes())
            self._size += n - 1
            if self._size > limit:
                raise ProtocolError(f"a message of {self._size} bytes and more is over the limit of {limit}")
            if flags & ENDS:
                whole, self._parts = b"".join(self._parts), []
                return whole

    def close(self) -> None:
        self.connection.close()


def packet_buffer() -> memoryview:
    """A receive buffer: one byte more than any packet has, so that longer ones are noticed."""
    return memoryview(bytearray(PACKET + 2))


def _packets(message: bytes) -> list[bytes]:
    if len(message) <= PACKET:
        return [WHOLE + message]
    cut = [message[at : at + PACKET] for at in range(0, len(message), PACKET)]
    return [bytes([BEGINS]) + cut[0], *(b"\0" + packet for packet in cut[1:-1]), bytes([ENDS]) + cut[-1]]


def connect(local: str, timeout: float = 0.0) -> tuple[Lane | None, bytes]:
    """A lane to the process that listens at this local address, or will within `timeout` seconds, and the token to claim it;
    None and an empty token if the process is not this user's or accepts no lanes."""
    if not local.startswith("ipc://") or not supported():
        return None, b""
    if timeout:
        await_listener(local, lambda: True, timeout)
    made, token = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET), secrets.token_bytes(TOKEN)
    try:
        made.setblocking(False)
        made.connect(path_of(local))
        if same_user(made):
            made.send(token)
            return Lane(made), token
    except OSError:
        pass
    made.close()
    return None, b""
