"""The socket that clients connect to (and other workers, to send): the attached clients, and the answers for clients that
have not attached yet."""

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

QUEUE = 1 << 12  # most answers queued for a client
UNREAD = 64  # most messages of one peer in the receive queue
MAX_CLIENTS = 1 << 16  # most names of attached clients: any peer that may connect may attach under any number of names
MAX_WAITING_BYTES = 256 << 20  # bytes of answers kept for a client that has not attached, from which on it is refused
MAX_FIRST_MESSAGE = 64 << 10  # most bytes of a peer's first message


class ClientSocket:
    """`refuse(client, why)` asks the dispatcher to end a client's session; `forget(client)` is called when a name is dropped.
    `sources` are the worker's event sources, which have to be marked whenever the socket was used."""

    def __init__(self, keys: Keys, refuse: Callable[[str, str], None], forget: Callable[[str], None], sources: Sources) -> None:
        self.keys, self.tell_refused, self.tell_forgotten, self.sources = keys, refuse, forget, sources
        self.memory = SharedMemory()
        self.socket = open_socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.MAXMSGSIZE, 2 * PART)
        self.crowd = WatchedSocket(self.socket, raise_descriptor_limit())
        self.socket.setsockopt(zmq.SNDHWM, QUEUE)
        self.socket.setsockopt(zmq.RCVHWM, UNREAD)  # further messages stay in the peer's send queue
        self.let_in: set[str] = set()  # peers whose connections count as admitted
        self.attached: dict[str, str] = {}  # the user of each attached client, in the order of attaching
        self.users: dict[str, str] = {}  # the user whose key a client must have
        self.waiting: dict[str, list[Mail]] = {}  # answers to clients that have not attached yet; none for a refused one
        self.refused: set[str] = set()  # clients that do not take their answers; the dispatcher ends their sessions
        self.listener: ChannelListener | None = None
        self.lanes = AnswerLanes()

    def listen(self, address: str, advertise: str = "") -> tuple[str, str]:
        """Listen for clients of this host and, if the dispatcher is on a network, of other hosts; returns the two addresses.
        With `advertise`, which may be a router's or another network card's address, listen on all interfaces."""
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
        """The next message: the name of its sender, the frame of the message, and all its frames."""
        try:
            peer, *frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        return peer.bytes.decode("latin1"), peer, frames

    def too_long(self, name: str, frames: list[Any]) -> bool:
        """Whether a message is longer than allowed for a peer that is not admitted."""
        return bool(frames) and name not in self.let_in and len(frames[0]) > MAX_FIRST_MESSAGE

    def admit(self, name: str, peer: Any) -> None:
        """Count the connection of this peer as admitted."""
        if name not in self.let_in:
            self.let_in.add(name)
            self.crowd.let_in(peer.get(zmq.SRCFD))

    def keep_admitted(self, workers: Collection[str]) -> None:
        """Forget all admitted peers except attached clients and these workers."""
        self.let_in.intersection_update({*self.attached, *workers})

    def expect(self, client: str, user: str) -> bool:
        """A client of this name has to have this user's key. Returns whether an already attached client of the name does."""
        self.users[client] = user
        return self.attached.get(client, user) == user

    def attach(self, client: str, peer: Any, word: Attach, index: int, known: Collection[str]) -> bool:
        """Attach a client and send it the answers that waited for it. Returns whether it has the key of its user. `known` are
        the clients that the dispatcher has announced."""
        user = user_name(role(peer)) if self.keys.pool else ""
        if self.users.get(client, user) != user:
            return False
        channel = self.listener.claim(word.token) if self.listener is not None else None
        if channel is not None:
            self.memory.share(client, channel)
        self.lanes.claim(client, word.lane)
        self.attached[client] = user
        if len(self.attached) > MAX_CLIENTS:
            self.tell_forgotten(next((name for name in self.attached if name not in known), client))
        self._post(Mail(client, Attached(index, channel is not None)))
        for mail in self.waiting.pop(client, ()):
            self._post(mail)
        return True

    def release(self, client: str, segment: int) -> bool:
        """A client releases a memory segment. Returns whether the segment was lent to it."""
        try:
            self.memory.release(client, segment)
        except ProtocolError:
            return False
        return True

    def send(self, mail: Mail, known: Collection[str]) -> bool:
        """Send an answer, or keep it for a client that has not attached yet. Returns whether it went over a lane."""
        if mail.peer in self.attached:
            return self._post(mail)
        if mail.peer in known and mail.peer not in self.refused:
            self._keep(mail)
        return False

    def _keep(self, mail: Mail) -> None:
        """Keep an answer for a client that has not attached yet; refuse a client that stays away."""
        waiting = self.waiting.setdefault(mail.peer, [])
        waiting.append(mail)
        if len(waiting) > QUEUE or sum(len(f) for m in waiting[:-1] for f in m.frames) > MAX_WAITING_BYTES:
            self._refuse(mail.peer, f"it does not take its answers: {len(waiting)} wait for it, and it has not connected")

    def _refuse(self, client: str, why: str) -> None:
        """Drop a client's answers and have its session ended, which ends its waiting reads."""
        self.attached.pop(client, None)
        self.waiting.pop(client, None)
        self.refused.add(client)
        self.tell_refused(client, why)

    def _post(self, mail: Mail) -> bool:
        """Send an answer. Returns whether it went over a lane."""
        message = encode(mail.message)
        if not mail.frames and self.lanes.post(mail.peer, message):
            return True
        self.sources.used(self.socket)
        try:
            self.socket.send(mail.peer.encode("latin1"), FIRST)
            self.socket.send(message, FIRST if mail.frames else LAST)
            for i, frame in enumerate(mail.frames, 1):
                self.socket.send(frame, FIRST if i < len(mail.frames) else LAST, copy=len(frame) < shm.SMALL)
        except zmq.Again:
            self._refuse(mail.peer, f"it does not take its answers: {QUEUE} wait for it")
        except zmq.ZMQError:
            self.attached.pop(mail.peer, None)  # the client has disconnected; the dispatcher will send its Drop
        return False

    def forget(self, client: str) -> None:
        """Drop all state of a departed client."""
        self.attached.pop(client, None)
        self.users.pop(client, None)
        self.let_in.discard(client)
        self.waiting.pop(client, None)
        self.refused.discard(client)
        self.lanes.end(client)
        self.memory.drop(client)

    def stats(self) -> dict[str, Any]:
        return {"lane_answers": self.lanes.sent, **self.memory.stats()}

    def close(self) -> None:
        self.crowd.close()
        self.lanes.close()
        self.socket.close()
        if self.listener is not None:
            self.listener.close()
