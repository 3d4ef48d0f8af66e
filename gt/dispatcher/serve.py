"""The dispatcher's shell: the only file here with sockets and clocks."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import zmq

from gt import environment
from gt.dispatcher.core import Dispatcher
from gt.errors import ProtocolError
from gt.transport.addresses import from_another_host
from gt.transport.auth import listen
from gt.transport.messages import LIMIT, Mail, decode, encode
from gt.transport.sockets import FIRST, LAST, Ends, open_socket


class Server:
    """A ROUTER that all connect to. Clients send from `NAME>` and listen at `NAME`."""

    def __init__(self, addresses: list[str], core: Dispatcher, key: str = "") -> None:
        self.core = core
        self.router = open_socket(zmq.ROUTER)
        self.router.setsockopt(zmq.MAXMSGSIZE, 2 * LIMIT)  # past this a peer is cut off before it fills our memory
        self.more = zmq.Poller()
        self.more.register(self.router, zmq.POLLIN)
        self.ends = Ends(self.router)
        for address in addresses:
            listen(self.router, address, key)
        self.fds: dict[str, int] = {}  # each peer's connection, by its first message
        self.far: set[str] = set()  # those on other hosts
        self.until = float("inf")  # when to go on without workers that have not come

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        poller = zmq.Poller()
        poller.register(self.router, zmq.POLLIN)
        poller.register(self.ends.socket, zmq.POLLIN)
        while not until():
            if time.monotonic() > self.until:
                self.until = float("inf")
                self._send(self.core.expect(0))
            for socket, _ in poller.poll(1000):
                if socket is self.router:
                    self._drain()
                else:
                    self._ended()

    def expect(self, workers: int, timeout: float = 60.0) -> None:
        """Place nothing before so many workers have come, or that time is over."""
        self.until = time.monotonic() + timeout
        self._send(self.core.expect(workers))

    def _drain(self) -> None:
        receive = self.router.recv
        for _ in range(32):
            sender = receive(copy=False)
            data = last = receive(copy=False) if sender.more else sender
            while last.more:
                last = receive(copy=False)  # nothing travels beside what the dispatcher reads
            self._receive(sender, data.buffer if sender.more else b"")
            if not self.more.poll(0):
                return

    def _receive(self, sender: Any, data: Any) -> None:
        peer = sender.bytes.decode("latin1")
        name = peer.removesuffix(">")
        if peer not in self.fds:
            self._ended()  # a descriptor is used again; its last owner's end must be seen first
            self.fds[peer] = sender.get(zmq.SRCFD)
            if from_another_host(self.fds[peer]):
                self.far.add(peer)
        try:
            message = decode(data)
        except ProtocolError:
            self.core.tables.dropped += 1
            return
        self._send(self.core.handle(Mail(name, message)))

    def _send(self, mails: list[Mail]) -> None:
        gone = []
        for mail in mails:
            try:
                self.router.send(mail.peer.encode("latin1"), FIRST)
                self.router.send(encode(mail.message), LAST)
            except zmq.ZMQError:
                gone.append(mail.peer)
        for peer in gone:  # what follows from it comes after all that was decided while it was there
            self._send(self.core.lose(peer, "it cannot be reached"))

    def _ended(self) -> None:
        ended = set(self.ends.drain())
        if not ended:
            return
        for peer in [p for p, fd in self.fds.items() if fd in ended]:
            del self.fds[peer]
            silent = (
                f", or it gave no sign of life for {environment.TIMEOUT.value():g} s (GT_TIMEOUT)" if peer in self.far else ""
            )
            self.far.discard(peer)
            self._send(self.core.lose(peer.removesuffix(">"), f"its connection ended{silent}"))

    def close(self) -> None:
        self.ends.close()
        self.router.close()
