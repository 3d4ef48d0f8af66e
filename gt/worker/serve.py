"""A worker's shell: the only file here with sockets, clocks and shared memory."""

from __future__ import annotations

import gc
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

from gt import __version__, environment
from gt.errors import ConnectionFailed, ProtocolError
from gt.transport import process_memory, shm
from gt.transport.addresses import NAMES, check_host, host_name, nearest, on_this_host, own_address, worker_socket
from gt.transport.auth import NO_KEYS, WORKER, Keys, admit_users, listen, reach, role, user_name
from gt.transport.channels import ChannelListener
from gt.transport.connection_limits import WatchedSocket, raise_descriptor_limit
from gt.transport.debug_output import See
from gt.transport.events import Listen, Report
from gt.transport.messages import (
    PRIORITIES,
    VERSION,
    Aborted,
    Ask,
    Attach,
    Attached,
    Bye,
    Came,
    Drain,
    Drop,
    InputFailed,
    Join,
    Mail,
    Noted,
    Peers,
    Piece,
    Refuse,
    Release,
    Run,
    StallQuery,
    Upload,
    Ways,
    Welcome,
    decode,
    encode,
)  # fmt: skip
from gt.transport.process_memory import Inbox
from gt.transport.reporting import Reporter
from gt.transport.sockets import FIRST, LAST, PART, Ends, first_word, how_it_ended, open_socket, parts, whole
from gt.transport.wake import Waker
from gt.worker.client_values import Poisoned
from gt.worker.collectives.choose import collectives_for, way_asked
from gt.worker.core import Worker
from gt.worker.engine import Engine
from gt.worker.engine.host_copy import host_share
from gt.worker.fair_queue import FairQueue
from gt.worker.memory_release import give_back
from gt.worker.peer_names import DISPATCHER, worker_peer
from gt.worker.programs.units import Units
from gt.worker.shared_memory import SharedMemory
from gt.worker.stalls import Stalls
from gt.worker.state import StateReader
from gt.worker.turns import Turn

QUEUE = 1 << 12  # answers that wait for a client to take them; each is one that it waits for
UNREAD = 64  # messages of one peer that wait to be read
PEERS = 1 << 16  # names of clients that have attached: whoever may connect may say so, under any number of names
UNTAKEN = 256 << 20  # bytes of answers to a client that has not attached from which on no other is kept
FIRST_WORD = 64 << 10  # bytes of the message with which a peer comes, at most
TURNS = 32  # of clients, before it looks at its other sockets
LINGER = 5000  # milliseconds in which clients can take the last answers of a worker that leaves
TURN = 1000  # milliseconds after which it looks up: a signal that comes to another thread, such as Gloo's, wakes no poll


