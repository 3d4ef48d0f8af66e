"""A session's deferred question. While the workers compute the answer to a question, or Python pauses behind it, the next one
is sent, to wait at its worker. It is started when Python asks it, by a short message over the lane between the two, so that the
dispatcher's part and most of the client's and the worker's are done before. See docs/design/deferred.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from gt.client.replies import Replies, Reply
from gt.errors import RemoteError
from gt.program.code import Encoded, encoded, first_result, frees_of, parted, place_of, with_place
from gt.program.deferred import stays_behind
from gt.program.stretch import flat
from gt.transport.messages import Batch, Start

SURE = 3  # right guesses in a row, sent as a whole, before one is deferred; twice as many after each that was not asked
SUREST = 64  # most of these
KEPT = 64  # most unanswered questions, and most loads, whose bytes are kept
BYTES = 1 << 16  # most bytes of a question's loads, which are kept until its answer comes
NOWHERE = (0, 0, 0)  # the place of a load whose bytes are not there yet


class Deferred:
    """One that waits: the question, the serial of its batch, its loads without places, and the ids in its batch."""

    __slots__ = ("asked", "serial", "loads", "names")

    def __init__(self, asked: Any, serial: int, loads: list[Encoded], names: frozenset[Any]) -> None:
        self.asked, self.serial, self.loads, self.names = asked, serial, loads, names

    @property
    def ids(self) -> list[Any]:
        """Of all its results."""
        return [*map(first_result, self.loads), *self.asked.made]


class Running:
    """One that was started, with its loads and their bytes."""

    __slots__ = ("asked", "ids", "names", "loads", "bytes", "replies")

    def __init__(self, deferred: Deferred, loads: list[Encoded], data: dict[Any, bytes]) -> None:
        self.asked, self.ids, self.names, self.loads, self.bytes = deferred.asked, deferred.ids, deferred.names, loads, data
        self.replies = (*deferred.asked.replies.values(),)

    def unanswered(self) -> bool:
        """Whether an answer is not there, or is a failure."""
        return not all(reply.done and reply.error is None for reply in self.replies)

    def again(self, put: Callable[[np.ndarray], tuple[int, int, int]]) -> list[Encoded]:
        """Its instructions, which replace its results. `put` gives bytes a place in memory."""
        loads = [with_place(ins, put(np.frombuffer(self.bytes[first_result(ins)], np.uint8))) for ins in self.loads]
        return [*frees_of(self.ids), *loads, *self.asked.sent]


class DeferredQuestions:
    def __init__(self, counts: Counter[str], replies: Replies) -> None:
        self.counts, self.replies = counts, replies
        self.waiting: Deferred | None = None
        self.bytes: dict[Any, bytes] = {}  # of loads since it waits, by id
        self.running: list[Running] = []  # the questions that were started and are not answered

    def waits(self, asked: Any) -> bool:
        """Whether this question waits."""
        return self.waiting is not None and self.waiting.asked is asked

    def offer(self, session: Any, asked: Any) -> None:
        """Send a question to wait, if it has come often enough as it was predicted."""
        question = asked.question
        question.streak += 1
        if self.waiting is not None or question.streak < question.sure or not asked.replies or not session.link.can_start:
            return
        code = session.code[:]
        others, ended = parted(code)
        if others or not asked.mentions.isdisjoint(ended):
            return
        self.running = [each for each in self.running[-KEPT:] if each.unanswered()]
        recent = frozenset[Any]().union(*(each.names for each in self.running))  # they may be sent again, with these operands
        kept = [id for id in ended if id in recent]
        loads = [encoded(number, (asked.first + distance,), NOWHERE) for number, distance in question.loads]
        batch = [*loads, *frees_of([id for id in ended if id not in recent]), *asked.sent]
        session.code[: len(code)] = frees_of(kept)
        session.written += len(code) - len(kept)
        session.limit = 1
        for reply in asked.replies.values():  # the dispatcher may refuse it before it is started
            self.replies.ahead[reply.ticket] = reply
        session._send(batch, asked.gets, False, len(loads))
        question.serial = session.serial
        self.waiting = Deferred(asked, session.serial, loads, frozenset(flat(batch)))

    def loaded(self, id: int, data: np.ndarray) -> None:
        """Keep the bytes of a load, which may be one of the question that waits."""
        if self.waiting is not None and data.nbytes <= BYTES and len(self.bytes) < KEPT:
            self.bytes[id] = data.tobytes()

    def start(self, session: Any, loads: Sequence[Encoded]) -> bool:
        """Start the question that waits, if it begins with these loads. Returns whether it does."""
        waiting = self.waiting
        if waiting is None or [with_place(load, NOWHERE) for load in loads] != waiting.loads:
            return False
        if any(first_result(load) not in self.bytes for load in loads) or any(r.done for r in waiting.asked.replies.values()):
            return False
        running = Running(waiting, list(loads), self.bytes)
        self.running.append(running)  # before it is sent: the lane may end at once, and `fail` is called by another thread
        if not session.link.start_run(Start(waiting.serial, tuple(map(place_of, loads)))):
            self.running.remove(running)
            return False
        self.waiting, self.bytes = None, {}
        self.counts["deferred"] += 1
        return True

    def cancel(self) -> list[Encoded]:
        """Another message is to be sent, so the question that waits will not be started. The instructions that free its
        results."""
        waiting = self.waiting
        if waiting is None:
            return []
        self.waiting, self.bytes, question = None, {}, waiting.asked.question
        for reply in waiting.asked.replies.values():
            self.replies.ahead.pop(reply.ticket, None)
        question.streak, question.sure = 0, min(2 * question.sure, SUREST)
        self.counts["deferred_wasted"] += 1
        return [*frees_of(waiting.ids)]

    def before(self, batch: Batch) -> Batch:
        """A batch that is sent while a question waits: if it cancels the question, with the frees of its results."""
        if self.waiting is None or stays_behind(batch, self.waiting.names):
            return batch
        return replace(batch, code=[*self.cancel(), *batch.code])

    def fail(self) -> None:
        """The questions that were started may never be executed: have them sent again where their answers are not there."""
        for each in self.running[:]:  # other threads may start one
            for reply in each.replies:
                reply.settle(error=RemoteError("the lane to the worker has ended"))

    def undo(self, session: Any, reply: Reply) -> bool:
        """Whether a reply is to a question that was started; then that is sent again as a whole: its worker or the dispatcher
        may have had a reason not to execute it then, or its failure has to be the one of its own line."""
        for each in self.running:
            if any(reply is known for known in each.replies):
                self.running.remove(each)
                session._send(each.again(session.link.put), (), False)
                return True
        return False
