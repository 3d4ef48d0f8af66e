"""Keys. Users share one, workers another; from them come the CURVE key pairs of sockets. A key is never sent: whoever lacks the
users' key does not know the listener's public key and can neither connect nor read what passes, and which of the two keys a
peer has shows in its own key pair. Without keys, Unix sockets are kept to one user by the kernel.

In a pool, where each user has a key of its own, listeners' key pairs come from the workers' key. A user gets its secret and the
listeners' public key in one text, `SECRET@PUBLIC`. It proves with it who it is, and can pose as neither server nor another
user."""

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
from gt.transport.addresses import NAMES, family, host_and_port, in_folders, listens, own_folder, sweep
from gt.transport.sockets import notice_silence

SHORTEST = 16  # characters of a key
USER, WORKER = "user", "worker"  # who a peer is, as its key pair shows; in a pool a user is "user NAME"
JOINT = "@"  # between a user's secret and the public key of a pool
USERS_KNOWN = 10.0  # seconds that a peer waits at a worker for the pool's users to be told
OPEN = b"gt-open"  # the domain of sockets without a key
HOW = "python -c 'import secrets; print(secrets.token_hex(16))'"


class Keys(NamedTuple):
    """What a process knows: the users' key, and a worker or a server the workers' too. Without a key, "" for both. Servers and
    workers of a pool, where users have keys of their own, know the workers' key alone."""

    user: str = ""
    worker: str = ""

    @property
    def guarded(self) -> bool:
        """Whether sockets are kept by keys at all."""
        return bool(self.user or self.worker)

    @property
    def pool(self) -> bool:
        """Whether each user has a key of its own."""
        return bool(self.worker and not self.user)

    @property
    def secret(self) -> str:
        """The user's own part of its key."""
        return self.user.partition(JOINT)[0] if self._public() else self.user

    def _public(self) -> bytes:
        """The listeners' public key, where the user's key names it."""
        text = self.user.rpartition(JOINT)[2]
        return bytes.fromhex(text) if JOINT in self.user and re.fullmatch("[0-9a-f]{64}", text) else b""

    def listener(self) -> tuple[bytes, bytes]:
        """The key pair of sockets that listen."""
        return pair(self.user or self.worker, "server")

    def listener_public(self) -> bytes:
        return z85.encode(self._public()) if self._public() else self.listener()[0]

    def check(self) -> Keys:
        for name, key in (("GT_KEY", self.secret), ("GT_WORKER_KEY", self.worker)):
            if key and len(key) < SHORTEST:
                raise ConnectionFailed(
                    f"the key {name} has {len(key)} characters: want {SHORTEST} or more, such as `{HOW}` prints"
                )
        if self.user and self.user == self.worker:
            raise ConnectionFailed("GT_KEY and GT_WORKER_KEY are the same: users could join as workers")
        return self


NO_KEYS = Keys()


def make_worker_key(port: int) -> str:
    """A workers' key for the server at this port, where the administrator gave none. It is kept for this user's workers."""
    key, path = secrets.token_hex(16), f"{own_folder()}/{port}.worker-key"
    part = f"{path}.{os.getpid()}"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(key)
    os.replace(part, path)  # a worker reads the whole key or none
    NAMES.hold(path)
    return key


def kept_worker_key(port: int) -> str:
    """The workers' key of this user's server at this port of this host; "" where there is none."""
    for path in in_folders(f"{port}.worker-key"):
        with contextlib.suppress(OSError), open(path) as file:
            return file.read()
    return ""


@cache
def _stretched(key: str, salt: str) -> bytes:
    """The hash is slow on purpose, as a key may be a phrase; with a salt of the server's (GT_SALT), a table of guesses that was
    made once serves against no other server. Without one the salt is GT's own: a listener cannot tell one of its own to a peer
    before both have their key pairs."""
    return hashlib.scrypt(key.encode(), salt=b"gt key 2" + salt.encode(), n=1 << 14, r=8, p=1, dklen=32)


def pair(key: str, side: str) -> tuple[bytes, bytes]:
    """The public and the secret key of one side."""
    stretched = _stretched(key, environment.SALT.value())
    text = z85.encode(hashlib.blake2b(side.encode(), key=stretched, digest_size=32).digest())
    return zmq.curve_public(text), text


class _Authenticator:
    """Answers libzmq's question, at each connection to a socket with a key, whether that peer may come in (ZAP)."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.numbers = count(1)
        self.known: dict[bytes, dict[bytes, str]] = {}  # by domain: who has which public key
        self.pools: set[bytes] = set()  # domains in which each user has a key of its own
        self.users: dict[bytes, str] = {}  # who those are, by public key
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
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # nobody is let in where nobody answers

    @staticmethod
    def leave_open(socket: zmq.Socket[Any]) -> None:
        """Let all peers connect that speak a version of ZMTP in which they could be asked for a key."""
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
            self.users_known.wait(USERS_KNOWN)  # a worker is told of them right after it has joined
            known = self.users.get(public)
        return known


_porter = _Authenticator()


def public_key(secret: str) -> str:
    """By what a user of a pool is known: the public key of its secret, in hexadecimal."""
    return z85.decode(pair(secret, USER)[0]).hex()


def user_key(secret: str, worker_key: str) -> str:
    """What the user with this secret gives as its key, in the pool with this key of workers."""
    return f"{secret}{JOINT}{z85.decode(Keys('', worker_key).listener()[0]).hex()}"


def admit_users(users: Mapping[str, str]) -> None:
    """Let the users of a pool, names by public keys in hexadecimal, connect to all sockets of this process."""
    _porter.users = {bytes.fromhex(public): f"{USER} {name}" for public, name in users.items()}
    _porter.users_known.set()


def user_name(said: str) -> str:
    """The name in what `role` said; "" where users have no keys of their own."""
    return said.removeprefix(USER).strip() if said.startswith(USER) else ""


def role(frame: Any) -> str:
    """What the key of whoever sent this frame says it is; "" where the socket has no key."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""


def listen(socket: zmq.Socket[Any], address: str, keys: Keys = NO_KEYS) -> str:
    """Bind, guarded by the keys if there are any. Gives the address with its port."""
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
    """Left to itself libzmq knows IPv4 alone; with IPv6 it would reach no name's IPv4 address where it has both."""
    if address.startswith("tcp://"):
        socket.setsockopt(zmq.IPV6, int(family(host_and_port(address)[0]) == AF_INET6))


def _only_this_user(socket: zmq.Socket[Any], address: str) -> None:
    """The folder keeps others out, and libzmq asks the kernel whose process it is that connects (SO_PEERCRED)."""
    sweep()
    if listens(address):  # binding would take the name from whoever has it
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
