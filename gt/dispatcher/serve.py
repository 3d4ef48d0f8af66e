"""The dispatcher's shell: its only file with sockets and clocks."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq
from msgspec.structs import replace

from gt import environment
from gt.dispatcher.core import Dispatcher
from gt.errors import ProtocolError
from gt.transport import checks, heap
from gt.transport.addresses import from_another_host, remove_worker_socket
from gt.transport.auth import NO_KEYS, WORKER, Keys, listen, role, user_name
from gt.transport.connection_limits import ConnectionLimits, raise_descriptor_limit
from gt.transport.events import EVERY, SAMPLED, Listen, Subscribe
from gt.transport.lane_tables import DispatcherLanes
from gt.transport.lanes import Lane
from gt.transport.messages import LIMIT, Batch, Bye, Hello, Join, Mail, Peers, Run, Welcome, decode, encode
from gt.transport.polling import Sources
from gt.transport.reporting import INTERVALS
from gt.transport.short_slices import take_short_slices
from gt.transport.sockets import FIRST, LAST, open_socket

QUEUE = 1 << 16  # most messages queued for one peer
TICK = 2.0  # seconds between checks for long waits
PEERS_INTERVAL = 0.5  # seconds between two Peers messages while other messages wait
UNREAD = 32  # most messages of one peer in the receive queue
MAX_LAST_MESSAGES = 1 << 12  # most messages that are read of a disconnected client
REMOVE_SECONDS = 60.0  # seconds after a worker's loss in which its sockets are removed once nobody listens on them


class Server:
    """A ROUTER socket for all clients and workers. Clients send from `NAME>` and receive at `NAME`."""

    def __init__(self, addresses: list[str], core: Dispatcher, keys: Keys = NO_KEYS) -> None:
        self.core, self.keys = core, keys
        core.observers.clock = time.time
        self.router = open_socket(zmq.ROUTER)
        self.router.setsockopt(zmq.MAXMSGSIZE, LIMIT)  # a peer with a longer message is disconnected before it fills our memory
        self.router.setsockopt(zmq.SNDHWM, QUEUE)
        self.router.setsockopt(zmq.RCVHWM, UNREAD)  # further messages stay in the peer's send queue
        self.peers: dict[str, Peers] = {}  # Peers messages to send before any other message, by peer
        self.send_peers_at = 0.0  # latest time to send them
        self.encoded: tuple[Any, bytes] = (None, b"")  # the last message to several peers, and its encoding
        self.waiting: dict[str, deque[bytes]] = {}  # messages for workers whose send queue is full
        self.more = zmq.Poller()
        self.more.register(self.router, zmq.POLLIN)
        descriptors = raise_descriptor_limit()
        self.ends = ConnectionLimits(self.router, descriptors)
        if self.ends.clients < core.tables.most_clients:
            core.tables.most_clients = self.ends.clients
            core.tables.most_because = f"it may open {descriptors:,} descriptors; ulimit -n, where it was started"
        self.cut_off = 0  # closed connections at the last report
        self.sources = Sources(many=True)  # a lane for each client
        self.lanes = DispatcherLanes(addresses, self.sources)
        for address in addresses:
            listen(self.router, address, keys)
        self.fds: dict[str, int] = {}  # descriptor of each peer's connection, known from its first message
        self.remote: set[str] = set()  # peers on other hosts
        self.send_events_at = 0.0  # when to send observers the next events
        self.until = float("inf")  # when to continue without the expected workers
        self.left: dict[str, float] = {}  # local addresses of lost workers, and until when to check whether they listen
        self.check_sockets_at = 0.0  # when to check next whether lost workers still listen
        self.departed = False  # a peer has left, and free memory was not returned to the system since
        self.own_worker = ""  # the worker that shares this process
        self.own_mail: deque[bytes | Run] = deque()  # messages for it
        self.tick_at = 0.0  # when to look next for clients that wait for a worker, or a worker for them

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        self.core.tables.short_slices = take_short_slices()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        self.begin()
        while not until():
            if not self.look(self.longest_wait()) and self.departed and not self.waiting:
                self.trim()

    def begin(self) -> None:
        """Add the sockets to the event sources, before the first `look`."""
        self.sources.add(self.router)
        self.sources.add(self.ends.socket)

    def look(self, timeout: float) -> bool:
        """Wait so many milliseconds for messages, handle them, then do the work that has become due. Returns whether a message
        or the end of a connection has come."""
        ready = self.sources.wait(timeout)
        for source in ready:
            if source in self.lanes.senders:
                self._from_lane(*self.lanes.senders[source])
            elif source is self.router:
                self._drain()
            elif source is self.ends.socket:
                self._ended()
        if cut := bool(self.core.tables.cut):
            self._send(self.core.advance())
        if self.waiting:
            self._send([])
        self._do_due_work(time.monotonic())
        return cut or bool(ready)

    def _do_due_work(self, now: float) -> None:
        observers = self.core.observers
        if self.peers and now > self.send_peers_at:
            self._send_peers()
        if observers.there and (observers.crowded or now >= self.send_events_at):
            self._send_events(now)
        if self.ends.waiting:
            self._ended()
        if self.left and now > self.check_sockets_at:
            self._tidy()
        if now > self.tick_at:
            self.tick_at = now + TICK
            self._send(self.core.tick(now))
        if now > self.until:
            self.until = float("inf")
            self._send(self.core.expect(0))

    def trim(self) -> None:
        """Return free memory to the system: peers have left, and nothing has come for a while. A full collection empties
        Python's lists of free objects, which keep nearly empty pages. The queues of connections lie between objects that
        stay, so the C library would keep their pages, too."""
        self.departed = False
        gc.collect()
        self.core.tables.trims += heap.trim()

    def longest_wait(self) -> float:
        """Milliseconds to sleep at most without a message."""
        if self.core.tables.cut:
            return 0
        if self.waiting:
            return 10
        if not self.core.observers.there:
            return 1000
        left = self.send_events_at - time.monotonic()
        return 1000 * left if left > 0 else 0

    def _send_events(self, now: float) -> None:
        """Send observers their events, as often as workers report them: a message to an observer and its acknowledgement cost
        as much as a client's batch."""
        self.send_events_at = now + INTERVALS[EVERY if self.core.observers.every else SAMPLED]
        self._send(self.core.observers.flush())

    def expect(self, workers: int, timeout: float = 60.0) -> None:
        """Place no tensor before `workers` have joined, or the timeout."""
        self.until = time.monotonic() + timeout
        self._send(self.core.expect(workers))

    def _drain(self) -> None:
        receive = self.router.recv
        for _ in range(32):
            sender = receive(copy=False)
            data = last = receive(copy=False) if sender.more else sender
            while last.more:
                last = receive(copy=False)  # messages to the dispatcher have no further frames
            self._receive(sender, data.buffer if sender.more else b"")
            if not self.more.poll(0):
                self._send_peers()
                return

    def _receive(self, sender: Any, data: Any) -> None:
        peer = sender.bytes.decode("latin1")
        name, new = peer.removesuffix(">"), peer not in self.fds
        if new:
            self._ended()  # the OS reuses descriptors: the end of the last owner's connection must be handled first
            if not self._is_of_its_user(sender, name):
                self.core.tables.dropped += 1
                return
            try:
                self.fds[peer] = sender.get(zmq.SRCFD)
            except zmq.ZMQError:  # a peer of ZMTP 1.0 has no metadata, and is not a GT process
                self.core.tables.dropped += 1
                return
            if from_another_host(self.fds[peer]):
                self.remote.add(peer)
        if new and not data:  # a client's sending connection, which may stay silent for long
            self._let_in(peer)
            return
        self.read(name, data, lambda: role(sender))
        if new:
            self._let_in(peer)

    def _from_lane(self, name: str, lane: Lane, peer_role: str) -> bool:
        """Handle the next message of a client's lane. Returns whether there may be another."""
        try:
            data = lane.receive(checks.MESSAGE)
        except ProtocolError as wrong:
            self.lanes.end(name)
            self._send(self.core.unreadable(name, wrong))
            return False
        if data is not None and not data:
            self.lanes.end(name)
        if not data:
            return False
        self.core.tables.lane_messages += 1
        self.read(name, data, lambda: peer_role)
        return True

    def read(self, name: str, data: Any, role_of_peer: Callable[[], str]) -> None:
        """Handle a message of a peer; `role_of_peer()` is the role that its key proves."""
        try:
            message = decode(data, LIMIT if name in self.core.tables.by_peer else checks.MESSAGE)
        except ProtocolError as wrong:
            self._send(self.core.unreadable(name, wrong))
            return
        if type(message) is Batch:  # more than of all other messages together
            self.sources.read = bool(message.gets)
            self._send(self.core.handle_batch(name, message))
            if message.gets and len(self.core.tables.clients) == 1:
                self.sources.answered()
            return
        if type(message) not in (Hello, Join, Subscribe):
            self._send(self.core.handle(Mail(name, message)))
            return
        peer_role = role_of_peer() if self.keys.guarded else ""
        if type(message) is Join and self.keys.guarded and peer_role != WORKER:
            self.core.tables.dropped += 1
            self._send([Mail(name, Bye("refused: this is a user's key, and a worker needs the workers' (GT_WORKER_KEY)"))])
            return
        mails = self.core.handle(Mail(name, message, (), peer_role))
        if type(message) is not Subscribe and message.lane:
            mails = self._open_lane(name, message, peer_role, mails)
        self._send(mails)

    def _open_lane(self, name: str, first: Hello | Join, peer_role: str, mails: list[Mail]) -> list[Mail]:
        """If a peer was admitted and its lane exists, announce the lane; returns the mail that is still to be sent."""
        welcomes = [at for at, mail in enumerate(mails) if mail.peer == name and type(mail.message) is Welcome]
        lane = self.lanes.claim(first.lane) if welcomes else None
        if lane is None:
            return mails
        at = welcomes[0]
        self._send([*mails[:at], Mail(name, replace(mails[at].message, lane=True))])
        if type(first) is Hello:
            self.lanes.receive_from(name, lane, peer_role)
        else:
            self.lanes.to[name] = lane
        return mails[at + 1 :]

    def _is_of_its_user(self, sender: Any, name: str) -> bool:
        """Whether a new connection under a client's name has the key of that client's user."""
        client = self.core.tables.clients.get(name) if self.keys.pool else None
        return client is None or user_name(role(sender)) == client.user.name

    def _let_in(self, peer: str) -> None:
        """After a peer's first message: its connection counts as admitted if the core knows the peer."""
        name, tables = peer.removesuffix(">"), self.core.tables
        if name in tables.clients or name in tables.by_peer or peer in self.core.observers.there:
            self.ends.let_in(self.fds[peer])

    def _send(self, mails: list[Mail]) -> None:
        gone: list[tuple[str, str]] = []
        if self.waiting:
            self._send_waiting()
        for mail in mails:
            form = type(mail.message)
            if form is Peers and not mail.message.lost:  # when many join or leave at once, only the last list is sent
                self.peers[mail.peer] = mail.message
                continue
            if mail.peer in self.peers:
                self._send_one(Mail(mail.peer, self.peers.pop(mail.peer)), gone)
            self._send_one(mail, gone)
            if form is Listen and f"{mail.peer}>" in self.fds and mail.peer in self.core.tables.by_peer:
                self._send_one(Mail(f"{mail.peer}>", mail.message), [])  # to its reporter, too: it may hang in a kernel
        for peer, why in gone:  # its consequences come after all mail decided while the peer was connected
            self._lose(peer, why)

    def _send_waiting(self) -> None:
        """Send the messages for which workers have room."""
        for peer, waiting in list(self.waiting.items()):
            try:
                while waiting and self._post(peer, waiting[0]):
                    waiting.popleft()
            except (zmq.ZMQError, OSError):  # `_ended` handles the end of its connection
                waiting.clear()
            if not waiting and self.lanes.pushed(peer):
                del self.waiting[peer]
                self.lanes.watch_room(peer, False)

    def _send_peers(self) -> None:
        """Send the waiting Peers messages."""
        waiting, self.peers, self.send_peers_at = self.peers, {}, time.monotonic() + PEERS_INTERVAL
        gone: list[tuple[str, str]] = []
        for peer, message in waiting.items():
            self._send_one(Mail(peer, message), gone)
        for peer, why in gone:
            self._lose(peer, why)

    def _send_one(self, mail: Mail, gone: list[tuple[str, str]]) -> None:
        if mail.peer == self.own_worker:
            self._leave_for_own_worker(mail.message)
            return
        data = encode(mail.message) if type(mail.message) is not Peers else self._encode(mail.message)
        try:
            if mail.peer in self.waiting:
                self.waiting[mail.peer].append(data)
            elif not self._post(mail.peer, data):
                if mail.peer in self.core.tables.by_peer:  # a busy worker will read them later
                    self._wait_for(mail.peer, data)
                else:
                    gone.append((mail.peer, f"it does not take its answers: {QUEUE} wait for it"))
            elif not self.lanes.pushed(mail.peer):
                self._wait_for(mail.peer)
        except (zmq.ZMQError, OSError):
            gone.append((mail.peer, self._how_it_ended(mail.peer)))  # a send may meet the end before its event comes

    def _leave_for_own_worker(self, message: Any) -> None:
        """A Run of instructions alone is left as it is: they are flat tuples, and neither side changes a list of them."""
        plain = type(message) is Run and not (message.kinds or message.traces)
        self.own_mail.append(message if plain else encode(message))

    def _wait_for(self, worker: str, *messages: bytes) -> None:
        """Queue messages until a worker's send queue has room for them, or for the rest of the last one."""
        self.waiting[worker] = deque(messages)
        self.lanes.watch_room(worker, True)

    def _encode(self, message: Peers) -> bytes:
        """Encode a message for several peers once."""
        last = self.encoded[0]
        if last is None or last.workers is not message.workers or last.lost != message.lost:
            self.encoded = (message, encode(message))
        return self.encoded[1]

    def _lose(self, peer: str, why: str) -> None:
        worker = self.core.tables.by_peer.get(peer)
        self.peers.pop(peer, None)
        self.departed = True
        if worker is not None:
            self.left[worker.address] = time.monotonic() + REMOVE_SECONDS
        self._send(self.core.lose(peer, why))

    def _tidy(self) -> None:
        """Remove the socket files of killed workers. A worker that is just ending may still listen for a moment."""
        now = time.monotonic()
        self.check_sockets_at = now + 1.0
        for address, until in list(self.left.items()):
            if remove_worker_socket(address) or now > until:
                del self.left[address]

    def _post(self, peer: str, data: bytes) -> bool:
        """Send a message to a peer. Returns whether its queue had room."""
        taken = self.lanes.post(peer, data)
        if taken is not None:
            return taken
        self.sources.used(self.router)
        try:
            self.router.send(peer.encode("latin1"), FIRST)
            self.router.send(data, LAST)
        except zmq.Again:
            return False
        return True

    def _ended(self) -> None:
        ended = set(self.ends.drain())
        if self.ends.cut_off != self.cut_off:
            self.core.reports.tell(
                f"cut off {self.ends.cut_off - self.cut_off} connections: too many, or none of their messages came in time"
            )
            self.cut_off = self.ends.cut_off
        if not ended:
            return
        for peer in [p for p, fd in self.fds.items() if fd in ended]:
            del self.fds[peer]
            how = self._how_it_ended(peer)
            self.remote.discard(peer)
            self._read_last_messages(peer.removesuffix(">"))
            self._lose(peer.removesuffix(">"), how)

    def _how_it_ended(self, peer: str) -> str:
        """The reason that others are given for a connection that has ended; between hosts silence ends it, too."""
        if peer not in self.remote:
            return "its connection ended"
        return f"its connection ended, or it gave no sign of life for {environment.TIMEOUT.value():g} s (GT_TIMEOUT)"

    def _read_last_messages(self, name: str) -> None:
        """A connection of this peer has ended: read the messages that it sent before, and close its lane."""
        for sender in self.lanes.of(name):
            for _ in range(MAX_LAST_MESSAGES):
                if not self._from_lane(*sender):
                    break
        if name in self.lanes.to and name in self.waiting:
            self.lanes.watch_room(name, False)
            del self.waiting[name]
        self.lanes.end(name)

    def close(self) -> None:
        self._tidy()
        self.lanes.close()
        self.ends.close()
        self.router.close()
