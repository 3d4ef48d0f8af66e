"""Pipes and memory reads between processes of one host and one user. The kernel decides whether they are permitted, so both are
tried before use."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import stat
import struct
import sys
import threading

WORD = struct.Struct("=Qqqq")  # group, number of the meeting, member, and its address
WORDS = 1 << 12  # most meetings whose words are kept
BROKEN_OFF = -1  # in place of an address: the member has given up


class _Piece(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


if sys.platform == "linux":
    _libc = ctypes.CDLL(None, use_errno=True)
    _readv = getattr(_libc, "process_vm_readv", None)
else:
    _readv = None
if _readv is not None:
    _readv.restype = ctypes.c_ssize_t
    _readv.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]


def supported() -> bool:
    return _readv is not None and os.path.isdir("/proc/self/fd")


def read(pid: int, to: int, at: int, nbytes: int) -> None:
    """Copy bytes of another process to an address of this process."""
    while nbytes > 0:
        mine, its = _Piece(to, nbytes), _Piece(at, nbytes)
        got = _readv(pid, ctypes.byref(mine), 1, ctypes.byref(its), 1, 0)  # type: ignore[misc]
        if got <= 0:
            error = ctypes.get_errno()
            raise OSError(error, f"cannot read {nbytes} bytes of process {pid}: {os.strerror(error)}")
        to, at, nbytes = to + got, at + got, nbytes - got


class Inbox:
    """A process's pipe, to which other processes write; the words received by it; and the processes that this one can reach."""

    def __init__(self) -> None:
        self.fd, self.door = os.pipe()
        os.set_blocking(self.fd, False)
        self.secret = ctypes.create_string_buffer(secrets.token_bytes(16), 16)
        self.words: dict[tuple[int, int], dict[int, int]] = {}  # by group and meeting, the word of each member
        self.reached: dict[str, PeerProcess] = {}  # by offer
        self.lock = threading.Lock()  # groups are built in several threads

    def offer(self) -> str:
        """The text by which other processes reach this one."""
        _let_read()
        return f"{os.getpid()} {self.door} {ctypes.addressof(self.secret)} {self.secret.raw.hex()}"

    def reach(self, offer: str) -> PeerProcess:
        """The process that made this offer. Raises OSError if it cannot be reached."""
        with self.lock:
            if offer not in self.reached:
                self.reached[offer] = PeerProcess(offer)
            return self.reached[offer]

    def keep(self, offers: set[str]) -> None:
        """Keep the processes of these offers and close all others."""
        with self.lock:
            for offer in self.reached.keys() - offers:
                self.reached.pop(offer).close()

    def drain(self) -> None:
        """Read all received words. Words are written whole, so they are read whole."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.fd, WORD.size << 10):
                for group, meeting, who, what in WORD.iter_unpack(data):
                    self.words.setdefault((group, meeting), {})[who] = what
        while len(self.words) > WORDS:  # those of groups that ended before their last words came
            del self.words[next(iter(self.words))]

    def forget(self, group: int, until: int) -> None:
        """Forget the words of a group's meetings up to this one."""
        for key in [k for k in self.words if k[0] == group and k[1] <= until]:
            del self.words[key]

    def close(self) -> None:
        self.keep(set())
        os.close(self.fd)
        os.close(self.door)


class PeerProcess:
    """A process whose memory this one can read and whose pipe it can write to. Raises OSError otherwise."""

    def __init__(self, offer: str) -> None:
        pid, door, address, secret = offer.split()
        self.pid = int(pid)
        found = ctypes.create_string_buffer(len(secret) // 2)
        read(self.pid, ctypes.addressof(found), int(address), len(found))
        if found.raw.hex() != secret:
            raise OSError(f"process {pid} is not the worker that was offered: its memory does not hold the secret")
        mode = os.stat(f"/proc/{pid}/fd/{door}").st_mode
        if not stat.S_ISFIFO(mode):  # words must not be written to a file or a device
            raise OSError(f"descriptor {door} of process {pid} is not a pipe")
        self.fd = os.open(f"/proc/{pid}/fd/{door}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def tell(self, group: int, meeting: int, who: int, what: int) -> None:
        os.write(self.fd, WORD.pack(group, meeting, who, what))

    def read(self, to: int, at: int, nbytes: int) -> None:
        read(self.pid, to, at, nbytes)

    def close(self) -> None:
        os.close(self.fd)
        self.fd = -1  # a later write fails, and does not reach another file


def _let_read() -> None:
    """Let other processes of this user read this one's memory where Yama permits only parents to."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/yama/ptrace_scope") as scope:
        if scope.read().strip() == "1":
            set_ptracer, anyone = 0x59616D61, ctypes.c_ulong(-1)
            _libc.prctl(set_ptracer, anyone, 0, 0, 0)
