"""The dispatcher's shell: the only file here with sockets and clocks."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import zmq

from gt.dispatcher.core import Dispatcher
from gt.errors import ProtocolError
from gt.transport.messages import Mail, decode, encode
from gt.transport.zmq import Ends, open_socket


class Server:
    """A ROUTER that all connect to. Clients send from `NAME>` and listen at `NAME`."""

    def __init__(self, addresses: list[str], core: Dispatcher) -> None:
        self.core = core
        self.router = open_socket(zmq.ROUTER)
        self.ends = Ends(self.router)
        for address in addresses:
            self.router.bind(address)
        self.fds: dict[str, int] = {}  # each peer's connection, by its first message

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        poller = zmq.Poller()
        poller.register(self.router, zmq.POLLIN)
        poller.register(self.ends.socket, zmq.POLLIN)
        while not until():
            ready = dict(poller.poll(1000))
            self._ended()
            if self.router in ready:
                self._drain()

    def _drain(self) -> None:
        for _ in range(32):
            try:
                frames = self.router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._receive(frames)

    def _receive(self, frames: list[Any]) -> None:
        peer = frames[0].bytes.decode("latin1")
        name = peer.removesuffix(">")
        if peer not in self.fds:
            self._ended()  # a descriptor is used again; its last owner's end must be seen first
            self.fds[peer] = frames[0].get(zmq.SRCFD)
        try:
            if len(frames) < 2:
                raise ProtocolError("no message")
            message = decode(frames[1].buffer)
        except ProtocolError:
            self.core.tables.dropped += 1
            return
        self._send(self.core.handle(Mail(name, message)))

    def _send(self, mails: list[Mail]) -> None:
        for mail in mails:
            try:
                self.router.send_multipart([mail.peer.encode("latin1"), encode(mail.message), *mail.frames], zmq.NOBLOCK)
            except zmq.ZMQError:
                self._send(self.core.lose(mail.peer, "it cannot be reached"))

    def _ended(self) -> None:
        ended = set(self.ends.drain())
        if not ended:
            return
        for peer in [p for p, fd in self.fds.items() if fd in ended]:
            del self.fds[peer]
            self._send(self.core.lose(peer.removesuffix(">"), "its connection ended"))

    def close(self) -> None:
        self.ends.close()
        self.router.close()
