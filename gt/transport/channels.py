"""Connections between a client and a worker of one host and one user, over which they pass descriptors of shared-memory
segments. The kernel identifies the peer and the passed file; no number in a message is trusted."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import select
import socket
import struct
import sys
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from gt.errors import ProtocolError
from gt.transport.shm import SEALS, Place, Segment, byte_array

if TYPE_CHECKING:
    import numpy

TOKEN = 16  # bytes of the token by which a worker finds the connection of an attaching client
WORD = struct.Struct("=Qq")  # number of a segment, and its size, or -1: the segment was dropped
MOST = 4096  # most segments of one peer
MOST_BYTES = (
    2 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
)  # of these together: a sparse file may be larger than the address space
UNCLAIMED = 256  # most connections whose client has not attached yet
CREDENTIALS = struct.Struct("iII")  # process, user, group


def path_of(local: str) -> str:
    """The path at which a worker that listens at this local address accepts connections for segments."""
    return local.removeprefix("ipc://") + ".segments"


def process_of(connection: socket.socket) -> int:
    """The process at the other end, from the kernel, if it has the same user as this process; else 0."""
    if sys.platform != "linux":
        return 0
    pid, user, _ = CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return int(pid) if user == os.geteuid() else 0


def same_user(connection: socket.socket) -> bool:
    """Whether the process at the other end has the same user as this process, from the kernel."""
    return process_of(connection) != 0


class Channel:
    """One end of a channel. A descriptor is passed before the message that names its segment is sent, and the kernel delivers
    it at once, so a receiver that misses a segment finds its descriptor here."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.setblocking(False)
        self.passed: set[int] = set()  # own segments that the peer has
        self.unsaid: list[int] = []  # dropped segments that a slow peer was not told about yet
        self.maps: dict[int, mmap.mmap] = {}  # the peer's segments, by its numbers
        self.map: Callable[[int, int], mmap.mmap] = mmap.mmap  # of a descriptor and a length

    # This process's segments

    def give(self, segment: Segment, patience: float = 0.0) -> bool:
        """Pass a segment to the peer, once. Returns whether the peer has it."""
        if segment.serial in self.passed:
            return True
        self._say_unsaid()
        if not self._send(WORD.pack(segment.serial, segment.size), [segment.fd], patience):
            return False
        self.passed.add(segment.serial)
        return True

    def drop(self, serial: int) -> None:
        """A segment is no longer used."""
        if serial in self.passed:
            self.passed.remove(serial)
            self.unsaid.append(serial)
            self._say_unsaid()

    def _say_unsaid(self) -> None:
        while self.unsaid and self._send(WORD.pack(self.unsaid[0], -1), [], 0.0):
            self.unsaid.pop(0)

    def _send(self, word: bytes, descriptors: list[int], patience: float) -> bool:
        until = time.monotonic() + patience
        while True:
            try:
                socket.send_fds(self.connection, [word], descriptors)
                return True
            except BlockingIOError:  # the peer does not read
                left = until - time.monotonic()
                if left <= 0:
                    return False
                room = select.poll()  # `select.select` takes no descriptors past 1023
                room.register(self.connection, select.POLLOUT)
                room.poll(left * 1000)
            except OSError:  # the peer has ended
                return False

    # The peer's segments

    def view(self, place: Place, nbytes: int, release: Callable[[], None] | None = None) -> numpy.ndarray:
        """The bytes at a place. With `release`, that is called when nothing looks at them any more."""
        serial, offset, size = place
        if serial not in self.maps:
            self.take_in()
        mapped = self.maps.get(serial)
        if mapped is None or not 0 <= offset <= len(mapped) - nbytes or nbytes > size:
            raise ProtocolError(f"no {nbytes} bytes at {place} (segment, offset, length): no such segment was passed")
        if release is None:
            return byte_array(mapped, nbytes, offset)
        # The watched object must not be an array: NumPy lets a view of a view refer to the first owner, past the views between.
        loan = (ctypes.c_ubyte * nbytes).from_buffer(mapped, offset)
        weakref.finalize(loan, release).atexit = False
        return byte_array(memoryview(loan))

    def take_in(self) -> bool:
        """Receive passed descriptors. Returns whether more may follow."""
        while True:
            try:
                word, descriptors, _, _ = socket.recv_fds(self.connection, WORD.size + 1, 2)
            except BlockingIOError:
                return True
            except OSError:
                return False
            try:
                if not word:
                    return False
                with contextlib.suppress(OSError, ValueError, struct.error):
                    serial, size = WORD.unpack(word)
                    self._take(serial, size, descriptors)
            finally:
                for fd in descriptors:
                    os.close(fd)

    def _take(self, serial: int, size: int, descriptors: list[int]) -> None:
        if size < 0:
            self.maps.pop(serial, None)  # stays valid for the arrays that still refer to it
        elif len(descriptors) == 1 and serial not in self.maps and len(self.maps) < MOST:
            sealed = fcntl.fcntl(descriptors[0], fcntl.F_GET_SEALS) & SEALS == SEALS  # raises for a file that is no memory file
            length = os.fstat(descriptors[0]).st_size
            if sealed and length + sum(map(len, self.maps.values())) <= MOST_BYTES:
                self.maps[serial] = self.map(descriptors[0], length)

    def close(self) -> None:
        self.connection.close()
        self.maps.clear()


def connect(local: str, token: bytes) -> Channel | None:
    """A channel to the worker at this local address; None if the worker is not this user's or accepts no channels."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        made.setblocking(False)
        made.connect(path_of(local))
        if same_user(made):
            made.send(token)
            return Channel(made)
    except OSError:
        pass
    made.close()
    return None


class ChannelListener:
    """The listener for channels and lanes (`lanes.py`) of a worker; a dispatcher accepts lanes too. Each connection begins with
    a token, and belongs to the peer that sends this token over an authenticated connection."""

    def __init__(self, local: str) -> None:
        self.path = path_of(local)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)  # left by a killed process: this process owns `local`, so it owns this name too
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.setblocking(False)
        self.listener.bind(self.path)
        self.listener.listen(1024)
        self.unclaimed: list[socket.socket] = []
        self.found: dict[bytes, socket.socket] = {}

    def claim(self, token: bytes) -> Channel | None:
        """The channel on which this token was received."""
        taken = self.take(token)
        return Channel(taken) if taken is not None else None

    def take(self, token: bytes) -> socket.socket | None:
        """The connection on which this token was received."""
        self._accept()
        return self.found.pop(token, None) if len(token) == TOKEN else None

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                made, _ = self.listener.accept()
                made.setblocking(False)
                if same_user(made):
                    self.unclaimed.append(made)
                else:
                    made.close()
        silent, self.unclaimed = self.unclaimed, []
        for connection in silent:
            self._read(connection)
        for many in (self.unclaimed, list(self.found.values())):
            for connection in many[:-UNCLAIMED]:
                self._forget(connection)

    def _read(self, connection: socket.socket) -> None:
        try:
            token = connection.recv(TOKEN + 1)
        except BlockingIOError:
            self.unclaimed.append(connection)
            return
        except OSError:
            token = b""
        if len(token) != TOKEN or token in self.found:
            connection.close()
        else:
            self.found[token] = connection

    def _forget(self, connection: socket.socket) -> None:
        connection.close()
        self.unclaimed = [c for c in self.unclaimed if c is not connection]
        self.found = {t: c for t, c in self.found.items() if c is not connection}

    def close(self) -> None:
        for connection in (self.listener, *self.unclaimed, *self.found.values()):
            connection.close()
