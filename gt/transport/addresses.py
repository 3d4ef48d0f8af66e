"""Addresses of sockets: Unix sockets between processes of one user on one host, TCP otherwise."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Callable, Iterator

from gt.errors import ConnectionFailed
from gt.transport.channels import process_of

LONGEST = 72  # bytes of a folder's name, so that the name of a socket in it is within the kernel's limit
STALE = 60.0  # seconds after which a socket that nobody listens at is taken for left behind by a process that was killed
WORKER_KEY = ".worker-key"  # the end of the name of the file with a server's workers' key, after its port
LOOPBACK = ("localhost", "127.0.0.1", "::1", "")
LOCAL = ("127.", "::1", "::ffff:127.")  # how addresses of connections within a host begin


def host_name() -> str:
    return socket.gethostname()


def host_key(host: str, remote: str) -> str:
    """The identity of a worker's host: its name and, as containers may share a name, the address at which it is reached."""
    return host if not remote or on_this_host(remote) else f"{host} {remote.removeprefix('tcp://').rpartition(':')[0]}"


def host_and_port(address: str) -> tuple[str, str]:
    """The parts of `host:port` or `tcp://host:port`. An IPv6 address has brackets in the text and none in the result."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host.removeprefix("[").removesuffix("]"), port


def with_port(host: str, port: int | str) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def family(host: str) -> socket.AddressFamily:
    """The IP version of an address, or of the address of a host's name: IPv4 if the name has an IPv4 address."""
    if ":" in host:
        return socket.AF_INET6
    with contextlib.suppress(OSError, UnicodeError):
        found = {each[0] for each in socket.getaddrinfo(host, None)}
        return socket.AF_INET6 if found == {socket.AF_INET6} else socket.AF_INET
    return socket.AF_INET


def on_this_host(address: str) -> bool:
    """Whether an address is certainly local. (An address of this host that other hosts can reach does not count.)"""
    host = host_and_port(address)[0]
    return not address.startswith("tcp://") or host in LOOPBACK or host.startswith("127.")


@contextlib.contextmanager
def copy_of(fd: int) -> Iterator[socket.socket]:
    """A copy of the socket of this descriptor, or itself if no descriptor is left for a copy. Raises OSError if there is none,
    or another file: the number of a connection that has ended may have been given to any file since."""
    try:
        copy = os.dup(fd)
    except OSError as wrong:
        if wrong.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        copy = fd
    try:
        made = socket.socket(fileno=copy)
    except OSError:
        if copy != fd:
            os.close(copy)
        raise
    try:
        yield made
    finally:
        made.close() if copy != fd else made.detach()


def from_another_host(fd: int) -> bool:
    """Whether a connection comes from another host."""
    with contextlib.suppress(OSError), copy_of(fd) as copy:  # the connection may have ended
        return copy.family in (socket.AF_INET, socket.AF_INET6) and not copy.getpeername()[0].startswith(LOCAL)
    return False


def own_folder() -> str:
    """This user's folder for local sockets, which nobody else may enter: in XDG_RUNTIME_DIR, or else /tmp/gt-USER."""
    wrong = ""
    for folder in _folders():
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        wrong = _why_not(folder)
        if not wrong:
            return folder
    raise PermissionError(f"cannot keep local sockets in {wrong}: remove it, or set XDG_RUNTIME_DIR to a folder of mode 700")


def _folders() -> Iterator[str]:
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if given and len(given.encode()) <= LONGEST and not _why_not(given):
        yield f"{given}/gt"
    yield f"/tmp/gt-{os.geteuid()}"


def _why_not(folder: str) -> str:
    """Why a folder is not private to this user; "" if it is."""
    try:
        found = os.lstat(folder)
    except OSError as missing:
        return f"{folder} ({missing.strerror})"
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or mode & 0o077:
        return f"{folder}, which belongs to user {found.st_uid} and has mode {mode:o}"
    return ""


def ipc_address(name: str) -> str:
    """A local address to listen at."""
    return f"ipc://{own_folder()}/{name}"


