"""Small questions answered in the client: an agent asks its policy for an action, a loop whether some numbers have converged.
A message to another process and its answer take longer than such a question. So once it has repeated, the client computes the
answer itself where it knows the values of its inputs, by the kernels that its worker on this host would use: the bits are the
same.

The stream stays the truth. The instructions of such a question are held back, and go out in their order before the next batch,
as far as a tensor that is still there, or an instruction behind them, needs their results; mostly none does. `values` is a
cache, and can forget anything at any time. See docs/design/local-answers.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from gt import environment
from gt.client.held_back import HeldBack
from gt.client.known_values import KnownValues
from gt.client.local_question import LONGEST, LocalQuestion
from gt.client.replies import Reply
from gt.ops.table import spec_out
from gt.program.code import Encoded, number_of
from gt.program.stretch import flat
from gt.small import NATIVE
from gt.small.plan import Unfit
from gt.transport.interrupts import UNINTERRUPTED

SURE = 2  # times that a question has come before the client prepares to answer it
KNOWN = 128  # most questions that are remembered or counted
MOST = 4 * LONGEST  # most instructions, frees and marks of one
HELD = 64  # questions held back; the ones still needed then are sent
SMALL = 1 << 16  # most bytes of a load that is kept here
LOADS = 64  # loads that are kept here after an answer, until the next one
PAYS = 2  # answers for which inputs are worth asking for
LONGEST_REST = 256  # most times that a question's inputs are not asked for after they did not pay

LOCAL_STATISTICS = (
    "local_answers", "local_questions_sent", "local_questions_dropped", "local_values_asked",
)  # fmt: skip


class Wanted:
    """Values that are asked for together with a read, and the replies to them."""

    def __init__(self, session: Any, values: list[tuple[int, Any]]) -> None:
        self.session, self.replies = session, list[Reply]()
        for id, spec in values:
            self.replies.append(reply := session.reply())
            reply.wanted = (id, spec_out(spec))

    @property
    def gets(self) -> tuple[Any, ...]:
        return tuple([(reply.ticket, *reply.wanted) for reply in self.replies if reply.wanted is not None])

    def close(self) -> None:
        """The read is complete, or was interrupted."""
        for reply in self.replies:
            self.session.replies.pop(reply.ticket, None)

    def answered(self) -> None:
        self.session.local.take(self.replies)


class LocalAnswers:
    """A session's questions that are answered in this process."""

    def __init__(self, kind_of: Any) -> None:
        self.on = environment.LOCAL_ANSWERS.value() and NATIVE is not None
        self.kind_of = kind_of
        self.known: dict[tuple[Any, ...], LocalQuestion | None] = {}  # by the numbers of its instructions; None: not here
        self.times: Counter[tuple[Any, ...]] = Counter()
        self.workers: tuple[Any, ...] = ()  # for which `allowed` was decided
        self.allowed = False
        self.values = KnownValues()
        self.hot = 0  # loads to keep here until the next answer
        self.counts: Counter[str] = Counter()
        self.held = HeldBack(self.counts)
        self.issued = 0  # instructions of the questions answered here
        self.wanted: list[tuple[int, Any]] = []  # ids and specs to ask for with the next read

    def may(self, session: Any) -> bool:
        """Whether the one worker of the session computes small kernels as this process does."""
        if session.workers is not self.workers:
            self.workers = session.workers
            self.allowed = len(self.workers) == 1 and self.workers[0].small and session.link.shares
        if not self.allowed or session.reports is not None or session.noted is not None or session.lost or session.closed:
            return False
        steps, asks = session.steps, session.asks
        return (steps is None or steps.loop is None) and (asks is None or asks.pending is None)

    # Reading

    def answer(self, session: Any, id: int) -> bytes | None:
        """The value of an id that is read, if it is known here or can be computed here."""
        if not self.on or not self.may(session):
            return None
        value = self.values.get(id)
        if value is not None:
            return value
        if not 0 < len(session.code) <= MOST:
            return None
        with UNINTERRUPTED, session.lock:
            code = session.code[:]
            key = tuple(map(number_of, code))
            question = self.known.get(key)
            if question is None:
                if key in self.known or (question := self._learned(key, code, id)) is None:
                    return None
                self._want(question, flat(code), id)
                return None
            known = flat(code)
            bound = question.bind(known, id)
            if bound is None:
                return None
            given = list(map(self.values.get, bound[1]))
            if None in given:
                self._want(question, known, id)
                return None
            made = question.answer(code, known, given)
            if made is None:
                return None
            made = (made,) if type(made) is bytes else made
            self.values.keep(zip(question.outputs(bound[0]), made))
            self._answered(session, question, code, known, bound[1])
        if len(self.held.questions) >= HELD:
            self.release(session)
            session.full(1)
        return made[question.answered]

    def _learned(self, key: tuple[Any, ...], code: list[Encoded], id: int) -> LocalQuestion | None:
        """A question that has come often enough, and can be answered here."""
        if len(self.known) >= KNOWN or len(self.times) >= KNOWN:
            self.known.clear()
            self.times.clear()
        self.times[key] += 1
        if self.times[key] < SURE:
            return None
        try:
            self.known[key] = LocalQuestion(code, self.kind_of, id)
        except Unfit:
            self.known[key] = None
        return self.known[key]

    def _answered(
        self, session: Any, question: LocalQuestion, code: list[Encoded], known: list[Any], inputs: Sequence[Any]
    ) -> None:
        """The instructions of a question are taken from the buffer, and held back."""
        outer = question.outer(known)
        self.values.drop((*outer, *question.ended(known)))
        self.held.add(code, question.loads(known), question.left(known), inputs, outer)
        self.hot, self.issued = LOADS, self.issued + len(code)
        question.gain += 1
        self.counts["answers"] += 1
        del session.code[: len(code)]
        session.limit, session.ahead.last = 1, None
        if session.steps is not None:
            session.steps.pass_over()
        if session.asks is not None:
            session.asks.pass_over(session)
        if self.held.frees:
            session.link.wake()  # (else it may look once in vain: to call that off takes longer)

    # Values

    def _want(self, question: LocalQuestion, known: list[Any], id: int) -> None:
        """Values of inputs are not known: ask for them and for the results with the next read, unless that did not pay the last
        time. A load's bytes will be there the next time."""
        bound = question.bind(known, id)
        if bound is None:
            return
        own = question.loads(known)
        missing = [(at, spec) for at, spec in zip(bound[1], question.inputs) if at not in self.values.of and at not in own]
        if own:
            self.hot = LOADS
        if not missing:
            return
        if question.asked:
            question.asked = False
            question.wait = 0 if question.gain >= PAYS else min(2 * question.wait + 1, LONGEST_REST)
            question.rest = question.wait
        if question.rest:
            question.rest -= 1
            return
        question.asked, question.gain = True, 0
        results = zip(question.outputs(bound[0]), question.made)  # the next question may go on from them
        self.wanted = [*missing, *[(made, spec) for made, spec in results if made != id]]

    def requests(self, session: Any) -> Wanted | None:
        """The values to ask for with this read."""
        wanted, self.wanted = self.wanted, []
        return Wanted(session, wanted) if wanted else None

    def take(self, replies: list[Reply]) -> None:
        """These values have come; one that could not be computed stays unknown."""
        there = [(reply.wanted[0], reply.value) for reply in replies if reply.wanted and reply.done and not reply.error]
        self.counts["values_asked"] += len(there)
        self.values.keep([(id, value if type(value) is bytes else bytes(memoryview(value))) for id, value in there])

    def keeps(self, session: Any, data: np.ndarray) -> bool:
        """Whether the bytes of a load are to be kept here, as a question is likely to need them."""
        return self.hot > 0 and data.nbytes <= SMALL and self.may(session)

    def keep(self, id: int, data: np.ndarray) -> None:
        """Keep the bytes of a load, which get a place when it is sent."""
        self.hot -= 1
        self.held.bytes[id] = value = data.tobytes()
        self.values.keep(((id, value),))

    # Sending

    def before(self, session: Any, batch: list[Encoded], gets: Sequence[Any]) -> list[Encoded]:
        """The instructions to send for a batch, behind the ones held back that are needed."""
        if not batch and not gets and not self.held.frees:
            return batch
        sent = self.held.before(session, batch, gets)
        session.written += len(sent) - len(batch)
        return sent

    def release(self, session: Any) -> None:
        """Put the instructions held back that are needed into the buffer: everything is to be sent."""
        with UNINTERRUPTED, session.lock:
            code = session.code[:]
            session.code[: len(code)] = self.held.before(session, code, ())

    def forget(self) -> None:
        """Forget all questions, as their kinds are forgotten."""
        self.known.clear()
        self.times.clear()

    def stats(self) -> dict[str, int]:
        return {name: self.counts[name.removeprefix("local_")] for name in LOCAL_STATISTICS}
