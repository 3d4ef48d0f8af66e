"""A client's link to a dispatcher and its workers, over ZMQ."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import zmq

from gt.errors import ProtocolError
from gt.transport import lanes
from gt.transport.addresses import check_host, close_connections, host_name, nearest
from gt.transport.auth import Keys, reach
from gt.transport.client_memory import ClientMemory
from gt.transport.debug_output import See
from gt.transport.events import Seen
from gt.transport.interrupts import UNINTERRUPTED
from gt.transport.lane_tables import ClientLanes
from gt.transport.lanes import Lane
from gt.transport.messages import ANSWERS, VERSION, Attach, Attached, Bye, Hello, Mail, Peers, Release, decode, encode
from gt.transport.polling import Sources
from gt.transport.receiving import TAKEN, TURN_LEFT, Background, Receiving
from gt.transport.sockets import Ends, greet, how_it_ended, open_socket, parts, welcomed
from gt.transport.wake import ImmediateTimer, NoWaker, Waker, WakeTimer

ANSWER = 1.0  # seconds for workers to answer whether they share memory
WATCH = 2  # milliseconds between looks at the buffer while readers receive; without a reader, the link's thread receives
HANDOVER = 0.002  # seconds that a reader waits for the link's thread to give it the turn


class ZmqLink:
    """A session's link. Any thread sends, through a socket that only sends. One thread receives at a time: `Receiving` decides
    which, and the state of the link's own thread meanwhile."""

    def __init__(
        self, address: str, key: str = "", timeout: float = 5.0, see: See | None = None, weight: float = 1.0,
        priority: str = "normal", memory: int = 0,
    ) -> None:  # fmt: skip
        self.keys = Keys(key).check()
        check_host(address)
        self.address, self.see = address, see
        self.name = secrets.token_hex(12)
        self.inbox = open_socket(zmq.DEALER, self.name.encode())
        self.outbox: zmq.Socket[Any] | None = None  # sends to a dispatcher to which there is no lane
        self.waker: Waker | NoWaker = Waker()  # for whoever has the turn
        self.hand: Waker | NoWaker = Waker()  # for the link's thread, where it has stepped aside
        self.wake_timer: WakeTimer | ImmediateTimer | NoWaker = WakeTimer() if sys.platform == "linux" else ImmediateTimer()
        self.receiving = Receiving()
        self.session: Any = None
        self.workers: tuple[Any, ...] = ()  # from the dispatcher's last message
        self.data: dict[str, zmq.Socket[Any]] = {}  # by worker's name
        self.polled: dict[zmq.Socket[Any], str] = {}  # sockets that are received from, and their peers
        self.indices: dict[int, str] = {}
        self.how_it_ended: Callable[[], str] = str  # the reason, where this process has started the dispatcher's
        self.slow: set[str] = set()  # workers that have not answered in time whether they share memory
        self.sharing: dict[str, bool] = {}
        self.memory = ClientMemory()
        self.put, self.sealed, self.executed = self.memory.put, self.memory.sealed, self.memory.executed
        self.lane: Lane | None = None  # sends to the dispatcher, where it is of this host and user
        self.attached = threading.Condition()
        self.posts: deque[tuple[str, Any, tuple[Any, ...]]] = deque()  # for workers, sent by the receiving thread
        self.ends, self.moved = Ends(self.inbox), False  # `moved`: the set of workers changed
        self.sources = Sources(self.wake_timer.fd, keeps_core=priority == "interactive")
        self.lanes = ClientLanes(self.sources)
        for source in (self.inbox, self.ends.socket, self.waker.fd):
            self.sources.add(source)
        self.lane, token = lanes.connect(address)
        self._greet(timeout, Hello(VERSION, "", host_name(), os.getpid(), weight, priority, memory, token))

    def _greet(self, timeout: float, hello: Hello) -> None:
        reach(self.inbox, self.address, self.keys)
        try:
            self.welcome = welcomed(greet(self.inbox, self.ends, self.address, encode(hello), timeout), self.address)
            if not self.welcome.lane:
                self._open_outbox()
        except BaseException:  # close the sockets on any error, Ctrl-C too
            self._close_sockets()
            raise

    def _open_outbox(self) -> None:
        """Send to the dispatcher over a connection of ZMQ. With a lane, a connection would only cost the dispatcher memory."""
        if self.lane is not None:
            self.lane.close()
            self.lane = None
        self.outbox = open_socket(zmq.DEALER, self.name.encode() + b">")
        reach(self.outbox, self.address, self.keys)
        self.outbox.send(b"")  # so that the dispatcher knows the connection

    def start(self, session: Any) -> None:
        self.session = session
        self._meet(self.welcome.workers)
        self.thread = threading.Thread(target=self._receive, name="gt-link", daemon=True)
        self.thread.start()

    # Called by any thread
    clock = staticmethod(time.time)

    def send(self, message: Any) -> None:
        """Send a batch. The session's lock orders senders."""
        if not self.receiving.closed:
            self.let_sleep()
            if self.see is not None:
                self.see("->", message)
            self.tell(message)

    def tell(self, message: Any) -> None:
        """Send a message that is no batch: buffered instructions stay. The session's lock orders senders."""
        if self.receiving.closed:
            return
        if self.lane is not None:
            self.lane.send_waiting(encode(message), lambda: self.receiving.closed)
        elif self.outbox is not None:
            self.outbox.send(encode(message))

    def seen(self, number: int) -> None:
        self.inbox.send(encode(Seen(number)))
        self.sources.used(self.inbox)

    def send_to(self, worker: int, message: Any, frames: tuple[Any, ...] = ()) -> None:
        self._leave(self.indices.get(worker, ""), message, frames)

    def _leave(self, worker: str, message: Any, frames: tuple[Any, ...] = ()) -> None:
        self.posts.append((worker, message, frames))
        self.waker.wake()
        self.hand.wake() if self.receiving.free else None

    def wake(self) -> None:
        self.wake_timer.set() if self.receiving.buffer_written() else None

    def let_sleep(self) -> None:
        self.wake_timer.off() if self.receiving.batch_sent() else None

    def wait(self, reply: Any, timeout: float | None) -> None:
        self.receiving.reader_came() if reply.done else None  # one more reader, though it need not receive
        end = None if timeout is None else time.monotonic() + timeout
        taken: list[bool] = []
        try:
            if not reply.done and (self.receiving.reader_comes(taken) or reply.wanted is not None and self._take_turn(taken)):
                self.sources.read = reply.wanted is not None
            while taken == TAKEN and not (reply.done or self.receiving.closed or end and time.monotonic() > end):
                self._take_in(1000 if timeout is None else int(timeout * 1000) + 1)
                if self.session.notes:
                    self.session.tell()  # show the reason while the read waits
        finally:
            if taken == TAKEN:
                self.receiving.turn.release()  # first, and by a call of C: Ctrl-C may come with any call of Python
                if self.receiving.reader_left(len(self.session.replies) > 1):
                    self.hand.wake()
        while not reply.done and not reply.wait(1.0 if end is None else max(0.0, end - time.monotonic())) and end is None:
            self.session.tell()

    def _take_turn(self, taken: list[bool]) -> bool:
        """Take the turn from the link's thread, if no other reader waits, while the request is under way: a reply received
        there is handed over by two more wake-ups. (A trainer that waits for acknowledgements leaves it there.)"""
        receiving = self.receiving
        if len(self.session.replies) > 1 or not receiving.reader_asks():
            return False
        self.waker.wake()
        return receiving.reader_comes(taken, HANDOVER)

    @property
    def shares(self) -> bool:
        """Whether all workers share memory with this process. Waits for a first worker, and once a moment for each."""
        if not self.data or self.data.keys() != self.sharing.keys():
            self._await_answers()
        return self._met() and all(self.sharing.values())

    def _await_answers(self) -> None:
        silent = self.data.keys() - self.sharing.keys()
        if not self.data or not silent <= self.slow:
            with self.attached:
                self.attached.wait_for(lambda: self.receiving.closed or self.session.lost or self.data, 60)
                self.attached.wait_for(lambda: self.receiving.closed or self.session.lost or self._met(), ANSWER)
            self.slow = self.data.keys() - self.sharing.keys()

    def _met(self) -> bool:
        return bool(self.data) and len(self.sharing) == len(self.data)

    def outstanding(self) -> int:
        return self.memory.pool.outstanding()

    def view(self, place: tuple[int, int, int], nbytes: int, worker: str) -> np.ndarray:
        return self.memory.view(place, nbytes, worker, lambda: self._leave(worker, Release(place[0])))

    def give_up(self, why: str) -> None:
        """The connection has ended: every waiting read raises."""
        self.session.lose(why)
        with self.attached:
            self.attached.notify_all()

    # Receiving

    def _receive(self) -> None:
        """The link's own thread: it acts on its state until the link is closed."""
        hand, rest = zmq.Poller(), zmq.Poller()
        hand.register(self.hand.fd, zmq.POLLIN)
        for fd in (self.hand.fd, self.wake_timer.fd):
            rest.register(fd, zmq.POLLIN)
        state = self.receiving.state
        while state is not Background.CLOSED:
            before = state
            match state:
                case Background.RECEIVING:
                    self._take_in(None, timed=True)
                    state = self.receiving.advance()
                case Background.WATCHING:
                    called = bool(hand.poll(WATCH))
                    if called:
                        self.hand.clear()
                    else:
                        self.session.paused()
                    state = self.receiving.advance(called, bool(self.posts or self.session.replies))
                case Background.RESTING:
                    late = self._rest(rest)
                    state = self.receiving.advance(awaited=bool(self.posts) or self.session.replies.awaited(), late=late)
            if before is Background.WATCHING and state is not before and self.session.buffered():
                self.wake()  # for instructions written while no wake_timer was set
        with self.receiving.turn:
            self._close_sockets()

    def _rest(self, sources: zmq.Poller) -> bool:
        """Sleep until a reader leaves, or for TURN_LEFT if none is there; send the rest of the buffer. Returns whether late."""
        ready = sources.poll(TURN_LEFT if self.receiving.free else None)
        for fd, _ in ready:
            if fd == self.wake_timer.fd:
                self._pause()
            else:
                self.hand.clear()
        return not ready

    def _take_in(self, timeout: int | None, timed: bool = False) -> None:
        """Wait for messages and handle them; `timed`: also wait for the wake_timer. Only the holder of the turn calls this."""
        if self.moved:
            with UNINTERRUPTED:
                self._follow()
        ready = self.sources.wait(timeout, timed)
        with UNINTERRUPTED:
            self._take(ready)

    def _take(self, ready: list[Any]) -> None:
        for source in ready:
            if source in self.lanes.workers:
                self._drain_lane(source)
            elif source in self.polled:
                self._drain(source, self.polled[source])
            elif source is self.inbox:
                self._drain(source, "")
            elif source == self.waker.fd:
                self.waker.clear()
            elif source == self.wake_timer.fd:
                self._pause()
            elif source is self.ends.socket and self.ends.drain():
                self.give_up(self.how_it_ended() or f"the dispatcher at {self.address} {how_it_ended(self.address)}")
                self.sources.remove(self.ends.socket)
        if self.posts:
            self._post()

    def _pause(self) -> None:
        self.wake_timer.clear()
        self.session.paused()

    def _follow(self) -> None:
        """Poll the sockets of the current workers."""
        self.moved = False
        now = {socket: name for name, socket in self.data.items()}
        for socket in self.polled.keys() - now.keys():
            self.sources.remove(socket)
            socket.close(0)
        for socket in now.keys() - self.polled.keys():
            self.sources.add(socket)
        self.polled = now

    def _drain(self, socket: zmq.Socket[Any], name: str) -> None:
        for _ in range(64):
            head = socket.recv(copy=False)
            frames = tuple(f.buffer for f in socket.recv_multipart(copy=False)) if head.more else ()
            with contextlib.suppress(ProtocolError):
                self._handle(name, decode(head.buffer), frames)
            if not zmq.zmq_poll([(socket, zmq.POLLIN)], 0):
                return

    def _drain_lane(self, fd: int) -> bool:
        """Handle the next message of a worker's lane. Returns whether another may follow."""
        (name, _), data = self.lanes.workers[fd], self.lanes.receive(fd)
        if data is None:
            return False
        try:  # noqa: SIM105 (a reader waits for it, and `contextlib.suppress` is three more calls)
            message, replies = decode(data), self.session.replies
            if type(message) in ANSWERS and self.see is None and replies.take_small(message):  # `_handle` of most answers
                self.receiving.received(len(replies) <= 1 or not replies.awaited())
            else:
                self._handle(name, message, ())
        except ProtocolError:
            pass
        return True

    def _handle(self, name: str, message: Any, frames: tuple[Any, ...]) -> None:
        if self.see is not None:
            self.see("<-", message)
        match message:
            case Attached(_, shares):
                with self.attached:
                    self.sharing[name] = shares
                    self.attached.notify_all()
            case Peers(workers):
                with self.attached:
                    self._meet(workers)
                    self.attached.notify_all()
                self.session.handle(Mail(name, message))
            case Bye(why):
                self.session.lose(f"the dispatcher {why}")
            case _:
                self.session.handle(Mail(name, message, frames))
                self.receiving.received(type(message) in ANSWERS and not self.session.replies.awaited())

    def _meet(self, workers: tuple[Any, ...]) -> None:
        """Connect to new workers, and disconnect from lost ones."""
        self.moved, self.workers = True, workers
        names = {w.name for w in workers}
        for gone in self.data.keys() - names:
            self.sharing.pop(gone, None)
            self._part(gone)
            socket = self.data.pop(gone)
            if socket not in self.polled:  # `_follow` closes the others
                socket.close(0)
        self.indices = {w.index: w.name for w in workers}
        for worker in workers:
            if worker.name in self.data:
                continue
            socket, address = open_socket(zmq.DEALER, self.name.encode()), nearest(worker.address, worker.remote)
            try:
                reach(socket, address, self.keys)
            except zmq.ZMQError:  # an address of a kind that this host does not have; tensors there cannot be read from here
                socket.close(0)
                continue
            lane = self.lanes.connect(worker.name, address)
            socket.send(encode(Attach(self.name, self.memory.share(worker.name, address), lane)))
            self.data[worker.name] = socket

    def _part(self, worker: str) -> None:
        """A worker has ended: handle its last messages."""
        self.memory.part(worker)
        for fd in self.lanes.of(worker):
            while fd in self.lanes.workers and self._drain_lane(fd):
                pass
            self.lanes.end(fd)

    def _post(self) -> None:
        while self.posts:
            name, message, frames = self.posts.popleft()
            if name in self.data:
                self.data[name].send_multipart([encode(message), *parts(frames)])
                self.sources.used(self.data[name])

    def close(self) -> None:
        if not self.receiving.closed:
            with contextlib.suppress(zmq.ZMQError, OSError):
                if self.lane is not None:
                    self.lane.send(encode(Bye()))
                elif self.outbox is not None:
                    self.outbox.send(encode(Bye()), zmq.NOBLOCK)
            self.receiving.close()
            self.waker.wake()
            self.hand.wake()
            if threading.current_thread() is not self.thread:
                self.thread.join(2)

    def abandon(self) -> None:
        """In a forked child: leave the parent's link alone. The child's copies of its connections are closed, or the peers
        would not see the parent's end meanwhile. The sockets are kept open, as libzmq's threads do not exist in the child."""
        self.waker = self.hand = self.wake_timer = NoWaker()
        self.receiving, self.attached = Receiving(), threading.Condition()
        self.receiving.close()
        self.posts.clear()
        close_connections([self.address, *(at for w in self.workers for at in (w.address, w.remote) if at)])
        self._close_lanes()
        self.memory.abandon()

    def _close_lanes(self) -> None:
        self.lanes.close()
        if self.lane is not None:
            self.lane.close()

    def _close_sockets(self) -> None:
        self.ends.close()
        own = {self.inbox} if self.outbox is None else {self.inbox, self.outbox}
        for socket in {*own, *self.data.values(), *self.polled}:  # `polled`: also the sockets of workers just lost
            socket.close(100)  # long enough for a last word on one host
        for waker in (self.waker, self.hand, self.wake_timer):
            waker.close()
        self._close_lanes()
        self.memory.close()