class Shell:
    """Joins a dispatcher and serves until it goes away."""

    def __init__(
        self, address: str, engine: Engine, keys: Keys = NO_KEYS, name: str = "", timeout: float = 10.0, see: See | None = None,
        batch: int = 1, say: Callable[[str], None] | None = None, plain: bool = False,
    ) -> None:  # fmt: skip
        check_host(address)
        self.see, self.address, self.ended = see, address, ""  # the last: what is to be told of the end
        self.spoilt = False  # the device is of no use any more
        self.memory = SharedMemory()
        self.host = own_address(address) if address.startswith("tcp://") else "127.0.0.1"
        self.waker, self.alone = Waker(), True
        self.inbox = Inbox() if way_asked() == "memory" and process_memory.supported() else None
        self.core = Worker(engine, self.memory)
        self.core.host.limit(environment.DEVICE_MEMORY.value(), environment.HOST_MEMORY.value() or host_share(engine))
        limit = environment.COLLECTIVE_TIMEOUT.value() or float("inf")
        self.stalls = Stalls(self.core, environment.STALL_SECONDS.value(), limit)
        self.core.more, self.core.left, self.core.clock = self._times, self._left, time.time
        if batch > 1:
            self.core.units = Units(batch)
        if say is not None:
            self.core.say = say
        self.keys = keys
        self.plain = plain or (address.startswith("tcp://") and not keys.guarded)  # without a key nothing is encrypted anyway
        self.peers: dict[int, zmq.Socket] = {}  # to other workers, where mail goes to them
        self.early: list[tuple[str, Any, tuple]] = []  # what came from workers that are not known yet
        self.look_at = 0.0  # when to look again whether clients have come whose work waits
        self.token = secrets.token_hex(12)
        self.control = open_socket(zmq.DEALER, self.token.encode())
        self.reporter = Reporter(address, keys, self.token.encode() + b">", self._reports)
        self.more = zmq.Poller()
        self.more.register(self.control, zmq.POLLIN)
        self.sources = zmq.Poller()  # all that is not the dispatcher's
        self.ends = Ends(self.control)
        self.data = open_socket(zmq.ROUTER)
        self.data.setsockopt(zmq.MAXMSGSIZE, 2 * PART)
        self.crowd = WatchedSocket(self.data, raise_descriptor_limit())
        self.let_in: set[str] = set()  # peers whose connections count as let in
        self.data.setsockopt(zmq.SNDHWM, QUEUE)
        self.data.setsockopt(zmq.RCVHWM, UNREAD)  # past this a peer has to keep them itself
        self.waiting: dict[str, list[Mail]] = {}  # mail for clients that have not attached yet; none for one that was refused
        self.refused: set[str] = set()  # clients that do not take their answers, which the dispatcher is to let go
        self.attached: dict[str, str] = {}  # clients that have connected, in their order, and whose key they have
        self.users: dict[str, str] = {}  # whose key clients are to have
        self.untidy = False  # a client has left, and what was kept for it is not given back yet
        self.asked = False  # to be let go
        self.leaves: float | None = None  # when it goes at the latest, once it was asked to end
        self.released: str | None = None  # its tensors are on their way elsewhere; "" or which are not
        self.idle = self.busy = 0.0
        self.turned = 0.0  # when it last had something to do, until that is done
        self.state = StateReader(self.core, time.time, self._busy)
        self.state_at = 0.0  # when to report it next
        self.inbound: deque[Any] = deque()  # what the dispatcher sent that belongs to no client's stream
        self.queue = FairQueue()
        self.serving, self.turn_began = "", 0.0  # the client whose turn it is, and since when
        self.core.executor.turn = Turn(time.perf_counter, self._others, lambda: self._behind(self.serving))
        self.shared_until = 0.0  # when the device counts as one client's again
        self.core.answers.seconds = self._seconds
        local = worker_socket()
        listen(self.data, local, keys)
        self.listener = ChannelListener(local) if shm.supported() else None
        if self.listener is not None:
            NAMES.hold(self.listener.path)
        remote = ""
        if address.startswith("tcp://"):
            remote = listen(self.data, f"tcp://{own_address(address)}:*", keys)
        reach(self.control, address, keys)
        name = name or f"{host_name()}-{os.getpid()}"
        join = Join(VERSION, "", name, engine.name, engine.device, host_name(), os.getpid(), local, remote, __version__)
        self.control.send(encode(join))
        self._take(self._read(first_word(self.control, self.ends, address, timeout)))
        if self.core.index < 0:
            raise ConnectionFailed(f"the dispatcher at {address} refused this worker")

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Serve until the end. A kernel that spoilt the device is told of, and ends this worker."""
        try:
            self._run(until)
        except Poisoned as spoilt:
            self.ended, self.spoilt = str(spoilt), True
            self.say_goodbye(self.ended)
            time.sleep(0.5)  # for the message to leave

    def _run(self, until: Callable[[], bool]) -> None:
        self.core.engine.clock = time.perf_counter
        self.core.engine.begin()
        self.core.cancellation.now, self.core.cancellation.take_in = time.perf_counter, self._take_in
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        poller, clock = self._poller(), time.perf_counter
        while not until():
            before = clock()
            soon = self._next() is not None or self.inbound or self._device_pending()
            ready = dict(poller.poll(0 if soon else TURN))
            after = clock()
            self.idle, self.turned = self.idle + after - before, after
            if self.leaves is not None and self._left_all():
                return
            if self.untidy and not ready and not self.queue.instructions and self.core.parked is None:
                self._release_memory()
            if self.waker.fd in ready:
                self.waker.clear()
                self._send(self.core.resume())
            if self.inbox is not None and self.inbox.fd in ready:
                self.inbox.drain()
                self._send(self.core.resume())
            if self.core.absent.held and after > self.look_at:
                self.look_at = after + 1.0
                self._send(self.core.resume())
            if self.core.parked is not None:
                self._send(self.stalls.look(after))
                if not ready:
                    self._send(self.core.resume())
            if self.data in ready:
                self._data()
            self._control()
            if self.ends.socket in ready and self.ends.drain():
                if not on_this_host(self.address):
                    self.ended = f"the dispatcher at {self.address} {how_it_ended(self.address)}"
                return  # the dispatcher is gone, and with it everyone this worker worked for
            self.busy, self.turned = self.busy + clock() - after, 0.0

    def _poller(self) -> zmq.Poller:
        """All that can have something to read."""
        poller = zmq.Poller()
        for source in (self.data, self.ends.socket, self.waker.fd, *([self.inbox.fd] if self.inbox is not None else [])):
            poller.register(source, zmq.POLLIN)
            self.sources.register(source, zmq.POLLIN)
        poller.register(self.control, zmq.POLLIN)
        return poller

    def drain(self) -> None:
        """Leave, but not before what is queued is done and what lies here is elsewhere, or the time for that is over. Called
        from a signal's handler, so it only notes that."""
        self.leaves = time.perf_counter() + environment.DRAIN.value()
        self.waker.wake()

    def _left_all(self) -> bool:
        """Whether a worker that was asked to end has nothing left to do; the dispatcher is told, first and last."""
        if not self.asked:
            self.asked = True
            self.control.send(encode(Drain()))
        late = self.leaves is not None and time.perf_counter() > self.leaves
        if not late and (self.released is None or self._unfinished()):
            return False
        why = "the time to pass on its tensors was over (GT_DRAIN)" if self.released is None else self.released
        self.say_goodbye(f"it was asked to end{', and ' if why else ''}{why}")
        return True

    def say_goodbye(self, why: str) -> None:
        """The last word to the dispatcher, which passes it on to those who have values here."""
        for socket in (self.control, self.data, *self.peers.values()):
            socket.setsockopt(zmq.LINGER, LINGER)
        self.control.send(encode(Bye(why)))

    def _unfinished(self) -> bool:
        core = self.core
        waiting = core.parked is not None or core.preempted or core.absent.held or core.backlog or self.inbound
        return bool(waiting) or self.queue.waiting()

    def _control(self) -> None:
        """Some turns of clients, in the order that is fair. What is no client's comes first."""
        for _ in range(TURNS):
            self._take_in()
            if self.core.streams is not None:
                self._follow_device()
            while self.inbound:
                self._take(self.inbound.popleft())
            client = self._next()
            if client is None:
                return
            self._serve(client)
            if client in self.core.preempted:
                return  # for another client, or for what came on another socket

    def _next(self) -> str | None:
        if self.queue.begun and not self.core.unfinished(self.queue.ordered[0]):
            self.queue.ended()
        parked, preempted = self._parked(), self.core.preempted
        for client in self.core.cancellation.gone:  # what is left of these is skipped, and their memory freed
            if client != parked and self.queue.can_go_on(client, preempted):
                return client
        return self.queue.next(parked, preempted, self._behind)

    def _parked(self) -> str | None:
        return self.core.parked.run.client if self.core.parked is not None else None

    def _others(self) -> bool:
        """Whether others than the client at hand wait for this worker, or something came that may be for them."""
        if not self._take_in():
            return False
        if self.serving in self.core.cancellation.gone:
            return True  # what is left is skipped: the dispatcher was told how many collectives had begun
        return self.queue.others(self.serving, self._parked(), self.core.preempted) or bool(self.sources.poll(0))

    def _serve(self, client: str) -> None:
        """One turn of a client: the rest of a run that it was left in the middle of, or its next message."""
        began = self.turn_began = time.perf_counter()
        self.serving, streams = client, self.core.streams
        assert self.core.executor.turn is not None
        self.core.executor.turn.begin()
        timed = streams is not None and self._share_device(began)
        if timed:
            streams.begin(client)
        if client in self.core.preempted:
            self._send(self.core.go_on(client))
        else:
            self._take(self.queue.take(client, began))
        self.queue.preemptions += client in self.core.preempted
        if timed and client in self.queue.shares:
            streams.end(client)  # charged when the device has come to it
        else:
            self.queue.charge(client, time.perf_counter() - began)

    def _share_device(self, now: float) -> bool:
        """Whether several clients are busy on a device that runs behind, or were a moment ago."""
        streams = self.core.streams
        if len(self.queue.active) > 1:
            self.shared_until = now + 1.0
        streams.shared = now < self.shared_until
        return bool(streams.shared)

    def _device_pending(self) -> bool:
        return self.core.streams is not None and self.core.streams.pending()

    def _behind(self, client: str) -> bool:
        streams = self.core.streams
        return streams is not None and streams.shared and streams.behind(client)

    def _follow_device(self) -> None:
        """Charge the turns that the device has ended, and send the answers that it has come to."""
        streams = self.core.streams
        if streams.turns:
            for client, seconds in streams.measured():
                self.queue.charge(client, seconds)
        if streams.answers:
            self._send(streams.answered())

    def _seconds(self, client: str) -> float:
        """Device time that a client has had, that of its turn under way included."""
        share = self.queue.shares.get(client)
        return (share.seconds if share else 0.0) + time.perf_counter() - self.turn_began

    def _take_in(self) -> bool:
        """Receive what the dispatcher has sent, and note whose end is among it: the work of those is not done any more. Kernels
        ask for it, too, from whichever thread runs them; sockets are the first thread's alone."""
        if threading.current_thread() is not threading.main_thread():
            return False
        now = time.perf_counter()
        while self.more.poll(0):
            message = self._read(self.control.recv())
            match message:
                case Run(client) | Drop(client) | Ask(_, _, (client, _)):
                    self.queue.put(client, message, now)
                    if type(message) is Drop:
                        self._send(self.core.leaving(message))
                case _:
                    self.inbound.append(message)
        return True

    def _take(self, message: Any) -> None:
        if type(message) is Run:
            self._send(self.core.handle(Mail(DISPATCHER, message)))
            return
        if type(message) is Bye:
            if self.asked:
                self.released = message.why
                return
            raise ConnectionFailed(f"the dispatcher {message.why}")
        if type(message) is Came:
            self._introduce(message)
        if type(message) is Welcome and self.keys.pool:
            admit_users(message.users)
        if type(message) is Peers and self.alone and len(message.workers) > 1:
            self.alone = False
            self.core.collectives = collectives_for(
                self.core.engine, self.host, self.waker.wake, time.monotonic, self.inbox, self.plain
            )
            self.core.collectives.index = self.core.index
        if message is not None:
            self._send(self.core.handle(Mail(DISPATCHER, message)))
        if type(message) is Peers:
            self._meet()
        elif type(message) is Listen:
            self.reporter.on(self.core.recorder is not None)

    def _meet(self) -> None:
        """Other workers came or went."""
        there = self.core.collectives.peers
        for index in self.peers.keys() - there.keys():
            self.peers.pop(index).close(0)
        self.let_in.intersection_update({*self.attached, *(peer.token for peer in there.values())})
        early, self.early = self.early, []
        for piece in early:
            self._from_peer(*piece)

    def _data(self) -> None:
        for _ in range(32):
            try:
                peer, *frames = self.data.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            client = peer.bytes.decode("latin1")
            if frames and client not in self.let_in and len(frames[0]) > FIRST_WORD:
                self.core.dropped += 1  # too long for what it may say before it is let in
                continue
            match self._read(frames[0].buffer) if frames else None:
                case None:
                    pass
                case Attach(name, token) if name == client and name not in self.refused:
                    self._let_in(client, peer)
                    self._attach(client, token, user_name(role(peer)) if self.keys.pool else "")
                case Release(segment):
                    self._release(client, segment)
                case (Piece() | InputFailed() | StallQuery() | Noted() | Ways() | Aborted()) as word if (
                    not self.keys.guarded or role(peer) == WORKER
                ):
                    self._let_in(client, peer)
                    self._from_peer(client, word, whole([f.buffer for f in frames[1:]]))
                case Upload() if client not in self.attached:
                    self.core.dropped += 1  # nobody whom the dispatcher knows, or no longer
                case message:
                    self._send(self.core.handle(Mail(client, message, whole([f.buffer for f in frames[1:]]))))

    def _let_in(self, name: str, peer: Any) -> None:
        if name not in self.let_in:
            self.let_in.add(name)
            self.crowd.let_in(peer.get(zmq.SRCFD))

    def _read(self, frame: Any) -> Any:
        try:
            message = decode(frame)
        except ProtocolError:
            self.core.dropped += 1
            return None
        if self.see is not None:
            self.see("<-", message)
        return message

    def _release(self, client: str, segment: int) -> None:
        try:
            self.memory.release(client, segment)
        except ProtocolError:
            self.core.dropped += 1

    def _from_peer(self, token: str, word: Piece | InputFailed | StallQuery | Noted | Ways | Aborted, frames: tuple) -> None:
        """What another worker sends. It may know of this one before this one is told of it."""
        peer = self.core.collectives.peers.get(word.sender)
        if peer is not None and peer.token == token:
            self._send(self.core.handle(Mail(worker_peer(word.sender), word, frames)))
        elif len(self.early) < 1024:
            self.early.append((token, word, frames))

    def _introduce(self, came: Came) -> None:
        """A client has come. One that connects by its name has to have its user's key."""
        self.users[came.client] = came.user
        if self.attached.get(came.client, came.user) != came.user:
            self.core.dropped += 1
            self._left(came.client)
        self.queue.introduce(came)
        if self.core.streams is not None and came.weight >= PRIORITIES["interactive"]:
            self.core.streams.prefer(came.client)

    def _attach(self, client: str, token: bytes, user: str) -> None:
        if self.users.get(client, user) != user:
            self.core.dropped += 1
            return
        channel = self.listener.claim(token) if self.listener is not None else None
        if channel is not None:
            self.memory.share(client, channel)
        self.attached[client] = user
        self.memory.met.add(client)
        if len(self.attached) > PEERS:  # one of those that the dispatcher never spoke of
            self._left(next((name for name in self.attached if name not in self.core.spaces), client))
        self._post(Mail(client, Attached(self.core.index, channel is not None)))
        for mail in self.waiting.pop(client, ()):
            self._post(mail)
        self._send(self.core.resume())

    def _times(self) -> dict[str, Any]:
        total = self.idle + self.busy
        return {"idle": self.idle / total if total else 1.0, "busy_seconds": self.busy, "queue": self.queue.instructions,
                "preemptions": self.queue.preemptions, "shares": self.queue.stats()}  # fmt: skip

    def _busy(self) -> tuple[float, float, int]:
        """Seconds busy and idle, and the queue; for any thread."""
        since = self.turned
        return self.busy + (time.perf_counter() - since if since else 0.0), self.idle, self.queue.instructions

    def _reports(self) -> list[Report]:
        """What was recorded, and twice a second the state; called by the reporter's thread."""
        found = [mail.message for mail in self.core.reports()]
        if time.monotonic() > self.state_at:
            self.state_at = time.monotonic() + 0.5
            found.append(Report((self.state(),)))
        return found

    def _release_memory(self) -> None:
        """A client has left, and for a turn there was nothing to do."""
        self.untidy = False
        give_back(self.core.engine, alone=not self.core.spaces)

    def _left(self, client: str) -> None:
        self.attached.pop(client, None)
        self.users.pop(client, None)
        self.let_in.discard(client)
        self.waiting.pop(client, None)
        self.refused.discard(client)
        self.memory.drop(client)
        self.queue.forget(client)
        self.untidy = True

    def _send(self, mails: list[Mail]) -> None:
        for mail in mails:
            if self.see is not None:
                self.see("->", mail.message)
            if mail.peer == DISPATCHER:
                self.control.send(encode(mail.message))
            elif mail.peer in self.attached:
                self._post(mail)
            elif mail.peer.startswith("#"):
                self._to_peer(int(mail.peer[1:]), mail)
            elif mail.peer in self.core.spaces and mail.peer not in self.refused:
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
        self.control.send(encode(Refuse(client, why)))

    def _to_peer(self, index: int, mail: Mail) -> None:
        peer = self.core.collectives.peers.get(index)
        if peer is None:
            return  # it is gone, and nobody waits for what it would have had
        if index not in self.peers:
            socket = self.peers[index] = open_socket(zmq.DEALER, self.token.encode())
            reach(socket, nearest(peer.address, peer.remote), self.keys)
        self.peers[index].send_multipart([encode(mail.message), *parts(mail.frames)])

    def _post(self, mail: Mail) -> None:
        try:
            self.data.send(mail.peer.encode("latin1"), FIRST)
            self.data.send(encode(mail.message), FIRST if mail.frames else LAST)
            for i, frame in enumerate(mail.frames, 1):
                self.data.send(frame, FIRST if i < len(mail.frames) else LAST, copy=len(frame) < shm.SMALL)
        except zmq.Again:
            self._refuse(mail.peer, f"it does not take its answers: {QUEUE} wait for it")
        except zmq.ZMQError:
            self.attached.pop(mail.peer, None)  # the client is gone; the dispatcher will say so

    def close(self) -> None:
        self.reporter.close()
        self.ends.close()
        for socket in self.peers.values():
            socket.close()
        self.control.close()
        self.crowd.close()
        self.data.close()
        if self.listener is not None:
            self.listener.close()
        if self.inbox is not None:
            self.inbox.close()