def in_folders(name: str) -> list[str]:
    """The path of a file that this user's processes share, independent of their environment variables."""
    return [f"{folder}/{name}" for folder in _folders() if not _why_not(folder)]


def local_address(name: str) -> str | None:
    """The local address of a process of this user that listens under this name, independent of its environment variables."""
    return next((f"ipc://{path}" for path in in_folders(name) if listens(f"ipc://{path}")), None)


def listener(address: str) -> int:
    """The process id of the listener at a local address, from the kernel; 0 if no process of this user listens there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s, contextlib.suppress(OSError):
        s.connect(address.removeprefix("ipc://"))
        return process_of(s)
    return 0


def listens(address: str) -> bool:
    """Whether a process of this user listens at a local address."""
    return listener(address) != 0


def close_connections(addresses: list[str]) -> None:
    """In a forked child: close the copies of the parent's connections to these addresses on this host. (Connections to other
    hosts end by time-out, as no thread of the child answers on them.)"""
    names = {a.removeprefix("ipc://") for a in addresses if a.startswith("ipc://")}
    ports = {int(a.rpartition(":")[2]) for a in addresses if a.startswith("tcp://")}
    with contextlib.suppress(OSError):
        for fd in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):  # not a socket, or not connected
                if _leads_to(fd, names, ports):
                    os.close(fd)


def _leads_to(fd: int, names: set[str], ports: set[int]) -> bool:
    with copy_of(fd) as copy:
        peer = copy.getpeername()
        if copy.family == socket.AF_UNIX:
            return peer in names
        return copy.family in (socket.AF_INET, socket.AF_INET6) and peer[0].startswith(LOCAL) and peer[1] in ports


def sweep() -> None:
    """Remove sockets and workers' keys that killed processes of this user have left behind."""
    folder = own_folder()
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):
            owner = f"{folder}/{entry.name.partition('.')[0]}"  # the socket of the process that made this file
            if entry.name.endswith(".store") and not os.path.exists(owner):
                os.unlink(entry.path)  # the meeting point of a group whose first worker has ended
            found = entry.stat(follow_symlinks=False)
            listener = entry.path if stat.S_ISSOCK(found.st_mode) else owner if entry.name.endswith(WORKER_KEY) else ""
            if listener and time.time() - found.st_mtime > STALE and not _alive(listener):
                os.unlink(entry.path)


WORKER_SOCKET = re.compile(r"w-[0-9a-f]{16}")  # the name of a worker's socket; those of its channels and groups begin so


def worker_socket() -> str:
    """A local address for a worker that no other worker has used."""
    return ipc_address(f"w-{secrets.token_hex(8)}")


def remove_worker_socket(address: str) -> bool:
    """Remove the files of a killed worker that listened at this local address; False while a process listens there. The address
    comes from a worker and is not trusted: only names of workers' sockets in this user's own folder are removed."""
    folder, _, name = address.removeprefix("ipc://").rpartition("/")
    if not WORKER_SOCKET.fullmatch(name) or f"{folder}/{name}" not in in_folders(name):
        return True
    if _alive(f"{folder}/{name}"):
        return False
    for entry in os.scandir(folder):
        if entry.name.partition(".")[0] == name:
            with contextlib.suppress(OSError):
                os.unlink(entry.path)
    return True


def _alive(path: str) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        with socket.socket(socket.AF_UNIX, kind) as s:
            s.setblocking(False)
            try:
                s.connect(path)
                return True
            except BlockingIOError:
                return True
            except OSError:
                continue
    return False


