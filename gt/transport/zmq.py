"""A client's link to a dispatcher and its workers, over ZMQ."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import zmq

from gt.errors import ProtocolError
from gt.transport import lanes
from gt.transport.addresses import check_host, close_connections, host_name
from gt.transport.auth import Keys, reach
from gt.transport.debug_output import See
from gt.transport.events import Seen
from gt.transport.interrupts import UNINTERRUPTED
from gt.transport.lanes import Lane
from gt.transport.messages import ANSWERS, VERSION, Attached, Bye, Hello, Mail, Peers, Release, Start, decode, encode
from gt.transport.polling import Sources
from gt.transport.receiving import TAKEN, TURN_LEFT, Background, Receiving
from gt.transport.sockets import LAST_WORD, Ends, greet, how_it_ended, open_socket, welcomed
from gt.transport.wake import ImmediateTimer, NoWaker, Waker, WakeTimer
from gt.transport.worker_sockets import WorkerSockets

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
        self.how_it_ended: Callable[[], str] = str  # the reason, where this process has started the dispatcher's
        self.lane: Lane | None = None  # sends to the dispatcher, where it is of this host and user
        self.ends = Ends(self.inbox)
        self.sources = Sources(self.wake_timer.fd, keeps_core=priority == "interactive")
        self.workers = WorkerSockets(self.name, self.keys, self.sources, self._drain_lane)
        self.lanes, self.posts, self.memory = self.workers.lanes, self.workers.posts, self.workers.memory
        self.put, self.sealed, self.executed = self.memory.put, self.memory.sealed, self.memory.executed
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
        self.workers.meet(self.welcome.workers)
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

    @property
    def can_start(self) -> bool:
        """Whether deferred batches can be started: there is one worker, with a lane, and it shares memory with this process."""
        return len(self.lanes.workers) == len(self.workers.sharing) == 1 and all(self.workers.sharing.values())

    def start_run(self, message: Start) -> bool:
        """Start a deferred batch. Returns whether the message was sent."""
        if self.see is not None:
            self.see("->", message)
        return not self.receiving.closed and self.lanes.send(encode(message))

    def seen(self, number: int) -> None:
        self.inbox.send(encode(Seen(number)))
        self.sources.used(self.inbox)

    def send_to(self, worker: int, message: Any, frames: tuple[Any, ...] = ()) -> None:
        self._leave(self.workers.names.get(worker, ""), message, frames)

    def _leave(self, worker: str, message: Any, frames: tuple[Any, ...] = ()) -> None:
        self.posts.append((worker, message, frames))
        self.waker.wake()
        if self.receiving.free:
            self.hand.wake()

    def wake(self) -> None:
        if self.receiving.buffer_written():
            self.wake_timer.set()

    def let_sleep(self) -> None:
        if self.receiving.batch_sent():
            self.wake_timer.off()

    def wait(self, reply: Any, timeout: float | None) -> None:
        try:
            self._wait(reply, timeout)
        finally:
            if self.session.replies.wakes:
                self.session.replies.wakes = False
                self.wake()

    def _wait(self, reply: Any, timeout: float | None) -> None:
        if reply.done:
            self.receiving.reader_came()  # one more reader, though it need not receive
        end = None if timeout is None else time.monotonic() + timeout
        taken: list[bool] = []
        try:
            if not reply.done and (self.receiving.reader_comes(taken) or reply.wanted is not None and self._take_turn(taken)):
                self.sources.read = reply.wanted is not None
            while taken == TAKEN and not (reply.done or self.receiving.closed or end and time.monotonic() > end):
                if end is None and not self.session.workers:
                    break
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
            if not self.session.workers:
                break

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
        return self.workers.shares(self._ended)

    def _ended(self) -> object:
        return self.receiving.closed or self.session.lost

    def outstanding(self) -> int:
        return self.memory.pool.outstanding()

    def view(self, place: tuple[int, int, int], nbytes: int, worker: str) -> np.ndarray:
        return self.memory.view(place, nbytes, worker, lambda: self._leave(worker, Release(place[0])))

    def give_up(self, why: str) -> None:
        """The connection has ended: every waiting read raises."""
        self.session.lose(why)
        self.workers.wake()

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
        if self.workers.moved:
            with UNINTERRUPTED:
                self.workers.follow()
        ready = self.sources.wait(timeout, timed)
        with UNINTERRUPTED:
            self._take(ready)

    def _take(self, ready: list[Any]) -> None:
        for source in ready:
            if source in self.lanes.workers:
                self._drain_lane(source)
            elif source in self.workers.polled:
                self._drain(source, self.workers.polled[source])
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
            self.workers.post()

    def _pause(self) -> None:
        self.wake_timer.clear()
        self.receiving.timer_fired()
        self.session.paused()

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
            if fd not in self.lanes.workers:
                self.session.handle(Mail(name, Bye("it ended its lane")))
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
                with self.workers.changed:
                    self.workers.sharing[name] = shares
                    self.workers.changed.notify_all()
            case Peers(workers):
                with self.workers.changed:
                    self.workers.meet(workers)
                    self.workers.changed.notify_all()
                self.session.handle(Mail(name, message))
            case Bye(why):
                self.session.lose(f"the dispatcher {why}")
            case _:
                self.session.handle(Mail(name, message, frames))
                self.receiving.received(type(message) in ANSWERS and not self.session.replies.awaited())

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
        self.receiving = Receiving()
        self.receiving.close()
        close_connections([self.address, *self.workers.addresses()])
        self.workers.abandon()
        self._close_lane()

    def _close_lane(self) -> None:
        if self.lane is not None:
            self.lane.close()

    def _close_sockets(self) -> None:
        self.ends.close()
        for socket in (self.inbox, self.outbox):
            if socket is not None:
                socket.close(LAST_WORD)
        for waker in (self.waker, self.hand, self.wake_timer):
            waker.close()
        self._close_lane()
        self.workers.close()
