"""Where things listen, and how to reach them: by Unix sockets for one user on one host, by TCP otherwise."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import Callable, Iterator

from gt.errors import ConnectionFailed
from gt.transport.channels import process_of

LONGEST = 72  # bytes of a folder's name, so that a socket's name in it fits what the kernel takes
STALE = 60.0  # seconds after which a socket that nobody listens at is taken for left behind by a process that was killed
LOOPBACK = ("localhost", "127.0.0.1", "::1", "")
LOCAL = ("127.", "::1", "::ffff:127.")  # how addresses of connections within a host begin


def host_name() -> str:
    return socket.gethostname()


def host_key(host: str, remote: str) -> str:
    """What tells a worker's host from others: its name and, as containers may share one, the address it is reached at."""
    return host if not remote or on_this_host(remote) else f"{host} {remote.removeprefix('tcp://').rpartition(':')[0]}"


def host_and_port(address: str) -> tuple[str, str]:
    """The parts of `host:port` or `tcp://host:port`. An IPv6 address stands in brackets there, and without them here."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host.removeprefix("[").removesuffix("]"), port


def with_port(host: str, port: int | str) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def family(host: str) -> socket.AddressFamily:
    """Of an address, or of what a name stands for: IPv4 where it has such an address."""
    if ":" in host:
        return socket.AF_INET6
    with contextlib.suppress(OSError, UnicodeError):
        found = {each[0] for each in socket.getaddrinfo(host, None)}
        return socket.AF_INET6 if found == {socket.AF_INET6} else socket.AF_INET
    return socket.AF_INET


def on_this_host(address: str) -> bool:
    """Whether an address is local for sure. (One of this host's own that others could use, too, does not count.)"""
    host = host_and_port(address)[0]
    return not address.startswith("tcp://") or host in LOOPBACK or host.startswith("127.")


def from_another_host(fd: int) -> bool:
    """Whether a connection comes from elsewhere."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as copy:  # it may have ended meanwhile
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
    """What is wrong with a folder that only this user may enter; "" where it is one."""
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
    """Where a file of this user's processes may lie, whatever environment they were started in."""
    return [f"{folder}/{name}" for folder in _folders() if not _why_not(folder)]


def local_address(name: str) -> str | None:
    """The local address where a process of this user listens under this name, whatever environment it was started in."""
    return next((f"ipc://{path}" for path in in_folders(name) if listens(f"ipc://{path}")), None)


def listener(address: str) -> int:
    """The process of this user that listens at a local address, as the kernel says; 0 for none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s, contextlib.suppress(OSError):
        s.connect(address.removeprefix("ipc://"))
        return process_of(s)
    return 0


def listens(address: str) -> bool:
    """Whether a process of this user listens at a local address."""
    return listener(address) != 0


def close_connections(addresses: list[str]) -> None:
    """In a forked child: close its copies of its parent's connections to these addresses on this host. (Connections to other
    hosts end by time-out, as nobody in the child answers for them.)"""
    names = {a.removeprefix("ipc://") for a in addresses if a.startswith("ipc://")}
    ports = {int(a.rpartition(":")[2]) for a in addresses if a.startswith("tcp://")}
    with contextlib.suppress(OSError):
        for fd in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):  # no socket, or not connected
                if _leads_to(fd, names, ports):
                    os.close(fd)


def _leads_to(fd: int, names: set[str], ports: set[int]) -> bool:
    with socket.socket(fileno=os.dup(fd)) as copy:
        peer = copy.getpeername()
        if copy.family == socket.AF_UNIX:
            return peer in names
        return copy.family in (socket.AF_INET, socket.AF_INET6) and peer[0].startswith(LOCAL) and peer[1] in ports


def sweep() -> None:
    """Remove sockets that killed processes of this user have left behind."""
    folder = own_folder()
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):
            if entry.name.endswith(".store") and not os.path.exists(f"{folder}/{entry.name.partition('.')[0]}"):
                os.unlink(entry.path)  # where workers met, of whom the first is gone
            found = entry.stat(follow_symlinks=False)
            if stat.S_ISSOCK(found.st_mode) and time.time() - found.st_mtime > STALE and not _alive(entry.path):
                os.unlink(entry.path)


WORKER_SOCKET = re.compile(r"w-[0-9a-f]{16}")  # the name of a worker's socket; those of its channels and groups begin so


def worker_socket() -> str:
    """A local address for a worker to listen at, which no other has had."""
    return ipc_address(f"w-{secrets.token_hex(8)}")


def remove_worker_socket(address: str) -> bool:
    """Remove what a killed worker left behind that listened at this local address; False while somebody listens there. An
    address is whatever a worker said: only names of workers' sockets in this user's own folder are touched."""
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
    """Names in the file system of sockets that this process listens at. They go with it, however it ends, short of being
    killed; a name that another has meanwhile is the other's."""

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
    """Where a worker is reached: by a Unix socket if it listens within reach, whatever hosts call themselves, else by TCP."""
    return local if not remote or listens(local) else remote


