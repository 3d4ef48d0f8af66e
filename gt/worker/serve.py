"""A worker's shell: its sockets, clocks and shared memory around the core, and the loop that waits for mail."""

from __future__ import annotations

import gc
import os
import secrets
import time
from collections.abc import Callable
from typing import Any

import zmq

from gt import __version__, environment
from gt.errors import ConnectionFailed, ProtocolError
from gt.transport import process_memory
from gt.transport.addresses import check_host, host_name, own_address
from gt.transport.auth import NO_KEYS, WORKER, Keys, admit_users, role
from gt.transport.debug_output import See
from gt.transport.events import OFF, Listen, WorkerReport
from gt.transport.messages import (
    VERSION,
    Aborted,
    Attach,
    Attached,
    Bye,
    Came,
    Drain,
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
)  # fmt: skip
from gt.transport.polling import Sources
from gt.transport.process_memory import Inbox
from gt.transport.reporting import Reporter
from gt.transport.sockets import whole
from gt.transport.wake import Waker
from gt.worker.answers import grouped
from gt.worker.arrivals import Arrivals
from gt.worker.busy_time import BusyTime
from gt.worker.client_socket import ClientSocket
from gt.worker.client_values import Poisoned
from gt.worker.collectives.choose import collectives_for, way_asked
from gt.worker.core import Worker
from gt.worker.core_waits import core_waits
from gt.worker.departure import Departure
from gt.worker.dispatcher_socket import Connect, DispatcherSocket
from gt.worker.engine import Engine
from gt.worker.engine.choose import has_small_kernels
from gt.worker.engine.host_copy import host_share
from gt.worker.fair_queue import SLICE
from gt.worker.memory_release import MemoryRelease
from gt.worker.peer_names import DISPATCHER, worker_peer
from gt.worker.peer_sockets import PeerSockets
from gt.worker.programs.units import Units
from gt.worker.second_thread import begin_second_thread
from gt.worker.stalls import Stalls
from gt.worker.state import StateReader

TURNS = 32  # most turns of clients before the other sockets are polled
LINGER = 5000  # milliseconds for clients to take the last answers of a leaving worker
WAKE = 1000  # milliseconds of the longest poll: a signal delivered to another thread, such as Gloo's, does not end a poll


