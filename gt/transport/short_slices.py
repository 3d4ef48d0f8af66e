"""Short time slices for a thread that relays others' messages. On a busy core Linux (6.12 and later) gives a thread that wakes
up the core at once if its slice is shorter than that of the running one; else it waits for the end of the other's slice, some
milliseconds. The thread's share of the core stays the same. Other systems are left as they are."""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
from typing import NamedTuple

SLICE = 100_000  # nanoseconds, the least that Linux grants
ATTRIBUTES = struct.Struct("IIQiIQQQ")  # sched_attr: size, policy, flags, nice, priority, runtime, deadline, period
SIZE, FLAGS, RUNTIME = 0, 2, 5  # of these
RESET_ON_FORK = 1  # a flag: threads and processes that it starts have slices of the usual length


class Calls(NamedTuple):
    """The numbers of sched_setattr and sched_getattr, which the C library may not have."""

    set: int
    get: int


CALLS = {"x86_64": Calls(314, 315), "aarch64": Calls(274, 275)}


def slice_length() -> int:
    """The slice of the calling thread in nanoseconds; 0 if the system has no slice for each thread."""
    return attributes[RUNTIME] if (attributes := _attributes()) is not None else 0


def take_short_slices() -> bool:
    """Ask for short slices for the calling thread. Returns whether it has them."""
    attributes = _attributes()
    if attributes is None or not attributes[RUNTIME]:
        return False
    attributes[SIZE], attributes[RUNTIME] = ATTRIBUTES.size, SLICE
    attributes[FLAGS] |= RESET_ON_FORK
    ctypes.CDLL(None).syscall(CALLS[platform.machine()].set, 0, ATTRIBUTES.pack(*attributes), 0)
    return slice_length() == SLICE


def _attributes() -> list[int] | None:
    """The calling thread's scheduling attributes, where the calls that read and set them are known."""
    calls = CALLS.get(platform.machine())
    if sys.platform != "linux" or sys.maxsize < 1 << 32 or calls is None:
        return None
    found = ctypes.create_string_buffer(ATTRIBUTES.size)
    failed = ctypes.CDLL(None).syscall(calls.get, 0, found, ATTRIBUTES.size, 0)
    return None if failed else list(ATTRIBUTES.unpack(found.raw))
