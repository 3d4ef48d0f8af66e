"""Keys. Users share one key, workers another; the CURVE key pairs of sockets are derived from them. A key is never sent: a
process without the users' key does not know the listener's public key and can neither connect nor decrypt, and a peer's own key
pair shows which of the two keys it has. Without keys, the kernel restricts Unix sockets to one user.

In a pool, where each user has a key of its own, the listeners' key pairs are derived from the workers' key. A user's key is its
secret and the listeners' public key in one text, `SECRET@PUBLIC`. The secret proves the user's identity; it lets the user
impersonate neither the server nor another user."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import threading
from collections.abc import Mapping
from functools import cache
from itertools import count
from socket import AF_INET6
from typing import Any, NamedTuple

import zmq
from zmq.utils import z85

from gt import environment
from gt.errors import ConnectionFailed
from gt.transport.addresses import (
    NAMES,
    WORKER_KEY,
    family,
    host_and_port,
    in_folders,
    listens,
    local_address,
    own_folder,
    sweep,
)
from gt.transport.sockets import notice_silence

SHORTEST = 16  # fewest characters of a key
USER, WORKER = "user", "worker"  # the role of a peer, by its key pair; in a pool a user's role is "user NAME"
JOINT = "@"  # between a user's secret and the public key of a pool
USERS_KNOWN = 10.0  # seconds that a connecting peer waits until the worker has received the pool's users
OPEN = b"gt-open"  # the domain of sockets without a key
HOW = "python -c 'import secrets; print(secrets.token_hex(16))'"


class Keys(NamedTuple):
    """The keys of a process: the users' key, and on workers and servers the workers' key too. Without keys both are "". Servers
    and workers of a pool, where each user has its own key, have the workers' key alone."""

    user: str = ""
    worker: str = ""

    @property
    def guarded(self) -> bool:
        """Whether sockets require keys."""
        return bool(self.user or self.worker)

    @property
    def pool(self) -> bool:
        """Whether each user has a key of its own."""
        return bool(self.worker and not self.user)

    @property
    def secret(self) -> str:
        """The secret part of a user's key."""
        return self.user.partition(JOINT)[0] if self._public() else self.user

    def _public(self) -> bytes:
        """The listeners' public key, if the user's key contains it."""
        text = self.user.rpartition(JOINT)[2]
        return bytes.fromhex(text) if JOINT in self.user and re.fullmatch("[0-9a-f]{64}", text) else b""

    def listener(self) -> tuple[bytes, bytes]:
        """The key pair of listening sockets."""
        return pair(self.user or self.worker, "server")

    def listener_public(self) -> bytes:
        return z85.encode(self._public()) if self._public() else self.listener()[0]

    def check(self) -> Keys:
        for name, key in (("GT_KEY", self.secret), ("GT_WORKER_KEY", self.worker)):
            if key and len(key) < SHORTEST:
                raise ConnectionFailed(
                    f"the key {name} has {len(key)} characters: expected {SHORTEST} or more, such as `{HOW}` prints"
                )
        if self.user and self.user == self.worker:
            raise ConnectionFailed("GT_KEY and GT_WORKER_KEY are the same: users could join as workers")
        return self


NO_KEYS = Keys()


