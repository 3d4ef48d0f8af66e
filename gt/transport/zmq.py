"""Sockets: how they are made, addresses, and a client's link to a dispatcher and its workers. ROUTER sockets learn of a
peer's end from the connection itself, so a killed process is noticed at once and a busy one never mistaken for dead."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import socket as plain
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import zmq

from gt.errors import ConnectionFailed, ProtocolError
from gt.transport import shm
from gt.transport.auth import reach
from gt.transport.messages import VERSION, Attach, Attached, Bye, Hello, Mail, Peers, Release, Welcome, decode, encode
from gt.transport.trace import See

LOOPBACK = ("localhost", "127.0.0.1", "::1", "")


def open_socket(kind: int, identity: bytes | None = None) -> zmq.Socket:
    """A socket that never delays an exit, never drops what it has taken, and notices a silent peer."""
    socket: zmq.Socket = zmq.Context.instance().socket(kind)
    socket.linger = 0
    socket.set_hwm(0)  # what is under way is bounded by the session, not by dropping
    socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 10000)
    if identity is not None:
        socket.setsockopt(zmq.IDENTITY, identity)
    if kind == zmq.ROUTER:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 0)
    return socket


def host_name() -> str:
    return plain.gethostname()


def ipc_address(name: str) -> str:
    """A local address. On Linux it lies in the abstract namespace: no file is left behind."""
    if sys.platform == "linux":
        return f"ipc://@gt-{name}"
    import tempfile

    return f"ipc://{tempfile.gettempdir()}/gt-{name}"


def listens(address: str) -> bool:
    """Whether a local address has a listener."""
    path = address.removeprefix("ipc://")
    path = "\0" + path[1:] if path.startswith("@") else path
    with plain.socket(plain.AF_UNIX, plain.SOCK_STREAM) as s, contextlib.suppress(OSError):
        s.connect(path)
        return True
    return False


def nearest(address: str) -> str:
    """Where a worker is reached: by IPC if it listens within reach, whatever hosts call themselves, else by TCP."""
    local, _, remote = address.partition("|")
    return local if not remote or listens(local) else remote


def await_listener(address: str, starting: Callable[[], bool], timeout: float) -> bool:
    """Whether a local address gets a listener in time, while whoever is to listen there is still `starting`."""
    deadline = time.monotonic() + timeout
    while not listens(address):
        if not starting() or time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def address_of(server: str) -> str:
    """Where `host:port` is reached: by IPC on this host, by TCP elsewhere. A full address stays as it is."""
    if "://" in server:
        return server
    host, _, port = server.rpartition(":")
    if not port.isdigit():
        raise ValueError(f"cannot connect to {server!r}: want host:port")
    if host in LOOPBACK and listens(ipc_address(port)):
        return ipc_address(port)
    return f"tcp://{host or 'localhost'}:{port}"


def own_address(towards: str) -> str:
    """This host's IP address as seen from another one."""
    host = towards.removeprefix("tcp://").rpartition(":")[0]
    with plain.socket(plain.AF_INET, plain.SOCK_DGRAM) as s:
        s.connect((host, 9))
        return s.getsockname()[0]


REFUSED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)  # fmt: skip


class Ends:
    """Tells of connections that end, from a socket's monitor."""

    def __init__(self, socket: zmq.Socket) -> None:
        self.of = socket
        self.socket = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | REFUSED)

    def drain(self) -> list[int]:
        """Descriptors whose connections have ended since the last call."""
        ended = []
        while self.socket.poll(0):
            event, value = self._next()
            if event == zmq.EVENT_DISCONNECTED:
                ended.append(value)
        return ended

    def _next(self) -> tuple[int, int]:
        """An event and its value. (pyzmq's own reader of these would load asyncio, which costs each process 20 ms.)"""
        event, value = struct.unpack("=Hi", self.socket.recv_multipart()[0])
        return event, value

    def refused(self) -> bool:
        """Whether whoever is there broke off before a word was exchanged."""
        seen = 0
        while self.socket.poll(0):
            seen |= self._next()[0]
        return bool(seen)

    def close(self) -> None:
        self.of.disable_monitor()
        self.socket.close(0)


def first_word(socket: zmq.Socket, ends: Ends, address: str, timeout: float) -> bytes:
    """What the dispatcher answers to a greeting, or a ConnectionFailed that says what may be wrong."""
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(ends.socket, zmq.POLLIN)
    ready = dict(poller.poll(int(timeout * 1000)))
    if socket in ready:
        return socket.recv()
    if ends.socket in ready and ends.refused():
        raise ConnectionFailed(f"what listens at {address} broke off: is it a gt-server, and is the key (GT_KEY) its own?")
    raise ConnectionFailed(f"no dispatcher answered at {address} within {timeout:g} s: is `gt-server` running there?")


