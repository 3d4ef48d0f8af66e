"""The socket that clients connect to (and other workers, to send): which clients have attached, and the answers that wait for
those that have not."""

from __future__ import annotations

from collections.abc import Callable, Collection
from socket import AF_INET6
from typing import Any

import zmq

from gt.errors import ProtocolError
from gt.transport import shm
from gt.transport.addresses import NAMES, advertised, family, host_and_port, own_address, with_port, worker_socket
from gt.transport.auth import Keys, listen, role, user_name
from gt.transport.channels import ChannelListener
from gt.transport.connection_limits import WatchedSocket, raise_descriptor_limit
from gt.transport.lane_tables import AnswerLanes
from gt.transport.messages import Attach, Attached, Mail, encode
from gt.transport.polling import Sources
from gt.transport.sockets import FIRST, LAST, PART, open_socket
from gt.worker.shared_memory import SharedMemory

QUEUE = 1 << 12  # answers that wait for a client to take them; each is one that it waits for
UNREAD = 64  # messages of one peer that wait to be read
CLIENTS = 1 << 16  # names of clients that have attached: whoever may connect may say so, under any number of names
UNTAKEN = 256 << 20  # bytes of answers to a client that has not attached from which on no other is kept
FIRST_WORD = 64 << 10  # bytes of the message with which a peer comes, at most


