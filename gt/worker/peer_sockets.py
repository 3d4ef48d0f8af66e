"""Sockets to other workers for the mail of collectives, and early mail of workers that are not announced yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import zmq

from gt.transport.addresses import nearest
from gt.transport.auth import Keys, reach
from gt.transport.messages import Mail, Peer, encode
from gt.transport.sockets import open_socket, parts

EARLY = 1024  # most messages kept of workers that are not announced yet
EARLY_BYTES = 1 << 30  # most bytes of these


class PeerSockets:
    def __init__(self, token: str, keys: Keys) -> None:
        self.token, self.keys = token, keys
        self.sockets: dict[int, zmq.Socket] = {}
        self.mailed: Counter[str] = Counter()  # bytes of tensors sent to workers of this host, and of other hosts
        self.early: list[tuple[str, Any, tuple]] = []  # token, message and frames
        self.announced = -1  # highest index of a worker that was announced: indices rise, so lower ones are never early

    def send(self, index: int, peer: Peer, mail: Mail, same_host: bool) -> None:
        if index not in self.sockets:
            socket = self.sockets[index] = open_socket(zmq.DEALER, self.token.encode())
            reach(socket, nearest(peer.address, peer.remote), self.keys)
        self.mailed["own host" if same_host else "other hosts"] += sum(map(len, mail.frames))
        self.sockets[index].send_multipart([encode(mail.message), *parts(mail.frames)])

    def lost(self, index: int) -> bool:
        """Whether a worker that is not there has left, and is not one that is still to be announced."""
        return index <= self.announced

    def keep_early(self, token: str, message: Any, frames: tuple) -> bool:
        """Keep a message of a worker that the dispatcher has not announced to this one yet. Returns whether there is room."""
        kept = sum(len(f) for _, _, those in self.early for f in those) if frames else 0
        room = len(self.early) < EARLY and kept + sum(map(len, frames)) <= EARLY_BYTES
        if room:
            self.early.append((token, message, frames))
        return room

    def meet(self, peers: dict[int, Peer], receive: Callable[[str, Any, tuple], None]) -> None:
        """The set of workers changed: close the sockets to lost ones, and receive the early mail of new ones."""
        for index in self.sockets.keys() - peers.keys():
            self.sockets.pop(index).close(0)
        self.announced = max(self.announced, *peers, -1)
        early, self.early = self.early, []
        for token, message, frames in early:
            receive(token, message, frames)

    def stats(self) -> dict[str, Any]:
        return {"mailed": dict(self.mailed)}

    def linger(self, milliseconds: int) -> None:
        for socket in self.sockets.values():
            socket.setsockopt(zmq.LINGER, milliseconds)

    def close(self) -> None:
        for socket in self.sockets.values():
            socket.close()
