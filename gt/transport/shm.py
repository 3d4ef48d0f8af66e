"""Bulk bytes between processes of one host and one user, in anonymous memory files. Their descriptors are passed over a Unix
connection (`channels.py`), so there is no name to leave behind or to guess, no size limit of a mounted filesystem, and they are
freed with the processes that hold them."""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

from gt.transport.copies import Copier

if TYPE_CHECKING:
    import numpy

LEND = 16 << 20  # bytes from which a piece is lent in place; smaller ones are copied out, so that few segments are in use
KEEP = 1 << 30  # bytes of idle segments that a pool keeps, with their pages allocated, for the next transfer
ARENA = 1 << 20
SMALL = 64 << 10

Place = tuple[int, int, int]  # number of the segment, offset in it, bytes
SEALS = getattr(fcntl, "F_SEAL_SHRINK", 2) | getattr(fcntl, "F_SEAL_GROW", 4) | getattr(fcntl, "F_SEAL_SEAL", 1)


def supported() -> bool:
    return hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")


class Segment:
    """A memory file of this process. It is sealed against shrinking, so that no peer that maps it crashes."""

    __slots__ = ("fd", "serial", "size", "map", "__weakref__")
    _serials = count(1)

    def __init__(self, size: int) -> None:
        self.size, self.serial = size, next(self._serials)
        self.fd = os.memfd_create("gt", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.fd, size)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)
        self.map = mmap.mmap(self.fd, size)
        weakref.finalize(self, os.close, self.fd)

    def view(self, offset: int, nbytes: int) -> numpy.ndarray:
        return byte_array(self.map, nbytes, offset)


def byte_array(buffer: Any, nbytes: int = -1, offset: int = 0) -> numpy.ndarray:
    """The bytes of a buffer. NumPy is imported here because a dispatcher, which reads no tensor's bytes, starts without it."""
    import numpy

    return numpy.frombuffer(buffer, numpy.uint8, nbytes, offset)


class SegmentPool:
    """Segments that this process lends: one for each large tensor, arenas for small tensors. `dropped` is called with the
    number of a segment that will not be used again."""

    def __init__(self, dropped: Callable[[int], None] = lambda serial: None) -> None:
        self.dropped, self.copier = dropped, Copier()
        self.lock = threading.Lock()
        self.lent: dict[int, Segment] = {}
        self.idle: list[Segment] = []
        self.lent_bytes = 0
        self.arena: Segment | None = None
        self.used = 0

    def take(self, nbytes: int) -> Segment:
        """A segment of at least this size, lent until `give`."""
        size = max(SMALL, 1 << (nbytes - 1).bit_length()) if nbytes < LEND else -(-nbytes // (1 << 20)) << 20
        with self.lock:
            fitting = [s for s in reversed(self.idle) if size <= s.size <= 2 * size]  # the last one used is in the caches
            segment = min(fitting, key=lambda s: s.size, default=None)
            if segment:
                self.idle.remove(segment)
            else:
                segment = Segment(size)
            self.lent[segment.serial] = segment
            self.lent_bytes += segment.size
        return segment

    def give(self, serial: int) -> None:
        """The borrower returns the segment."""
        with self.lock:
            segment = self.lent.pop(serial, None)
            if segment is None:
                return
            self.lent_bytes -= segment.size
            self.idle.append(segment)
            while sum(s.size for s in self.idle) > KEEP or len(self.idle) > 64:
                self.dropped(self.idle.pop(0).serial)

    def pack(self, data: numpy.ndarray) -> tuple[Segment, int, list[int]]:
        """Copy an array into a segment of its own or, a small one, into the arena. Gives the segment, the offset, and which
        segments will not be written again before they are given back."""
        if data.nbytes > SMALL:
            segment = self.take(data.nbytes)
            self.copier.copy(segment.view(0, data.nbytes), data)
            return segment, 0, [segment.serial]
        full = []
        if self.arena is None or self.used + data.nbytes > self.arena.size:
            full = [self.arena.serial] if self.arena else []
            self.arena, self.used = self.take(ARENA), 0
        at = self.used
        self.arena.map[at : at + data.nbytes] = data.data  # an array over the segment would take longer to make than to fill
        self.used += -(-data.nbytes // 64) * 64
        return self.arena, at, full

    def close(self) -> None:
        """Close all segments; the kernel frees each when no peer maps it."""
        with self.lock:
            self.lent.clear()
            self.lent_bytes = 0
            self.idle.clear()
            self.arena = None

    def all_lent(self) -> list[Segment]:
        with self.lock:
            return list(self.lent.values())

    def outstanding(self) -> int:
        """Bytes lent."""
        return self.lent_bytes
