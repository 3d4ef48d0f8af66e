"""A client's stream: it gives results ids, buffers instructions, sends them in batches and waits only for values. It knows no
sockets; a link sends its messages."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np

from gt import errors
from gt.client.batch_lengths import BatchLengths
from gt.client.capture_notes import Notes
from gt.client.incoming import handle
from gt.client.kinds import Kinds
from gt.client.link import NOTICE, START, Link, await_answer
from gt.client.loads import load
from gt.client.local_answers import LocalAnswers
from gt.client.native import NATIVE
from gt.client.overwritten import Overwritten
from gt.client.questions import have_devices
from gt.client.questions_ahead import QuestionsAhead
from gt.client.read_ahead import ReadAhead
from gt.client.replies import Replies, Reply, as_number, as_numpy
from gt.client.reports import ClientReports
from gt.client.steps_ahead import StepsAhead
from gt.client.tracer import MARK, Tracer
from gt.client.user_lines import RING, short_line, warn
from gt.client.window import FlowWindow, wait_for_room
from gt.config import Config
from gt.program.code import number_of
from gt.program.foreach import spelled_out
from gt.spec import Spec
from gt.transport.events import Watched
from gt.transport.interrupts import UNINTERRUPTED
from gt.transport.messages import Ask, Batch, Configure, Mail
from gt.transport.receiving import Pause, Pauses

LONGEST = 1 << 14  # most instructions of a message


class Session(NATIVE.Stream if NATIVE is not None else object):  # type: ignore[misc]
    next_id: Callable[[], int]  # a new id
    reports: ClientReports | None = None  # set while this client is observed
    abandoned = False  # whether it belongs to the process that forked this one

    def __init__(self, link: Link, name: str, tracing: bool = True) -> None:
        self.link, self.name = link, name
        self.code: list[tuple[Any, ...]] = []  # always the same list: any thread may append, `flush` takes from the front
        self.emit = self.code.append
        if NATIVE is None:
            self.counter = count(1)
            self.next_id = self.counter.__next__
        self.lengths = BatchLengths()
        self.limit = 1  # length of `code` at which `due` is called: to wake the link at first, then to send
        self.lock, self.serial = threading.RLock(), 0
        self.kinds = Kinds(self.lock)
        self.local = LocalAnswers(self.kinds.meaning.get)
        self.tracer = Tracer(self.kinds.numbers.__next__, self.kinds.meaning, self.kinds.lists) if tracing else None
        if self.tracer:
            self.tracer.asked_for, self.tracer.line, self.tracer.early.clock = self.asked_for, self.line, link.clock
            self.tracer.questions.pay = self.tracer.early.have_devices = lambda: have_devices(self.workers)
        self.written = 0  # instructions taken from the buffer
        self.window, self.replies, self.pauses = FlowWindow(), Replies(), Pauses()
        self.ahead, self.overwritten, self.config, self.auto_shard = ReadAhead(), Overwritten(), Config(), False
        self.steps = StepsAhead(self.tracer, self.replies, self.ahead, link.clock) if self.tracer else None
        self.asks = QuestionsAhead(self.tracer, self.replies, self.ahead) if self.tracer else None
        # The user's line of each of the last results. Two lists that are overwritten in a ring: a pair for every op would be
        # one more object for the garbage collector.
        self.asked_code: list[Any] = [None] * RING
        self.asked_at: list[int] = [0] * RING
        self.user: dict[str, Any] | None = None  # globals of the user's module that issued the last op, until the next batch
        self.copies: Any = None  # HostCopies, once views are read one by one
        self.checks: Any = None  # Checks, once there are conditions on values that have to be read
        self.loaded: dict[int, np.ndarray] = {}  # the last loaded small arrays, by the id of the value
        self.uploads: dict[int, bytes] = {}
        self.lost, self.closed, self.workers = "", False, tuple[Any, ...]()
        self.notice, self.remedy = NOTICE, START  # seconds until a user is told that there is no worker, and the remedy
        self.warned: set[str] = set()  # signals about which the user was warned
        self.notes: deque[str] = deque()  # warnings for the user, shown by the next thread that waits
        self.observers: dict[Callable[[Watched], None], int] = {}  # this client's own observers, with their levels
        self.noted: Notes | None = None  # set while a function is captured
        self.seed, self.draws = secrets.randbits(62), count(1)

    # The stream

    def due(self) -> None:
        """`code` reached its limit: the first instruction wakes the link, a full buffer is sent from here."""
        if self.closed:
            raise errors.SessionLost(self.lost or "the session this tensor belongs to is closed")
        if self.limit == 1:
            self.limit = self.lengths.most
            if self.asks is not None:
                self.asks.begin(self)
            self.link.wake()
        if self.tracer is not None and self.tracer.early.waits() and self.tracer.early.look(self):
            self._flush((), False, False)
        if len(self.code) >= self.lengths.most:
            self.full()

    def flush(self, gets: tuple[Any, ...] = (), wait: bool = True, read: bool = False) -> None:
        """Send the buffered instructions, before a read; wait only if too many are in flight, and not on the receiving
        thread."""
        if not gets and not read:
            self.local.release(self)
            if self.asks is not None:
                self.asks.take_back(self)
        self.lengths.begin()
        self._flush(gets, True, read or bool(gets))
        if gets or read:
            self.lengths.read(self.written)
        if wait and self.window.full():
            self.make_room()

    def full(self, times: int = 2) -> None:
        """Send the buffered instructions, up to the beginning of a possible trace; later batches are so many times as long."""
        self.lengths.lengthen(times, self.written + len(self.code))
        self._flush((), False, False)
        if self.window.full():
            self.make_room()

    def make_room(self) -> None:
        """Wait while too many instructions are in flight, of which none may wait for this client."""
        if self.asks is not None and self.asks.deferred.waiting is not None:
            self.flush(wait=False)
        wait_for_room(self, self.window.full)

    def paused(self) -> None:
        """The wake-up timer fired: if the user's threads have issued no instruction since the last time, send the buffered
        ones. A trace that has begun is held a while longer, as it may go on; a thread that waits for room issues the rest."""
        full = self.window.waiting is not None
        busy = self.tracer.early.busy(self.window.seconds()) if self.tracer else 0.0
        pause = self.pauses.look(self.written + self.local.issued + len(self.code), busy)
        if pause is not Pause.NONE:
            if self.asks is not None:
                self.asks.paused(self)
            self.lengths.begin()
            self._flush((), pause is Pause.LONG and not full, False)
        if not full and (self.unsent() or self.buffered() and not self.replies.reader_wakes()):
            self.link.wake()

    def unsent(self) -> bool:
        """Whether there are unsent instructions."""
        later = self.asks is not None and self.asks.later is not None
        return bool(self.code or later or self.local.held.frees or self.tracer and self.tracer.pieces)

    def buffered(self) -> bool:
        """Whether there are unsent instructions, or steps that were sent ahead and have to be freed if they do not come."""
        return bool(self.unsent() or self.steps and self.steps.loop)

    def mark(self) -> None:
        """Mark a natural boundary of repeating stretches, such as the end of an optimizer's step."""
        self.emit((MARK,))

    def end_of_step(self) -> None:
        """The end of an optimizer's step: a boundary, after which a full buffer is sent."""
        self.mark()
        self.send_due()

    def call(self, instruction: tuple[Any, ...]) -> None:
        """Emit a call of a trace; the tracer does not search for repeats across it. `send_due` is to follow."""
        self.code.extend(((MARK,), instruction, (MARK,)))
        if self.tracer:
            self.tracer.hits += 1

    def send_due(self) -> None:
        """Send a full buffer, which may wait for room."""
        if len(self.code) >= self.limit:
            self.due()

    def take_from_buffer(self, count: int) -> None:
        """Remove so many instructions from the buffer: they are sent, or were sent ahead."""
        self.limit, self.user = 1, None
        self.written += count
        del self.code[:count]

    def _flush(self, gets: tuple[Any, ...], final: bool, mark: bool) -> None:
        with UNINTERRUPTED, self.lock:
            n = len(self.code)
            batch = self.code[:n]
            self.take_from_buffer(n)
            batch = self.local.before(self, batch, gets)
            if (tracer := self.tracer) is None or (steps := self.steps) is None:
                self._send(batch, gets, final)
                return
            ended: list[tuple[Any, ...]] = []
            if steps.loop is not None:
                if mark and steps.reach(batch, gets):
                    if count := steps.count():
                        self._send(*steps.send(count), False)
                    return
                if not n and not mark and (self.replies or not final):
                    return  # a reader waits, or Python pauses for a moment: its loop may go on
                ended = steps.give_up()
            issued, step = batch, batch if mark and steps.on and tracer.between_traces() else None
            batch = ended + tracer.fold(batch, final, mark)
            if tracer.pieces:
                self.limit = self.lengths.most  # held instructions wake the link once, not with every instruction
            if (asks := self.asks) is not None and (asks.pending is not None or asks.loads and gets):
                step = None  # a step with loads is not sent before them
                if (asked := asks.passed(self, batch, gets, mark)) is None:
                    return
                batch = asked
            self._send(batch, gets, final)
            if asks is not None:
                asks.sent(issued, batch, gets, self)
            if step is not None and steps.learn(step, gets):
                self._send(*steps.send(steps.count()), False)

    def _send(self, batch: list[tuple[Any, ...]], gets: tuple[Any, ...], final: bool, deferred: int | None = None) -> None:
        """Send instructions and reads, with the definitions that they need; `deferred` as in Batch."""
        with self.lock:
            traces, drops = tuple[Any, ...](), tuple[Any, ...]()
            tracer, kinds, window = self.tracer, self.kinds, self.window
            if tracer is not None and (tracer.defined or tracer.dropped):
                traces, drops = tracer.take()
            lists = kinds.lists
            if lists and not lists.keys().isdisjoint(map(number_of, batch)):
                batch = spelled_out(batch, lists)
            if not batch and not gets and not traces:
                return
            fresh = kinds.take_fresh() if kinds.fresh else ()
            forget = kinds.forget() if final and kinds.grown else 0
            if forget:
                self.local.forget()
            if forget and tracer is not None:
                tracer.reset()
                if self.steps is not None:
                    self.steps.reset()
                if self.asks is not None:
                    self.asks.clear()
            if fresh or traces or drops or forget:
                window.costs.learn(kinds.meaning, fresh, traces, drops, forget)
            if len(batch) > LONGEST:
                batch, fresh, traces = self._send_long(batch, fresh, traces), (), ()
            self.serial += 1
            wanted = self.link.sealed(self.serial) or bool(self.uploads)
            ack = window.batch(self.serial, self.written, wanted, window.costs.of(batch) if window.costs.heavy else 0.0)
            reports = self.reports
            send = self.link.send if reports is None or self.serial & reports.mask else reports.send_batch
            message = Batch(self.serial, fresh, batch, gets, ack, forget, traces, drops, deferred)
            send(message if (asks := self.asks) is None or asks.deferred.waiting is None else asks.deferred.before(message))

    def _send_long(self, batch: list[tuple[Any, ...]], fresh: tuple[Any, ...], traces: tuple[Any, ...]) -> Any:
        """Send all but the last of so many instructions, as thousands of tensors freed at once. Returns the last ones."""
        batch = [*self.asks.deferred.cancel(), *batch] if self.asks is not None else batch
        last = (len(batch) - 1) // LONGEST * LONGEST
        for at in range(0, last, LONGEST):
            self.serial += 1
            self.link.send(Batch(self.serial, () if at else fresh, batch[at : at + LONGEST], traces=() if at else traces))
        return batch[last:]

    # Reading

    def reply(self, pending: Reply | None = None) -> Reply:
        """A new reply, or this one; it is settled where no answer will come any more."""
        reply = pending or self.replies.new()
        if self.lost or self.closed:
            reply.settle(error=errors.SessionLost(self.lost or "the session is closed"))
        return reply

    def read(self, id: int, spec: Spec) -> np.ndarray:
        """Read the value of an id, after all earlier instructions."""
        return as_numpy(self._read(id, spec), spec)

    def read_number(self, id: int, spec: Spec) -> Any:
        """Read the value of an id of one element as a Python number."""
        return as_number(self._read(id, spec), spec)

    def _read(self, id: int, spec: Spec) -> Any:
        """The bytes of a value."""
        question = self.checks.ask() if self.checks is not None else None
        if question is None and (known := self.local.answer(self, id)) is not None:
            return known
        reports, also = self.reports, question or self.local.requests(self)  # values that are read together with it
        began = reports.clock() if reports is not None else 0.0
        try:
            reply, gets = self.ahead.ask(self, id, spec, () if also is None else also.gets)
            try:
                self._await(reply, () if also is None else also.replies)
                if reply.error is not None and self._undo(reply):
                    return self._read(id, spec)
            finally:
                self.replies.pop(reply.ticket, None)
        finally:
            if also is not None:
                also.close()
            if self.notes:
                self.tell()
        if also is not None:
            also.answered()
        if reply.error is not None:
            if not gets and not (self.lost or self.closed):  # sent with its load, perhaps before the line that failed
                return self._read(id, spec)
            reply.check()
        if reports is not None:
            reports.waited(began, spec.nbytes)
        return reply.value

    def _await(self, reply: Reply, others: Sequence[Reply]) -> None:
        """Wait for the answer to a read, and others with it."""
        if self.workers:
            self.link.wait(reply, None)
        for each in (reply, *others):
            if not each.done:
                await_answer(self, each, "this read")
        if self.tracer is not None and self.tracer.early.timed is not None:
            self.tracer.early.answered()

    def _undo(self, reply: Reply) -> bool:
        """Whether this reply is of a question that was deferred, which is sent again, or of a step that was sent ahead with
        others: then the step is to be sent again by itself."""
        with UNINTERRUPTED, self.lock:
            if self.asks is not None and self.asks.deferred.undo(self, reply):
                return True
            code = self.steps.undo(reply) if self.steps is not None else None
            self.code[:0] = code or ()
        return code is not None

    def ask(self, about: str, argument: Any = None, timeout: float = 70.0) -> Any:
        """Ask the dispatcher a question, after all earlier instructions. The dispatcher waits at most a minute for workers that
        are starting."""
        reply = self.reply()
        try:
            if not reply.done:
                self.flush()
                self.link.send(Ask(reply.ticket, about, argument))
            await_answer(self, reply, f"the question about {about}", timeout)
        finally:
            self.replies.pop(reply.ticket, None)
        reply.check()
        if not reply.done:
            raise errors.GTError(f"no answer about {about} within {timeout:g} s")
        return reply.value

    def tell(self) -> None:
        """Show the user the warnings of the dispatcher and the workers."""
        while self.notes:
            warn(self.notes.popleft())

    def configure(self, signals: dict[str, Any]) -> None:
        with self.lock:
            self.flush()
            if self.tracer:
                self.tracer.compiled = {name for name, config in self.config.items() if config.compile}
            auto = {"": {"mesh": None, "axes": [0], "workers": None}} if self.auto_shard else {}
            self.link.send(Configure({**auto, **signals}))

    def load(self, array: np.ndarray, number: int) -> int:
        """Load an array, whose bytes are sent outside the stream, and return its id; `number` is that of the load's kind."""
        return load(self, array, number)

    # Messages, on the receiving thread

    def handle(self, mail: Mail) -> None:
        handle(self, mail)

    def asked_for(self, id: int) -> tuple[Any, int] | None:
        """The code object and offset that issued a result, if it is among the last."""
        code = self.asked_code[id % RING]
        return (code, self.asked_at[id % RING]) if code is not None else None

    def line(self, id: int) -> str:
        """`train.py:12`: the line that issued a result, if it is among the last."""
        origin = self.asked_for(id)
        return short_line(origin) if origin is not None else ""

    def lose(self, why: str) -> None:
        """The dispatcher was lost: every waiting read raises."""
        self.lost = why
        self.replies.end(lambda: errors.SessionLost(why))
        self.window.end()

    def close(self) -> None:
        if not self.closed:
            if self.reports is not None:
                self.reports.end()
            self.closed = self.ended = True
            self.limit, self.emit, self.user = 0, _nothing, None  # every further op calls `due`, which raises
            self.link.close()
            self.replies.end(lambda: errors.SessionLost("the session is closed"))

    def abandon(self, why: str) -> None:
        """In a forked child: the session is the parent's, and use of its tensors raises. Nothing is sent."""
        self.closed, self.limit, self.lost, self.abandoned = True, 0, why, True
        self.emit, self.ended, self.user, self.window = _nothing, True, None, FlowWindow()
        self.lock = self.kinds.lock = threading.RLock()
        self.replies.clear()


def _nothing(instruction: tuple[Any, ...]) -> None:
    """Ignores the frees of a closed session."""