class ClientSocket:
    """`refuse` has the dispatcher let a client go, `forget` is told of one whose name is given up. `sources` is what the worker
    waits for: it is told whenever the socket was used."""

    def __init__(self, keys: Keys, refuse: Callable[[str, str], None], forget: Callable[[str], None], sources: Sources) -> None:
        self.keys, self.tell_refused, self.tell_forgotten, self.sources = keys, refuse, forget, sources
        self.memory = SharedMemory()
        self.socket = open_socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.MAXMSGSIZE, 2 * PART)
        self.crowd = WatchedSocket(self.socket, raise_descriptor_limit())
        self.socket.setsockopt(zmq.SNDHWM, QUEUE)
        self.socket.setsockopt(zmq.RCVHWM, UNREAD)  # past this a peer has to keep them itself
        self.let_in: set[str] = set()  # peers whose connections count as let in
        self.attached: dict[str, str] = {}  # clients that have connected, in their order, and whose key they have
        self.users: dict[str, str] = {}  # whose key clients are to have
        self.waiting: dict[str, list[Mail]] = {}  # answers to clients that have not attached yet; none for one that was refused
        self.refused: set[str] = set()  # clients that do not take their answers, which the dispatcher is to let go
        self.listener: ChannelListener | None = None
        self.lanes = AnswerLanes()

    def listen(self, address: str, advertise: str = "") -> tuple[str, str]:
        """Listen for clients of this host, and, where the dispatcher is on a network, of others; the two addresses. Where the
        address for others is given, it may be a router's or another card's, so this host listens at all that it has."""
        local = worker_socket()
        listen(self.socket, local, self.keys)
        self.listener = ChannelListener(local) if shm.supported() else None
        if self.listener is not None:
            NAMES.hold(self.listener.path)
            self.lanes.listener = self.listener
        if not address.startswith("tcp://"):
            return local, ""
        if not advertise:
            return local, listen(self.socket, f"tcp://{with_port(own_address(address), '*')}", self.keys)
        host, port = advertised(advertise)
        everywhere = "[::]" if family(host) == AF_INET6 else "*"
        bound = listen(self.socket, f"tcp://{everywhere}:{port or '*'}", self.keys)
        return local, f"tcp://{with_port(host, port or host_and_port(bound)[1])}"

    def receive(self) -> tuple[str, Any, list[Any]] | None:
        """The next message: the name of its sender, the frame that carries it, and all its frames."""
        try:
            peer, *frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        return peer.bytes.decode("latin1"), peer, frames

    def too_long(self, name: str, frames: list[Any]) -> bool:
        """Whether a message is longer than what a peer may say before it is let in."""
        return bool(frames) and name not in self.let_in and len(frames[0]) > FIRST_WORD

    def admit(self, name: str, peer: Any) -> None:
        """Count the connection of this peer as let in."""
        if name not in self.let_in:
            self.let_in.add(name)
            self.crowd.let_in(peer.get(zmq.SRCFD))

    def keep_admitted(self, workers: Collection[str]) -> None:
        """Of the peers that were let in, only clients that have attached and these workers are left."""
        self.let_in.intersection_update({*self.attached, *workers})

    def expect(self, client: str, user: str) -> bool:
        """A client that connects by this name has to have this user's key. Whether the one that has, if any, does."""
        self.users[client] = user
        return self.attached.get(client, user) == user

    def attach(self, client: str, peer: Any, word: Attach, index: int, known: Collection[str]) -> bool:
        """A client has connected with this word; it is sent the answers that waited for it. Whether it has the key of its user.
        `known` are clients that the dispatcher has spoken of."""
        user = user_name(role(peer)) if self.keys.pool else ""
        if self.users.get(client, user) != user:
            return False
        channel = self.listener.claim(word.token) if self.listener is not None else None
        if channel is not None:
            self.memory.share(client, channel)
        self.lanes.claim(client, word.lane)
        self.attached[client] = user
        if len(self.attached) > CLIENTS:
            self.tell_forgotten(next((name for name in self.attached if name not in known), client))
        self._post(Mail(client, Attached(index, channel is not None)))
        for mail in self.waiting.pop(client, ()):
            self._post(mail)
        return True

    def release(self, client: str, segment: int) -> bool:
        """A client is done with a segment of memory. Whether it was lent it."""
        try:
            self.memory.release(client, segment)
        except ProtocolError:
            return False
        return True

    def send(self, mail: Mail, known: Collection[str]) -> None:
        """Send an answer, or keep it for a client of the dispatcher's that has not attached yet."""
        if mail.peer in self.attached:
            self._post(mail)
        elif mail.peer in known and mail.peer not in self.refused:
            self._keep(mail)

    def _keep(self, mail: Mail) -> None:
        """An answer for a client that has not attached yet: it will come soon, or it takes no answers."""
        waiting = self.waiting.setdefault(mail.peer, [])
        waiting.append(mail)
        if len(waiting) > QUEUE or sum(len(f) for m in waiting[:-1] for f in m.frames) > UNTAKEN:
            self._refuse(mail.peer, f"it does not take its answers: {len(waiting)} wait for it, and it has not connected")

    def _refuse(self, client: str, why: str) -> None:
        """Keep nothing more for a client, and have it let go: each read that it waits for ends with its session."""
        self.attached.pop(client, None)
        self.waiting.pop(client, None)
        self.refused.add(client)
        self.tell_refused(client, why)

    def _post(self, mail: Mail) -> None:
        message = encode(mail.message)
        if not mail.frames and self.lanes.post(mail.peer, message):
            return
        self.sources.used(self.socket)
        try:
            self.socket.send(mail.peer.encode("latin1"), FIRST)
            self.socket.send(message, FIRST if mail.frames else LAST)
            for i, frame in enumerate(mail.frames, 1):
                self.socket.send(frame, FIRST if i < len(mail.frames) else LAST, copy=len(frame) < shm.SMALL)
        except zmq.Again:
            self._refuse(mail.peer, f"it does not take its answers: {QUEUE} wait for it")
        except zmq.ZMQError:
            self.attached.pop(mail.peer, None)  # the client is gone; the dispatcher will say so

    def forget(self, client: str) -> None:
        """A client is gone: nothing is kept for it any more."""
        self.attached.pop(client, None)
        self.users.pop(client, None)
        self.let_in.discard(client)
        self.waiting.pop(client, None)
        self.refused.discard(client)
        self.lanes.end(client)
        self.memory.drop(client)

    def stats(self) -> dict[str, Any]:
        return {"lane_answers": self.lanes.sent}

    def close(self) -> None:
        self.crowd.close()
        self.lanes.close()
        self.socket.close()
        if self.listener is not None:
            self.listener.close()
