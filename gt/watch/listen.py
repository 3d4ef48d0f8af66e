"""An observer's connection to a dispatcher."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import zmq

from gt import environment
from gt.errors import ConnectionFailed, ProtocolError
from gt.transport.addresses import address_of, listens, own_folder
from gt.transport.auth import NO_KEYS, Keys, kept_worker_key, reach
from gt.transport.events import OFF, Seen, Subscribe, Watched
from gt.transport.messages import VERSION, Bye, decode, encode
from gt.transport.sockets import Ends, greet, how_it_ended, open_socket

FIRST_TIMEOUT = 5.0  # seconds for the dispatcher's first answer


class Listener:
    """`with Listener("localhost:9000", EVERY) as listener: for watched in listener.take(0.1)`. Where a server has keys, only
    its administrator, who has the workers' key, may watch all clients. `keys` replaces the keys found for `server` and
    `key`."""

    def __init__(
        self, server: str, level: int, key: str = "", client: str = "", timeout: float = FIRST_TIMEOUT, keys: Keys | None = None
    ) -> None:
        self.server = server
        if server.startswith("ipc://"):
            self.address = server
        else:
            self.address = address_of(server, timeout)
        known = keys if keys is not None else _keys(server, key)
        self.socket = open_socket(zmq.DEALER, secrets.token_hex(12).encode())
        self.ends = Ends(self.socket)
        self.closed = False
        try:
            reach(self.socket, self.address, known.check())
            greeting = encode(Subscribe(VERSION, level, client))
            self.waiting = [self._message(greet(self.socket, self.ends, self.address, greeting, timeout))]
        except BaseException:  # also KeyboardInterrupt: the socket must be closed
            self.close()
            raise

    def _message(self, data: bytes | memoryview) -> Watched:
        try:
            message = decode(data, 1 << 30)
        except ProtocolError as wrong:
            raise ConnectionFailed(
                f"the process that answered at {self.address} is not a dispatcher of this version"
            ) from wrong
        if isinstance(message, Bye):
            raise ConnectionFailed(f"the dispatcher at {self.address} {message.why}")
        if not isinstance(message, Watched):
            raise ConnectionFailed(f"the dispatcher at {self.address} sent a {type(message).__name__}")
        self.socket.send(encode(Seen(message.number)))
        return message

    def take(self, seconds: float) -> Iterator[Watched]:
        """The messages that arrive within `seconds`, each as it arrives."""
        until = time.monotonic() + seconds
        while self.waiting:
            yield self.waiting.pop(0)
        poller = zmq.Poller()
        poller.register(self.socket, zmq.POLLIN)
        poller.register(self.ends.socket, zmq.POLLIN)
        while True:
            left = max(0.0, until - time.monotonic())
            ready = dict(poller.poll(int(left * 1000)))
            if self.socket in ready:
                yield self._message(self.socket.recv())
            elif self.ends.socket in ready and self.ends.drain():
                raise ConnectionFailed(f"the dispatcher at {self.address} {how_it_ended(self.address)}")
            elif not left:
                return

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.ends.close()
            self.socket.close(100)

    def stop(self) -> None:
        """Ask the dispatcher to send no more events."""
        self.socket.send(encode(Subscribe(VERSION, OFF)))

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _keys(server: str, key: str) -> Keys:
    """The users' key, and the workers' key where this user has it."""
    port = server.rpartition(":")[2]
    if not key:
        return NO_KEYS
    return Keys(key, environment.WORKER_KEY.value() or (kept_worker_key(int(port)) if port.isdecimal() else ""))


SERVER = re.compile(r"\d{1,5}|[0-9a-f]{16}")  # the file name of a dispatcher's socket: its port, or a script's random name


def local_servers() -> list[str]:
    """Addresses of this user's listening dispatchers on this host, the latest first, including dispatchers that scripts started
    implicitly."""
    folder, found = Path(own_folder()), []
    for path in folder.iterdir() if folder.is_dir() else ():
        with suppress(FileNotFoundError):  # a dispatcher that has just ended
            if SERVER.fullmatch(path.name) and path.is_socket():
                found.append((path.stat().st_mtime, f"ipc://{path}"))
    return [address for _, address in sorted(found, reverse=True) if listens(address)]