class Shell:
    """Joins a dispatcher and serves until the dispatcher ends."""

    def __init__(
        self, address: str, engine: Engine, keys: Keys = NO_KEYS, name: str = "", timeout: float = 10.0, see: See | None = None,
        batch: int = 1, say: Callable[[str], None] | None = None, plain: bool = False, advertise: str = "",
        connection: Connect = DispatcherSocket,
    ) -> None:  # fmt: skip
        check_host(address)
        self.see, self.address, self.keys = see, address, keys
        self.ended, self.spoilt = "", False  # the reason of the end, if it has to be reported; whether the device is unusable
        self.client_left = False  # whether a client has left and cached memory is not released yet
        self.departure, self.busy, self.release = Departure(), BusyTime(time.perf_counter), MemoryRelease()
        self._open_sockets(connection)
        self._make_core(engine, batch, say)
        self._prepare_collectives(plain)
        lanes = self.clients.lanes
        self.arrivals = Arrivals(self.dispatcher, lanes, self.sources, self.core, time.perf_counter, self._read, self._send)
        self.turns = self.arrivals.turns
        self.state = StateReader(self.core, time.time, self._load)
        self._join(name or f"{host_name()}-{os.getpid()}", timeout, advertise)

    def _open_sockets(self, connection: Connect) -> None:
        self.token, self.waker = secrets.token_hex(12), Waker()
        self.sources = Sources()  # sockets, lanes and wake-ups to poll
        self.dispatcher = connection(self.address, self.keys, self.token, self.sources)
        self.reporter = Reporter(self.address, self.keys, self.token.encode() + b">", self._reports)
        refuse: Callable[[str, str], None] = lambda client, why: self.dispatcher.send(Refuse(client, why))
        self.clients = ClientSocket(self.keys, refuse, self._left, self.sources)
        self.peers = PeerSockets(self.token, self.keys)

    def _make_core(self, engine: Engine, batch: int, say: Callable[[str], None] | None) -> None:
        self.core = Worker(engine, self.clients.memory)
        self.core.host.limit(environment.DEVICE_MEMORY.value(), environment.HOST_MEMORY.value() or host_share(engine))
        self.clients.memory.map = self.core.streams.maps if self.core.streams is not None else None
        self.core.flush, self.core.more, self.core.left, self.core.clock = self._send, self._stats, self._left, time.time
        if batch > 1:
            self.core.units = Units(batch)
        self.core.say = say or self.core.say
        limit = environment.COLLECTIVE_TIMEOUT.value() or float("inf")
        self.stalls = Stalls(self.core, environment.STALL_SECONDS.value(), limit)

    def _prepare_collectives(self, plain: bool) -> None:
        on_network = self.address.startswith("tcp://")
        self.alone = True  # until there is a second worker
        self.host = own_address(self.address) if on_network else "127.0.0.1"
        self.plain = plain or (on_network and not self.keys.guarded)  # without a key nothing is encrypted
        self.inbox = Inbox() if way_asked() == "memory" and process_memory.supported() else None

    def _join(self, name: str, timeout: float, advertise: str) -> None:
        local, remote = self.clients.listen(self.address, advertise)
        engine = self.core.engine
        host = environment.HOST.value() or host_name()
        small = has_small_kernels(engine)
        join = Join(VERSION, "", name, engine.name, engine.device, host, os.getpid(), local, remote, __version__, small=small)
        self._take(self._read(self.dispatcher.join(join, timeout)))
        if self.core.index < 0:
            raise ConnectionFailed(f"the dispatcher at {self.address} refused this worker")
        self.reporter.start()

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Serve until the end. A kernel failure that made the device unusable is reported, and ends this worker."""
        try:
            self._run(until)
        except (Poisoned, RuntimeError) as spoilt:  # the next call to the device raises it, even a query of an event's time
            if not isinstance(spoilt, Poisoned) and not self.core.engine.poisoned(spoilt):
                raise
            self.ended, self.spoilt = str(spoilt), True
            self.say_goodbye(self.ended)
            time.sleep(0.5)  # for the message to leave

    def _run(self, until: Callable[[], bool]) -> None:
        self.core.engine.clock = time.perf_counter
        self.core.engine.begin()
        self.core.cancellation.now, self.core.cancellation.take_in = time.perf_counter, self.arrivals.take_in
        self.turns.core_waits = core_waits()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        self._poll_sources()
        begin_second_thread(self.turns, [self.dispatcher.descriptor(), self.clients.lanes.starts_fd])
        while not until():
            before = time.perf_counter()
            soon = self.arrivals.others or self.turns.device_pending() or self.turns.next() is not None
            ready = self.dispatcher.wait(0 if soon else WAKE)
            after = self.busy.waited(before)
            if self.departure.deadline is not None and self._departs(after):
                return
            if self.client_left and not ready and not self.turns.queue.instructions and self.core.parked is None:
                self._release_memory()
            self._resume_waiting(ready, after)
            if self.clients.lanes.starts_fd in ready:
                self.arrivals.start_runs(self.turns.serve_started)
            if self.clients.socket in ready:
                self._receive_data()
            self._control(after)
            if self.dispatcher.has_ended(ready):
                self.ended = self.dispatcher.how_it_ended()
                return  # the dispatcher has ended, and with it all clients' sessions
            self.busy.worked()

    def _resume_waiting(self, ready: list[Any], now: float) -> None:
        """Go on with work that waited for other workers."""
        if self.waker.fd in ready:
            self.waker.clear()
            self._send(self.core.resume())
        if self.inbox is not None and self.inbox.fd in ready:
            self.inbox.drain()
            self._send(self.core.resume())
        if self.core.parked is not None:
            self._send(self.stalls.look(now))
            if not ready:
                self._send(self.core.resume())

    def _poll_sources(self) -> None:
        others = [self.clients.socket, self.waker.fd]
        for source in others if self.inbox is None else [*others, self.inbox.fd]:
            self.sources.add(source)
        self.dispatcher.poll()

    def drain(self) -> None:
        """Request the departure, which follows when the queue is empty and the tensors are on other workers, or after GT_DRAIN
        seconds. Called by a signal handler, so it only notes the request."""
        self.departure.ask(time.perf_counter() + environment.DRAIN.value())
        self.waker.wake()

    def _departs(self, now: float) -> bool:
        """Whether a leaving worker has no work left; announces the departure to the dispatcher at its begin and end."""
        if not self.departure.announced:
            self.departure.announced = True
            self.dispatcher.send(Drain())
        if not self.departure.due(now, self._unfinished()):
            return False
        self.say_goodbye(self.departure.reason())
        return True

    def say_goodbye(self, why: str) -> None:
        """Send the last message to the dispatcher, which forwards the reason to clients with values here."""
        self.clients.socket.setsockopt(zmq.LINGER, LINGER)
        self.dispatcher.linger(LINGER)
        self.peers.linger(LINGER)
        self.dispatcher.send(Bye(why))

    def _unfinished(self) -> bool:
        core = self.core
        waiting = core.parked is not None or core.preempted or core.backlog or self.arrivals.others
        return bool(waiting) or self.turns.queue.waiting()

    def _control(self, now: float) -> None:
        """Messages outside clients' streams, then some turns of clients in the fair queue's order, for a slice of time."""
        end = now + SLICE
        arrivals = self.arrivals
        if not arrivals.others and self.turns.alone(self.dispatcher.receive, self._read, arrivals.sort, end):
            return
        for _ in range(TURNS):
            arrivals.take_in()
            if self.turns.follow_device():
                arrivals.take_in()
            while arrivals.others:
                self._take(arrivals.others.popleft())
            if (client := self.turns.next()) is None:
                return
            if self.turns.serve(client) > end:
                return  # for mail on another socket

    def _take(self, message: Any) -> None:
        if type(message) is Run:
            self._send(self.core.handle(Mail(DISPATCHER, message)))
            return
        if type(message) is Bye:
            if self.departure.announced:
                self.departure.released = message.why
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
            recorder = self.core.recorder
            self.reporter.report(recorder.highest() if recorder is not None else OFF)

    def _meet(self) -> None:
        """The set of workers has changed."""
        peers = self.core.collectives.peers
        self.clients.keep_admitted([peer.token for peer in peers.values()])
        self.peers.meet(peers, self._from_peer)

    def _receive_data(self) -> None:
        for _ in range(32):
            received = self.clients.receive()
            if received is None:
                return
            client, peer, frames = received
            if self.clients.too_long(client, frames):
                self.core.dropped += 1
                continue
            match self._read(frames[0].buffer) if frames else None:
                case None:
                    pass
                case Attach(name) as word if name == client and name not in self.clients.refused:
                    self.clients.admit(client, peer)
                    self._attach(client, peer, word)
                case Release(segment):
                    self.core.dropped += not self.clients.release(client, segment)
                case (Piece() | InputFailed() | StallQuery() | Noted() | Ways() | Aborted()) as word if (
                    not self.keys.guarded or role(peer) == WORKER
                ):
                    self.clients.admit(client, peer)
                    self._from_peer(client, word, whole([f.buffer for f in frames[1:]]))
                case Upload() if client not in self.clients.attached:
                    self.core.dropped += 1  # unknown to the dispatcher, or no longer known
                case message:
                    self._send(self.core.handle(Mail(client, message, whole([f.buffer for f in frames[1:]]))))

    def _read(self, frame: Any) -> Any:
        try:
            message = frame if type(frame) is Run else decode(frame)  # (a Run of the dispatcher of this process)
        except ProtocolError:
            self.core.dropped += 1
            return None
        if type(message) is Run:
            self.sources.read = bool(message.gets)
        if self.see is not None:
            self.see("<-", message)
        return message

    def _from_peer(self, token: str, word: Piece | InputFailed | StallQuery | Noted | Ways | Aborted, frames: tuple) -> None:
        """A message of another worker, or of one that the dispatcher has not announced yet; those of a lost one are ignored."""
        peer = self.core.collectives.peers.get(word.sender)
        if peer is not None and peer.token == token:
            self._send(self.core.handle(Mail(worker_peer(word.sender), word, frames)))
        elif not self.peers.lost(word.sender) and not self.peers.keep_early(token, word, frames):
            self.core.drop(f"{type(word).__name__} of an unknown worker: too many such messages wait for its arrival")

    def _introduce(self, came: Came) -> None:
        """The dispatcher announces a client. A connection under its name has to have its user's key."""
        if not self.clients.expect(came.client, came.user):
            self.core.dropped += 1
            self._left(came.client)
        self.turns.queue.introduce(came)
        if self.core.streams is not None and came.interactive:
            self.core.streams.prefer(came.client)

    def _attach(self, client: str, peer: Any, word: Attach) -> None:
        if self.clients.attach(client, peer, word, self.core.index, self.core.spaces):
            self.dispatcher.send(Attached(self.core.index, True, client))
        else:
            self.core.dropped += 1

    def _stats(self) -> dict[str, Any]:
        parts = (self.busy, self.turns, self.peers, self.dispatcher, self.clients, self.release)
        return {key: value for part in parts for key, value in part.stats().items()}

    def _load(self) -> tuple[float, float, int]:
        """Seconds busy and idle, and instructions in the queue; may be called on any thread."""
        return *self.busy.so_far(), self.turns.queue.instructions

    def _reports(self) -> list[WorkerReport]:
        """The recorded events and, twice a second, the state; called by the reporter's thread."""
        events = [event for mail in self.core.reports() for event in mail.message.events]
        events += self.state.now_and_then()
        return [WorkerReport(tuple(events))] if events else []

    def _release_memory(self) -> None:
        """Release cached memory after a client has left, once the worker is idle."""
        self.client_left = False
        self.release.give_back(self.core.engine, not self.core.spaces, self.turns.on_other_thread)

    def _left(self, client: str) -> None:
        """A client's work and state are dropped: forget its name."""
        for known in (self.clients, self.turns.queue, self.turns.deferred):
            known.forget(client)
        self.client_left = True

    def _send(self, mails: list[Mail]) -> None:
        for mail in grouped(mails, self.clients.lanes.to) if len(mails) > 1 else mails:
            if self.see is not None:
                self.see("->", mail.message)
            if mail.peer == DISPATCHER:
                self.dispatcher.send(mail.message)
            elif mail.peer.startswith("#"):
                self._to_peer(int(mail.peer[1:]), mail)
            elif self.clients.send(mail, self.core.spaces) and not self.turns.turn.several:
                self.sources.answered()

    def _to_peer(self, index: int, mail: Mail) -> None:
        peer, hosts = self.core.collectives.peers.get(index), self.core.collectives.hosts
        if peer is not None:  # else the peer is lost, and nobody waits for the mail
            self.peers.send(index, peer, mail, hosts.get(index) == hosts.get(self.core.index))

    def close(self) -> None:
        self.peers.close()
        self.dispatcher.close()
        self.clients.close()
        if self.inbox is not None:
            self.inbox.close()
        self.reporter.close()  # the last, as the end of its connection is the end of this worker to the dispatcher
