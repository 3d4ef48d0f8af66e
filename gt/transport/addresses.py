"""Where things listen, and how to reach them: by IPC on one host, by TCP between hosts."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Callable

LOOPBACK = ("localhost", "127.0.0.1", "::1", "")


def host_name() -> str:
    return socket.gethostname()


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
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s, contextlib.suppress(OSError):
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
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect((host, 9))
        return s.getsockname()[0]
