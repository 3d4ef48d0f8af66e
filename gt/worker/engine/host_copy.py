"""Copies of a device's buffers outside its memory. If the device is the CPU, they are in unnamed files, which the OS writes to
disk when memory is scarce and which do not count towards a process's data segment."""

from __future__ import annotations

import mmap
import tempfile
from typing import Any, Protocol

import numpy as np
import psutil

Array = Any


class HostCopy(Protocol):
    """A moved buffer with all its arrays."""

    nbytes: int
    arrays: list[Array]  # over the copy, in the given order; for reads, not for kernels

    def back(self) -> list[Array]:
        """The same arrays on the device, in one buffer as before."""


def in_file(data: memoryview) -> mmap.mmap:
    """These bytes in a file that is deleted with the object. Raises OSError if the disk is full."""
    with tempfile.TemporaryFile(prefix="gt-idle-", buffering=0) as file:
        left = data
        while left.nbytes:  # write instead of mmap and copy: a full disk is an error here, not a signal
            left = left[file.write(left) :]
        return mmap.mmap(file.fileno(), data.nbytes)


class NumPyCopy:
    """NumPy's arrays over one base."""

    @staticmethod
    def of(arrays: list[Any]) -> NumPyCopy | None:
        """None if the base is not a plain block of memory."""
        base = arrays[0]
        while isinstance(base.base, np.ndarray):
            base = base.base
        plain = isinstance(base, np.ndarray) and (base.flags.c_contiguous or base.flags.f_contiguous)
        return NumPyCopy(base, arrays) if plain else None

    def __init__(self, base: np.ndarray, arrays: list[Any]) -> None:
        block = (base if base.flags.c_contiguous else base.T).reshape(-1).view(np.uint8)
        first = base.__array_interface__["data"][0]
        self.nbytes = block.nbytes
        self.forms = [(a.shape, a.dtype, a.__array_interface__["data"][0] - first, a.strides) for a in arrays]
        self.file = in_file(block.data)
        self.arrays = self._over(np.frombuffer(self.file, np.uint8))

    def _over(self, block: np.ndarray) -> list[np.ndarray]:
        return [np.ndarray(shape, dtype, block, offset, strides) for shape, dtype, offset, strides in self.forms]

    def back(self) -> list[np.ndarray]:
        return self._over(np.frombuffer(self.file, np.uint8).copy())


def host_share(engine: Any) -> int:
    """The default bytes of host memory for offloaded buffers: half of the host's memory, divided by the number of the engine's
    devices, each of which may have a worker."""
    return psutil.virtual_memory().total // 2 // engine.devices()
