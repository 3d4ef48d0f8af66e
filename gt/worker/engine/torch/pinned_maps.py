"""Clients' segments of shared memory, locked for the device, which then copies a batch out of them itself. Bytes of other
memory are copied into a buffer of the driver first."""

from __future__ import annotations

import contextlib
import mmap
import sys

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
    def __init__(self, at: torch.device) -> None:
        self.at, self.left = at, LOCKED

    def __call__(self, descriptor: int, length: int) -> mmap.mmap:
        """Map a segment. Those of small tensors are not locked: a copy of these is not waited for, and has to be out of the
        segment when it was begun."""
        made = PinnedMap(descriptor, length)
        if ARENA < length <= self.left:
            address = int(byte_array(made).ctypes.data)
            if self._lock(address, length):
                made.locked = (self, address)
        return made

    def _lock(self, address: int, length: int) -> bool:
        if int(torch.cuda.cudart().cudaHostRegister(address, length, 0)) == 0:
            self.left -= length
            return True
        self.left = 0  # this system does not allow it
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self.at)  # CUDA reports the error at the next launch
        return False

    def unlock(self, address: int, length: int) -> None:
        self.left += length
        torch.cuda.cudart().cudaHostUnregister(address)
