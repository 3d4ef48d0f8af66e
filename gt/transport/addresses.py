"""Where things listen, and how to reach them: by IPC on one host, by TCP between hosts."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable

from gt.errors import ConnectionFailed

LOOPBACK = ("localhost", "127.0.0.1", "::1", "")


def host_name() -> str:
    return socket.gethostname()


def on_this_host(address: str) -> bool:
    """Whether an address is local for sure. (One of this host's own that others could use, too, does not count.)"""
    host = address.removeprefix("tcp://").rpartition(":")[0]
    return not address.startswith("tcp://") or host in LOOPBACK or host.startswith("127.")


def from_another_host(fd: int) -> bool:
    """Whether a connection comes from elsewhere."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as copy:  # it may have ended meanwhile
        return copy.family in (socket.AF_INET, socket.AF_INET6) and not copy.getpeername()[0].startswith(("127.", "::1"))
    return False


def ipc_address(name: str) -> str:
    """A local address. On Linux it lies in the abstract namespace: no file is left behind."""
    if sys.platform == "linux":
        return f"ipc://@gt-{name}"
    import tempfile

    return f"ipc://{tempfile.gettempdir()}/gt-{name}"


def listens(address: str) -> bool:
    """Whether a local address has a listener."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s, contextlib.suppress(OSError):
        s.connect(_path(address))
        return True
    return False


def close_connections(addresses: list[str]) -> None:
    """In a forked child: close its copies of its parent's connections to these addresses on this host. (Connections to other
    hosts end by time-out, as nobody in the child answers for them.)"""
    names = {_path(a) for a in addresses if a.startswith("ipc://")}
    ports = {int(a.rpartition(":")[2]) for a in addresses if a.startswith("tcp://")}
    with contextlib.suppress(OSError):
        for fd in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):  # no socket, or not connected
                if _leads_to(fd, names, ports):
                    os.close(fd)


def _path(address: str) -> str | bytes:
    """A local address as sockets name it."""
    path = address.removeprefix("ipc://")
    return b"\0" + path[1:].encode() if path.startswith("@") else path


def _leads_to(fd: int, names: set[str | bytes], ports: set[int]) -> bool:
    with socket.socket(fileno=os.dup(fd)) as copy:
        peer = copy.getpeername()
        if copy.family == socket.AF_UNIX:
            return peer in names
        return copy.family == socket.AF_INET and peer[0].startswith("127.") and peer[1] in ports


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


def check_host(address: str) -> None:
    """Raise a ConnectionFailed where the name of a TCP address's host means nothing: a wrong name is not a server that is
    down."""
    if address.startswith("tcp://"):
        host = address.removeprefix("tcp://").rpartition(":")[0]
        try:
            socket.getaddrinfo(host, None, socket.AF_INET)
        except (socket.gaierror, UnicodeError) as unknown:
            why = unknown.strerror if isinstance(unknown, socket.gaierror) else "no such name can be"
            raise ConnectionFailed(f"unknown host {host!r} (of {address}): {why}. Is its name spelled right?") from None


def own_address(towards: str) -> str:
    """This host's IP address as seen from another one."""
    host = towards.removeprefix("tcp://").rpartition(":")[0]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect((host, 9))
        return s.getsockname()[0]