def remove_worker_key(port: int) -> None:
    """Before a server listens at this port: remove the workers' key of a killed server there, which would mislead workers.
    Raises OSError if one of this user's servers listens at the port, so that it keeps its key."""
    if taken := local_address(str(port)):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), taken)
    for path in in_folders(f"{port}{WORKER_KEY}"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def make_worker_key(port: int) -> str:
    """A workers' key for the server at this port, if the administrator set none. It is stored for this user's workers."""
    key, path = secrets.token_hex(16), f"{own_folder()}/{port}{WORKER_KEY}"
    part = f"{path}.{os.getpid()}"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(key)
    os.replace(part, path)  # atomic: a worker reads the whole key or none
    NAMES.hold(path)
    return key


def kept_worker_key(port: int) -> str:
    """The stored workers' key of this user's server at this port of this host; "" if there is none."""
    for path in in_folders(f"{port}{WORKER_KEY}"):
        with contextlib.suppress(OSError), open(path) as file:
            return file.read()
    return ""


@cache
def _stretched(key: str, salt: str) -> bytes:
    """The hash is slow on purpose, as a key may be a phrase. With a salt of the server's own (GT_SALT), a table computed for
    another server is useless. Without one the salt is a constant: a listener cannot send its salt to a peer before both have
    their key pairs."""
    return hashlib.scrypt(key.encode(), salt=b"gt key 2" + salt.encode(), n=1 << 14, r=8, p=1, dklen=32)


def pair(key: str, side: str) -> tuple[bytes, bytes]:
    """The public and the secret key of one side of a connection."""
    stretched = _stretched(key, environment.SALT.value())
    text = z85.encode(hashlib.blake2b(side.encode(), key=stretched, digest_size=32).digest())
    return zmq.curve_public(text), text


class _Authenticator:
    """Answers libzmq's request, at each connection to a socket with a key, whether the peer may connect (ZAP)."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.numbers = count(1)
        self.known: dict[bytes, dict[bytes, str]] = {}  # by domain, the role of each public key
        self.pools: set[bytes] = set()  # domains in which each user has a key of its own
        self.users: dict[bytes, str] = {}  # users of pools, by public key
        self.users_known = threading.Event()
        self.thread: threading.Thread | None = None

    def guard(self, socket: zmq.Socket[Any], keys: Keys) -> None:
        """Let only peers with these keys connect to a socket."""
        with self.lock:
            domain = b"gt-%d" % next(self.numbers)
            sides = {USER: keys.user, WORKER: keys.worker}
            self.known[domain] = {z85.decode(pair(key, side)[0]): side for side, key in sides.items() if key}
            if keys.pool:
                self.pools.add(domain)
            if self.thread is None:
                desk: zmq.Socket[Any] = zmq.Context.instance().socket(zmq.REP)
                desk.linger = 0
                desk.bind("inproc://zeromq.zap.01")
                self.thread = threading.Thread(target=self._serve, args=(desk,), name="gt-keys", daemon=True)
                self.thread.start()
        socket.setsockopt(zmq.ZAP_DOMAIN, domain)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # refuse connections while no authenticator answers

    @staticmethod
    def leave_open(socket: zmq.Socket[Any]) -> None:
        """Let every peer connect whose version of ZMTP supports keys."""
        socket.setsockopt(zmq.ZAP_DOMAIN, OPEN)

    def _serve(self, desk: zmq.Socket[Any]) -> None:
        while True:
            version, number, domain, _, _, mechanism, *shown = desk.recv_multipart()
            who = self._who(domain, shown[0] if len(shown) == 1 and mechanism == b"CURVE" else b"")
            may = who is not None or domain == OPEN
            verdict = [b"200", b"OK", (who or "").encode()] if may else [b"400", b"no such key", b""]
            desk.send_multipart([version, number, *verdict, b""])

    def _who(self, domain: bytes, public: bytes) -> str | None:
        known = self.known.get(domain, {}).get(public)
        if known is None and domain in self.pools and public:
            self.users_known.wait(USERS_KNOWN)  # a worker receives the users directly after it has joined
            known = self.users.get(public)
        return known


_porter = _Authenticator()


def public_key(secret: str) -> str:
    """The identity of a pool's user: the public key of its secret, in hexadecimal."""
    return z85.decode(pair(secret, USER)[0]).hex()


def user_key(secret: str, worker_key: str) -> str:
    """The key of the user with this secret, in the pool with this workers' key."""
    return f"{secret}{JOINT}{z85.decode(Keys('', worker_key).listener()[0]).hex()}"


def admit_users(users: Mapping[str, str]) -> None:
    """Let the users of a pool, given as names by public keys in hexadecimal, connect to all sockets of this process."""
    _porter.users = {bytes.fromhex(public): f"{USER} {name}" for public, name in users.items()}
    _porter.users_known.set()


def user_name(said: str) -> str:
    """The user's name in a `role`; "" if users have no keys of their own."""
    return said.removeprefix(USER).strip() if said.startswith(USER) else ""


def role(frame: Any) -> str:
    """The role of the key with which this frame's sender connected; "" if the socket has no key."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""


def listen(socket: zmq.Socket[Any], address: str, keys: Keys = NO_KEYS) -> str:
    """Bind a socket, guarded by the keys if there are any. Returns the address with its port."""
    if keys.guarded:
        socket.curve_publickey, socket.curve_secretkey = keys.listener()
        _porter.guard(socket, keys)
    else:
        _porter.leave_open(socket)
    socket.setsockopt(zmq.CURVE_SERVER, int(keys.guarded))
    notice_silence(socket, address)
    _choose_family(socket, address)
    try:
        if address.startswith("ipc://"):
            _only_this_user(socket, address)
        socket.bind(address)
    except zmq.ZMQError as taken:
        raise OSError(taken.errno, f"{taken.strerror}", address) from None
    if address.startswith("ipc://"):
        NAMES.hold(address.removeprefix("ipc://"))
    bound = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(bound, bytes)
    return bound.rstrip(b"\0").decode()


def _choose_family(socket: zmq.Socket[Any], address: str) -> None:
    """By default libzmq uses IPv4 only; with IPv6 enabled it cannot reach the IPv4 address of a name that has both."""
    if address.startswith("tcp://"):
        socket.setsockopt(zmq.IPV6, int(family(host_and_port(address)[0]) == AF_INET6))


def _only_this_user(socket: zmq.Socket[Any], address: str) -> None:
    """Only this user can enter the folder, and libzmq asks the kernel for the user of each connecting process (SO_PEERCRED)."""
    sweep()
    if listens(address):  # binding would take over the name of the process that listens there
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), address)
    socket.setsockopt(zmq.IPC_FILTER_UID, os.geteuid())


def reach(socket: zmq.Socket[Any], address: str, keys: Keys = NO_KEYS) -> None:
    """Connect to an address that `listen` bound."""
    if keys.guarded:
        socket.curve_serverkey = keys.listener_public()
        own = (keys.worker, WORKER) if keys.worker else (keys.secret, USER)
        socket.curve_publickey, socket.curve_secretkey = pair(*own)
    notice_silence(socket, address)
    _choose_family(socket, address)
    socket.connect(address)