class Bell:
    """Wakes a poll from another thread."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK) if hasattr(os, "eventfd") else -1
        self.write = self.fd
        if self.fd < 0:
            self.fd, self.write = os.pipe()

    def ring(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self.write, b"\1\0\0\0\0\0\0\0")

    def hush(self) -> None:
        with contextlib.suppress(OSError):
            os.read(self.fd, 8)

    def close(self) -> None:
        for fd in {self.fd, self.write}:
            os.close(fd)


class Alarm:
    """Wakes a poll a moment from now, unless it is called off: the user's thread sets it with the first instruction of a
    burst and calls it off when it sends by itself, so that the receiving thread wakes only when the user's pauses. Kept by
    the kernel, as a wake-up through Python would take the interpreter from the user's thread each time."""

    IDLE = 200_000  # nanoseconds without a read or a full buffer that count as a pause

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        clock_monotonic, nonblock_cloexec = 1, 0o2004000
        self.fd: int = libc.timerfd_create(clock_monotonic, nonblock_cloexec)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._set = libc.timerfd_settime
        self._set.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        self._soon = (ctypes.c_long * 4)(0, 0, 0, self.IDLE)
        self._never = (ctypes.c_long * 4)(0, 0, 0, 0)

    def set(self) -> None:
        self._set(self.fd, 0, self._soon, None)

    def off(self) -> None:
        self._set(self.fd, 0, self._never, None)

    def hush(self) -> None:
        with contextlib.suppress(OSError):
            os.read(self.fd, 8)

    def close(self) -> None:
        os.close(self.fd)


class _Now:
    """Where the kernel has no such timers: wakes at once."""

    def __init__(self) -> None:
        self.bell = Bell()
        self.fd, self.set, self.hush, self.close = self.bell.fd, self.bell.ring, self.bell.hush, self.bell.close

    def off(self) -> None:
        pass


