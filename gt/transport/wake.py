"""Wake-ups of a polling thread: at once by another thread, or after a delay by the kernel."""

from __future__ import annotations

import contextlib
import ctypes
import os


class Waker:
    """Wakes a poll from another thread."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK) if hasattr(os, "eventfd") else -1
        self.write = self.fd
        if self.fd < 0:
            self.fd, self.write = os.pipe()

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self.write, b"\1\0\0\0\0\0\0\0")

    def clear(self) -> None:
        with contextlib.suppress(OSError):
            os.read(self.fd, 8)

    def close(self) -> None:
        for fd in {self.fd, self.write}:
            os.close(fd)


class WakeTimer:
    """Wakes a poll after a delay, unless cancelled: the user's thread sets it with the first instruction of a burst and cancels
    it when it sends by itself, so that the receiving thread wakes only when the user's thread pauses. A kernel timer, as a
    wake-up through Python would take the interpreter from the user's thread each time."""

    IDLE = 1e-3  # seconds without a read or a full buffer that count as a pause

    def __init__(self, seconds: float = IDLE) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        clock_monotonic, nonblock_cloexec = 1, 0o2004000
        self.fd: int = libc.timerfd_create(clock_monotonic, nonblock_cloexec)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._set = libc.timerfd_settime
        self._set.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        self._soon = (ctypes.c_long * 4)(0, 0, 0, int(seconds * 1e9))
        self._never = (ctypes.c_long * 4)(0, 0, 0, 0)

    def set(self) -> None:
        self._set(self.fd, 0, self._soon, None)

    def off(self) -> None:
        self._set(self.fd, 0, self._never, None)

    def clear(self) -> None:
        with contextlib.suppress(OSError):
            os.read(self.fd, 8)

    def close(self) -> None:
        os.close(self.fd)


class NoWaker:
    """Wakes no thread: replaces the wake-ups of the parent in a forked child, as both share their descriptors."""

    fd = -1

    def wake(self) -> None: ...
    def clear(self) -> None: ...
    def set(self) -> None: ...
    def off(self) -> None: ...
    def close(self) -> None: ...


class ImmediateTimer:
    """For kernels without timer descriptors: wakes at once."""

    def __init__(self) -> None:
        self.waker = Waker()
        self.fd, self.set, self.clear, self.close = self.waker.fd, self.waker.wake, self.waker.clear, self.waker.close

    def off(self) -> None:
        pass
