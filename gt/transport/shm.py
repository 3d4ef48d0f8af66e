"""Bulk bytes between processes of one host, through anonymous memory files. A peer opens them as /proc/PID/fd/FD, so there
is no name to leave behind, no size limit of a mounted filesystem, and they end with the processes that hold them."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from itertools import count

import numpy as np

LEND = 16 << 20  # pieces of this size are lent as they lie; smaller ones are copied out, so that few segments are in use
KEEP = 1 << 30  # bytes of idle segments a pool keeps for the next transfer, their pages already there
ARENA = 1 << 20
SMALL = 64 << 10

Place = tuple[int, int, int]  # descriptor, serial number of the segment, offset


def supported() -> bool:
    return hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")


class Segment:
    """A memory file of this process."""

    __slots__ = ("fd", "serial", "size", "map", "__weakref__")
    _serials = count(1)

    def __init__(self, size: int) -> None:
        self.size, self.serial = size, next(self._serials)
        self.fd = os.memfd_create("gt", getattr(os, "MFD_CLOEXEC", 1))
        os.ftruncate(self.fd, size)
        self.map = mmap.mmap(self.fd, size)
        weakref.finalize(self, os.close, self.fd)

    def view(self, offset: int, nbytes: int) -> np.ndarray:
        return np.frombuffer(self.map, np.uint8, nbytes, offset)


class Pool:
    """Segments this process lends out: large ones one a tensor, small tensors packed into arenas."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lent: dict[int, Segment] = {}
        self.idle: list[Segment] = []
        self.arena: Segment | None = None
        self.used = 0

    def take(self, nbytes: int) -> Segment:
        """A segment of at least this size, lent until `give`."""
        size = max(SMALL, 1 << (nbytes - 1).bit_length()) if nbytes < LEND else -(-nbytes // (1 << 20)) << 20
        with self.lock:
            fitting = [s for s in self.idle if size <= s.size <= 2 * size]
            segment = min(fitting, key=lambda s: s.size, default=None)
            if segment:
                self.idle.remove(segment)
            else:
                segment = Segment(size)
            self.lent[segment.fd] = segment
        return segment

    def give(self, fd: int) -> None:
        """The borrower is done with the segment."""
        with self.lock:
            segment = self.lent.pop(fd, None)
            if segment is None:
                return
            self.idle.append(segment)
            while sum(s.size for s in self.idle) > KEEP or len(self.idle) > 64:
                self.idle.pop(0)

    def pack(self, data: np.ndarray) -> tuple[Place, list[int]]:
        """Copy an array into a segment of its own or, a small one, into the arena. Gives its place, and which segments
        will not be written again before they are given back."""
        if data.nbytes > SMALL:
            segment = self.take(data.nbytes)
            np.copyto(segment.view(0, data.nbytes), data)
            return (segment.fd, segment.serial, 0), [segment.fd]
        full = []
        if self.arena is None or self.used + data.nbytes > self.arena.size:
            full = [self.arena.fd] if self.arena else []
            self.arena, self.used = self.take(ARENA), 0
        place = (self.arena.fd, self.arena.serial, self.used)
        self.arena.view(self.used, data.nbytes)[:] = data
        self.used += -(-data.nbytes // 64) * 64
        return place, full

    def close(self) -> None:
        """Let go of every segment; the kernel frees those that no peer looks at."""
        with self.lock:
            self.lent.clear()
            self.idle.clear()
            self.arena = None

    def outstanding(self) -> int:
        """Bytes lent."""
        with self.lock:
            return sum(s.size for s in self.lent.values())


class Borrowed:
    """Segments of other processes, mapped once each."""

    def __init__(self) -> None:
        self.maps: dict[tuple[int, int], mmap.mmap] = {}

    def view(self, pid: int, place: Place, nbytes: int, release: Callable[[], None] | None = None) -> np.ndarray:
        """The bytes at a place. With `release`, that is called when nothing looks at them any more."""
        fd, serial, offset = place
        mapped = self.maps.get((pid, serial))
        if mapped is None:
            mapped = open_segment(pid, fd)
            self.maps[pid, serial] = mapped
            if len(self.maps) > 128:  # an evicted map stays valid for the arrays that still look at it
                self.maps.pop(next(iter(self.maps)))
        if release is None:
            return np.frombuffer(mapped, np.uint8, nbytes, offset)
        # What is watched must not be an array: NumPy lets a view of a view refer to the first owner, past those between.
        loan = (ctypes.c_ubyte * nbytes).from_buffer(mapped, offset)
        weakref.finalize(loan, release).atexit = False
        return np.frombuffer(memoryview(loan), np.uint8)

    def forget(self, pid: int) -> None:
        """That process is gone: let go of its memory, as far as nothing looks at it."""
        for key in [k for k in self.maps if k[0] == pid]:
            del self.maps[key]


def open_segment(pid: int, fd: int) -> mmap.mmap:
    mine = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(mine, os.fstat(mine).st_size)
    finally:
        os.close(mine)


def can_read(pid: int, fd: int, token: bytes) -> bool:
    """Whether that process's memory file is within reach and holds this token."""
    try:
        with open_segment(pid, fd) as mapped:
            return bool(token) and mapped[: len(token)] == token
    except (OSError, ValueError):
        return False
