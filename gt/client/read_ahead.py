"""Reads that follow one another: `logits.numpy()`, then `value.numpy()`. Where a read has been followed by the same one several
times, with no instruction in between, both are asked for at once, and the second finds its answer there. Values on the workers
never change, so a value requested ahead is the value of its read; a wrong guess costs some bytes."""

from __future__ import annotations

from typing import Any

from gt.client.replies import Reply
from gt.ops.table import spec_out
from gt.program.code import is_free
from gt.spec import Spec
from gt.transport.interrupts import UNINTERRUPTED

SURE = 3  # times in a row that a read was followed by the same one before both are asked for
WRONG = -16  # the same after a guess that was wrong
MOST = 8  # reads that are asked for ahead
SMALL = 4096  # most bytes of such a value: workers send as many inside their answer
KNOWN = 64  # most reads that are remembered with the reads after them
FEW = 8  # instructions since the last read that are looked at

Get = tuple[int, int, tuple[int, ...]]  # ticket, id and spec, as a batch has them


class Following:
    """The read that follows another: how far its id is from the other's, its spec, and how often in a row it did."""

    __slots__ = ("distance", "spec", "times")

    def __init__(self, distance: int, spec: Spec) -> None:
        self.distance, self.spec, self.times = distance, spec, 1


class ReadAhead:
    """A session's guesses. A read is known by its spec and its position among the reads since the last instruction."""

    def __init__(self) -> None:
        self.follows: dict[tuple[int, Spec], Following] = {}
        self.asked: dict[int, tuple[Reply, Following]] = {}  # by id, the values requested ahead
        self.last: tuple[int, Spec] | None = None
        self.position = 0
        self.written = -1  # instructions that the session had sent with the last read, which sets it
        self.used = 0  # reads whose answer had been asked for ahead

    def ask(self, session: Any, id: int, spec: Spec, more: tuple[Get, ...]) -> tuple[Reply, tuple[Get, ...]]:
        """Send the buffered instructions, a read unless it was sent with the last one, and other requests."""
        reply = None
        try:
            with UNINTERRUPTED:
                steps = session.steps
                if steps is not None and steps.sent and not more and (reply := steps.reply_to(session, id, spec)) is not None:
                    gets: tuple[Get, ...] = ((reply.ticket, id, ()),)  # in a request that was sent ahead
                else:
                    reply, gets = self.read(session, id, spec)
                    gets = (*gets, *more) if more else gets
                    if gets and not session.lost and not session.closed:
                        session.flush(gets, wait=False)
                        self.written = session.written
                        if steps is not None and reply.ticket in steps.answers:
                            session.replies.pop(reply.ticket, None)
                            reply = session.reply(steps.answers.pop(reply.ticket))
            if gets and session.window.full():
                session.make_room()
            return reply, gets
        except BaseException:  # Ctrl-C: nobody takes the answer
            if reply is not None:
                session.replies.pop(reply.ticket, None)
            raise

    def read(self, session: Any, id: int, spec: Spec) -> tuple[Reply, tuple[Get, ...]]:
        """The reply to a read, and the request to send for it: nothing if it was sent with the last read."""
        with session.lock:  # other threads read, too, and if a worker is lost, requests sent ahead are forgotten
            sent = session.asks.replies_to(session) if session.asks is not None else {}
            follows = self._learn(session, id, spec)
            if follows and (found := self._promoted(session, id, spec)) is not None:
                self.used += 1
                return session.reply(found), ()
            gets: list[Get] = []
            if sent and (found := self._requested(session, sent, id, spec)) is not None:
                reply, self.written = session.reply(found), session.written
            else:
                reply = session.reply()
                reply.wanted = (id, spec_out(spec))
                gets.append((reply.ticket, *reply.wanted))
            if not follows and self.follows:
                self._ask_ahead(session, sent, id, spec, gets)
            for other in sent.values():
                session.replies.ahead.pop(other.ticket, None)
        return reply, tuple(gets)

    def note_answered(self, session: Any, id: int, spec: Spec) -> None:
        """The first read since an instruction was answered without a request."""
        self.last, self.position, self.written = (id, spec), 0, session.written

    def _ask_ahead(self, session: Any, sent: dict[int, Reply], id: int, spec: Spec, gets: list[Get]) -> None:
        """Add the reads that will follow to the request, unless they were `sent` with a question."""
        for following in self.guessed(spec):
            id += following.distance
            if id in self.asked:
                continue  # one answer for each value
            wanted = (id, spec_out(following.spec))
            reply = sent.get(id)
            if reply is not None and reply.wanted == wanted:
                del sent[id]
            else:
                reply = session.replies.ahead_of(*wanted)
                gets.append((reply.ticket, *wanted))
            self.asked[id] = (reply, following)

    def _requested(self, session: Any, sent: dict[int, Reply], id: int, spec: Spec) -> Reply | None:
        """The reply to a read that was sent with a question."""
        reply = sent.pop(id, None)
        if reply is None:
            return None
        if reply.wanted != (id, spec_out(spec)):
            session.replies.ahead.pop(reply.ticket, None)  # nobody takes it
            return None
        session.replies.promote(reply)
        return reply

    def _promoted(self, session: Any, id: int, spec: Spec) -> Reply | None:
        """The reply to a read that was asked for ahead: its reader waits for it as for any other."""
        reply, _ = self.asked.pop(id, (None, None))
        return None if reply is None else self._requested(session, {id: reply}, id, spec)

    def asks(self, id: int, ticket: int) -> bool:
        """Whether a value was requested ahead with this ticket."""
        return id in self.asked and self.asked[id][0].ticket == ticket

    def replace(self, id: int, reply: Reply) -> None:
        """The value is already under way for this reply."""
        self.asked[id] = (reply, self.asked[id][1])

    def forget(self, session: Any) -> None:
        """Forget the requests sent ahead: later readers send their own."""
        for reply, _ in self.asked.values():
            session.replies.ahead.pop(reply.ticket, None)
        self.asked.clear()

    def _learn(self, session: Any, id: int, spec: Spec) -> bool:
        """Whether this read follows the last one, with no instruction in between."""
        last, self.last = self.last, (id, spec)
        if last is None or not self._nothing_since(session):
            self.position = 0
            if self.asked:
                for _, guess in self.asked.values():
                    guess.times = WRONG
                self.forget(session)
            return False
        key, distance = (self.position, last[1]), id - last[0]
        self.position += 1
        known = self.follows.get(key)
        if known is None or (known.distance, known.spec) != (distance, spec):
            if len(self.follows) >= KNOWN:
                self.follows.clear()
            self.follows[key] = Following(distance, spec)
        else:
            known.times += 1
        return True

    def _nothing_since(self, session: Any) -> bool:
        code = session.code
        if session.written != self.written or len(code) > FEW or not all(map(is_free, reversed(code))):
            return False  # (the last one mostly is an op)
        return session.tracer is None or not session.tracer.pieces

    def guessed(self, spec: Spec) -> list[Following]:
        """The reads that will follow the first one after an instruction."""
        found: list[Following] = []
        while len(found) < MOST:
            following = self.follows.get((len(found), spec))
            if following is None or following.times < SURE or following.spec.nbytes > SMALL:
                break
            found.append(following)
            spec = following.spec
        return found
