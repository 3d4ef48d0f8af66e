"""Clients' segments of shared memory, locked for the device, which then copies a batch out of them itself. Bytes of other
memory are copied into a buffer of the driver first."""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections import Counter

import torch

from gt.transport.shm import ARENA, byte_array

LOCKED = 1 << 30  # most bytes that a worker locks


class PinnedMap(mmap.mmap):
    """A mapping that is unlocked before it is unmapped."""

    locked: tuple[PinnedMaps, int] | None = None  # the address

    def __del__(self) -> None:
        if self.locked is not None and not sys.is_finalizing():  # the process ends, and its locks with it
            maps, address = self.locked
            maps.unlock(address, len(self))


class PinnedMaps:
    """`counts` has the segments of large tensors: locked ones, and others, past the limit or refused by the system, from which
    the driver copies."""

    def __init__(self, at: torch.device) -> None:
        self.at, self.left, self.allowed = at, LOCKED, True
        self.counts: Counter[str] = Counter()

    def __call__(self, descriptor: int, length: int) -> mmap.mmap:
        """Map a segment. Those of small tensors are not locked: a copy of these is not waited for, and has to be out of the
        segment when it was begun."""
        made = PinnedMap(descriptor, length)
        if length > ARENA:
            address = int(byte_array(made).ctypes.data)
            way = self._lock(address, length)
            self.counts[way] += 1
            made.locked = (self, address) if way == "locked" else None
        return made

    def _lock(self, address: int, length: int) -> str:
        """Lock a segment if there is room for it; returns its name in `counts`."""
        if not self.allowed:
            return "refused"
        if length > self.left:
            return "past the limit"
        if int(torch.cuda.cudart().cudaHostRegister(address, length, 0)) == 0:
            self.left -= length
            return "locked"
        self.allowed = False  # the system is not asked again
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self.at)  # CUDA reports the error at the next launch
        return "refused"

    def unlock(self, address: int, length: int) -> None:
        self.left += length
        torch.cuda.cudart().cudaHostUnregister(address)