class ZmqLink:
    """A session's link. Any thread sends, through a socket that only sends; one thread of its own receives, sends what was
    left in the buffer when the user's thread pauses, and answers the workers."""

    def __init__(self, address: str, key: str = "", timeout: float = 5.0, see: See | None = None) -> None:
        self.address, self.key, self.see = address, key, see
        self.name = secrets.token_hex(12)
        self.inbox = open_socket(zmq.DEALER, self.name.encode())
        self.outbox = open_socket(zmq.DEALER, self.name.encode() + b">")
        self.bell = Bell()
        self.alarm: Alarm | _Now = Alarm() if sys.platform == "linux" else _Now()
        self.session: Any = None
        self.data: dict[str, zmq.Socket] = {}  # by worker's name
        self.indices: dict[int, str] = {}
        self.sharing: dict[str, bool] = {}
        self.lenders: dict[str, int] = {}  # pids of workers that lent memory
        self.attached = threading.Condition()
        self.posts: deque[tuple[str, Any, tuple]] = deque()  # for workers, sent by the receiving thread
        self.pool, self.borrowed = shm.Pool(), shm.Borrowed()
        self.placed: list[int] = []  # segments named by the batch that is being filled, and by those under way
        self.lent: deque[tuple[int, list[int]]] = deque()
        self.token = secrets.token_bytes(16)
        self.probe = shm.Segment(4096) if shm.supported() else None
        if self.probe:
            self.probe.map[: len(self.token)] = self.token
        self.closed = False
        self.ends = Ends(self.inbox)
        reach(self.inbox, address, key)
        reach(self.outbox, address, key)
        self.inbox.send(encode(Hello(VERSION, key, host_name(), os.getpid())))
        try:
            self.welcome = self._welcomed(timeout)
        except BaseException:
            self._close_sockets()
            raise

    def _welcomed(self, timeout: float) -> Welcome:
        match decode(first_word(self.inbox, self.ends, self.address, timeout)):
            case Welcome() as welcome:
                return welcome
            case Bye(why):
                raise ConnectionFailed(f"the dispatcher at {self.address} {why}")
        raise ConnectionFailed(f"what answered at {self.address} is not a dispatcher of this version")

    def start(self, session: Any) -> None:
        self.session = session
        self._meet(self.welcome.workers)
        self.thread = threading.Thread(target=self._receive, name="gt-link", daemon=True)
        self.thread.start()

    # Called by any thread

    def send(self, message: Any) -> None:
        """The session's lock makes senders take turns."""
        if not self.closed:
            self.alarm.off()
            if self.see is not None:
                self.see("->", message)
            self.outbox.send(encode(message))

    def send_to(self, worker: int, message: Any, frames: tuple = ()) -> None:
        self.posts.append((self.indices.get(worker, ""), message, frames))
        self.bell.ring()

    def wake(self) -> None:
        self.alarm.set()

    def wait(self, reply: Any, timeout: float | None) -> None:
        while not reply.wait(1.0 if timeout is None else timeout) and timeout is None:
            self.session.tell()  # what keeps it waiting is said while it waits

    @property
    def shares(self) -> bool:
        """Known once a worker is there; until then this waits."""
        if not self.sharing or len(self.sharing) < len(self.data):
            with self.attached:
                self.attached.wait_for(lambda: self.closed or self.session.lost or self._met(), 60)
        return bool(self.sharing) and all(self.sharing.values())

    def _met(self) -> bool:
        return bool(self.data) and len(self.sharing) == len(self.data)

    def place(self, data: np.ndarray) -> tuple[int, int, int]:
        place, sealed = self.pool.pack(data)
        self.placed += sealed
        return place

    def outstanding(self) -> int:
        return self.pool.outstanding()

    def sealed(self, serial: int) -> bool:
        if not self.placed:
            return False
        self.lent.append((serial, self.placed))
        self.placed = []
        return True

    def executed(self, serial: int) -> None:
        while self.lent and self.lent[0][0] <= serial:
            for fd in self.lent.popleft()[1]:
                self.pool.give(fd)

    def view(self, pid: int, place: tuple[int, int, int], nbytes: int, worker: str) -> np.ndarray:
        def release() -> None:
            self.posts.append((worker, Release(place[0]), ()))
            self.bell.ring()

        self.lenders[worker] = pid
        if nbytes >= shm.LEND:
            return self.borrowed.view(pid, place, nbytes, release)
        copy = self.borrowed.view(pid, place, nbytes).copy()
        release()
        return copy

    def give_up(self, why: str) -> None:
        """Nothing more will come: everyone who waits is told."""
        self.session.lose(why)
        with self.attached:
            self.attached.notify_all()

    # The receiving thread

    def _receive(self) -> None:
        poller = zmq.Poller()
        for source in (self.inbox, self.ends.socket, self.bell.fd, self.alarm.fd):
            poller.register(source, zmq.POLLIN)
        known: dict[str, zmq.Socket] = {}
        while not self.closed:
            if known != self.data:
                for _, socket in known.items() - self.data.items():
                    poller.unregister(socket)
                    socket.close(0)
                for _, socket in self.data.items() - known.items():
                    poller.register(socket, zmq.POLLIN)
                known = dict(self.data)
            ready = dict(poller.poll())
            if self.alarm.fd in ready:
                self.alarm.hush()
                self.session.paused()
            if self.bell.fd in ready:
                self.bell.hush()
                self._post()
            for name, socket in known.items():
                if socket in ready:
                    self._drain(socket, name)
            if self.inbox in ready:
                self._drain(self.inbox, "")
            if self.ends.socket in ready and self.ends.drain():
                self.give_up(f"the dispatcher at {self.address} went away")
                poller.unregister(self.ends.socket)
        self._close_sockets()

    def _drain(self, socket: zmq.Socket, name: str) -> None:
        for _ in range(64):
            try:
                head, *frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            try:
                message = decode(head.buffer)
            except ProtocolError:
                continue
            if self.see is not None:
                self.see("<-", message)
            match message:
                case Attached(_, shares):
                    with self.attached:
                        self.sharing[name] = shares
                        self.attached.notify_all()
                case Peers(workers):
                    self._meet(workers)
                    self.session.handle(Mail(name, message))
                case Bye(why):
                    self.session.lose(f"the dispatcher {why}")
                case _:
                    self.session.handle(Mail(name, message, tuple(f.buffer for f in frames)))

    def _meet(self, workers: tuple) -> None:
        """Connect to workers that are new, and forget those that are gone."""
        names = {w.name for w in workers}
        for gone in self.data.keys() - names:
            self.sharing.pop(gone, None)
            self.borrowed.forget(self.lenders.pop(gone, -1))
            self.data.pop(gone)  # the receiving thread closes it
        self.indices = {w.index: w.name for w in workers}
        for worker in workers:
            if worker.name in self.data:
                continue
            socket = open_socket(zmq.DEALER, self.name.encode())
            try:
                reach(socket, nearest(worker.address), self.key)
            except zmq.ZMQError:  # no address of this host's kind; what lies there cannot be read from here
                socket.close(0)
                continue
            pid, fd = (os.getpid(), self.probe.fd) if self.probe else (0, -1)
            socket.send(encode(Attach(self.name, pid, fd, self.token)))
            self.data[worker.name] = socket

    def _post(self) -> None:
        while self.posts:
            name, message, frames = self.posts.popleft()
            if name in self.data:
                self.data[name].send_multipart([encode(message), *frames])

    def close(self) -> None:
        if not self.closed:
            with contextlib.suppress(zmq.ZMQError):
                self.outbox.send(encode(Bye()), zmq.NOBLOCK)
            self.closed = True
            self.bell.ring()
            if threading.current_thread() is not self.thread:
                self.thread.join(2)

    def _close_sockets(self) -> None:
        self.ends.close()
        for socket in (self.inbox, self.outbox, *self.data.values()):
            socket.close(100)  # long enough for a last word on one host
        self.bell.close()
        self.alarm.close()
        self.pool.close()
        self.borrowed.maps.clear()
        self.probe = None