def await_listener(address: str, starting: Callable[[], bool], timeout: float) -> bool:
    """Whether a local address gets a listener in time, while whoever is to listen there is still `starting`."""
    deadline = time.monotonic() + timeout
    while not listens(address):
        if not starting() or time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def address_of(server: str, timeout: float = 0.0) -> str:
    """Where `host:port` is reached: on this host by a Unix socket, if this user's server is there within that time; else
    by TCP. A full address stays as it is."""
    if "://" in server:
        return server
    host, port = host_and_port(server)
    if not port.isdigit():
        raise ValueError(f"cannot connect to {server!r}: want host:port, or [address]:port for IPv6")
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
    """What is said where no dispatcher answers."""
    return (
        f"no dispatcher answered at {server} within {timeout:g} s: is `gt-server` running there, "
        "as this user or, for others, with a key?" + ("" if _is_here(server) else OPEN)
    )


OPEN = " A server listens on its own host alone unless it is started with `--host 0.0.0.0 --key KEY`."


def _is_here(server: str) -> bool:
    """Whether an address is one that a server of this host always has."""
    return server.startswith("ipc://") or host_and_port(server)[0] in LOOPBACK


def check_host(address: str) -> None:
    """Raise a ConnectionFailed where the name of a TCP address's host means nothing: a wrong name is not a server that is
    down."""
    if address.startswith("tcp://"):
        host = host_and_port(address)[0]
        try:
            socket.getaddrinfo(host, None)
        except (socket.gaierror, UnicodeError) as unknown:
            why = unknown.strerror if isinstance(unknown, socket.gaierror) else "no such name can be"
            raise ConnectionFailed(f"unknown host {host!r} (of {address}): {why}. Is its name spelled right?") from None


def own_address(towards: str) -> str:
    """This host's IP address as seen from another one."""
    host = host_and_port(towards)[0]
    with socket.socket(family(host), socket.SOCK_DGRAM) as s:
        s.connect((host, 9))
        return str(s.getsockname()[0])


def outward_address() -> str:
    """This host's IP address as other hosts see it, or that of its loopback device where it has no other."""
    for nobody in ("192.0.2.1", "2001:db8::1"):  # to which nothing is sent
        with contextlib.suppress(OSError):
            return own_address(f"tcp://{with_port(nobody, 9)}")
    return "127.0.0.1"


def open_port(host: str) -> tuple[int, int]:
    """A descriptor that listens at a free port of this address of this host, for whoever closes it; and the port."""
    listener = socket.create_server((host, 0), family=family(host))
    port = listener.getsockname()[1]
    return listener.detach(), port


def advertised(text: str) -> tuple[str, str]:
    """The host and the port, or "", that others are to be told: `host`, `host:port`, an IPv6 address or `[address]:port`."""
    if text.startswith("[") or text.count(":") == 1:
        host, port = host_and_port(text if not text.endswith("]") else f"{text}:")
    else:
        host, port = text, ""
    if not host or port and not (port.isdigit() and 0 < int(port) < 1 << 16):
        raise ValueError(f"cannot advertise {text!r}: want an address, or address:port ([address]:port for IPv6)")
    return host, port


def free_port() -> int:
    """A TCP port that nobody on this host listens at just now."""
    with socket.socket() as s:
        s.bind(("", 0))
        return int(s.getsockname()[1])