class Names:
    """Names in the file system of the sockets at which this process listens. They are removed when the process ends, unless it
    is killed. A name that another process has taken since is left alone."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, str], int] = {}  # inode, by process (a fork has none) and path

    def hold(self, path: str) -> None:
        self.held[os.getpid(), path] = os.lstat(path).st_ino

    def remove(self) -> None:
        for (process, path), inode in self.held.items():
            with contextlib.suppress(OSError):
                if process == os.getpid() and os.lstat(path).st_ino == inode:
                    os.unlink(path)
        self.held.clear()


NAMES = Names()
atexit.register(NAMES.remove)


def nearest(local: str, remote: str) -> str:
    """The address at which to connect to a worker: its Unix socket if a process listens there, else TCP."""
    return local if not remote or listens(local) else remote


def await_listener(address: str, starting: Callable[[], bool], timeout: float) -> bool:
    """Wait until a process listens at a local address, at most until the deadline and while the process that should listen is
    `starting`. Returns whether one listens."""
    deadline = time.monotonic() + timeout
    while not listens(address):
        if not starting() or time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def address_of(server: str, timeout: float = 0.0) -> str:
    """The address at which `host:port` is reached: a Unix socket if a server of this user on this host listens within that
    time, else TCP. Raises ConnectionFailed if no process of this host listens. A full address is returned unchanged."""
    if "://" in server:
        return server
    host, port = host_and_port(server)
    if not port.isdigit():
        raise ValueError(f"cannot connect to {server!r}: expected host:port, or [address]:port for IPv6")
    until = time.monotonic() + timeout
    while host in LOOPBACK:
        if (local := local_address(port)) is not None:
            return local
        if _listens_by_tcp(host, int(port)):
            break
        if time.monotonic() >= until:
            raise ConnectionFailed(nobody(server, timeout))
        time.sleep(0.02)
    return f"tcp://{with_port(host or 'localhost', port)}"


def _listens_by_tcp(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("::1" if host == "::1" else "127.0.0.1", port), 1.0):
        return True
    return False


def nobody(server: str, timeout: float) -> str:
    """The message of an error: no dispatcher answered."""
    return (
        f"no dispatcher answered at {server} within {timeout:.3g} s: is `gt-server` running there, "
        "as this user or, for others, with a key?" + ("" if _is_here(server) else OPEN)
    )


OPEN = " A server listens on its own host alone unless it is started with `--host 0.0.0.0 --key KEY`."


def _is_here(server: str) -> bool:
    """Whether an address belongs to this host's loopback device."""
    return server.startswith("ipc://") or host_and_port(server)[0] in LOOPBACK


def check_host(address: str) -> None:
    """Raise ConnectionFailed if the host of a TCP address has no known name: a misspelled name is not a server that is down."""
    if address.startswith("tcp://"):
        host = host_and_port(address)[0]
        try:
            socket.getaddrinfo(host, None)
        except (socket.gaierror, UnicodeError) as unknown:
            why = unknown.strerror if isinstance(unknown, socket.gaierror) else "invalid name"
            raise ConnectionFailed(f"unknown host {host!r} (of {address}): {why}. Is its name spelled right?") from None


def own_address(towards: str) -> str:
    """This host's IP address as seen from another one."""
    host = host_and_port(towards)[0]
    with socket.socket(family(host), socket.SOCK_DGRAM) as s:
        s.connect((host, 9))
        return str(s.getsockname()[0])


def outward_address() -> str:
    """This host's IP address as other hosts see it, or its loopback address if it has no other."""
    for nobody in ("192.0.2.1", "2001:db8::1"):  # documentation addresses: connecting a UDP socket sends nothing
        with contextlib.suppress(OSError):
            return own_address(f"tcp://{with_port(nobody, 9)}")
    return "127.0.0.1"


def open_port(host: str) -> tuple[int, int]:
    """A descriptor that listens at a free port of this address, which the caller closes; and the port."""
    listener = socket.create_server((host, 0), family=family(host))
    port = listener.getsockname()[1]
    return listener.detach(), port


def advertised(text: str) -> tuple[str, str]:
    """The host and the port (or "") of an advertised address: `host`, `host:port`, an IPv6 address or `[address]:port`."""
    if text.startswith("[") or text.count(":") == 1:
        host, port = host_and_port(text if not text.endswith("]") else f"{text}:")
    else:
        host, port = text, ""
    if not host or port and not (port.isdigit() and 0 < int(port) < 1 << 16):
        raise ValueError(f"cannot advertise {text!r}: expected an address, or address:port ([address]:port for IPv6)")
    return host, port


def free_port() -> int:
    """A TCP port at which no process of this host listens."""
    with socket.socket() as s:
        s.bind(("", 0))
        return int(s.getsockname()[1])
