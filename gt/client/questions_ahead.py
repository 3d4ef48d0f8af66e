"""Questions about fresh data: in each step of a loop an array is loaded, some ops are applied to it and a result is read, as a
policy is asked for an action. Once such steps have repeated, the ops and the read are sent with the load, under the ids that
the next results will have, and Python issues them while the workers compute; at the read they are compared. So is a question
without loads that is asked again and again after pauses, as a dashboard does: it is sent with its first op. Values on the
workers never change, so a wrong guess only costs its results, which are freed. See docs/design/early.md."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from gt.backends.facts import cpu_count
from gt.client.deferred import DeferredQuestions
from gt.client.early import RIGHT_AFTER_WRONG
from gt.client.fresh_questions import Asked, FreshQuestion, part_of_call
from gt.client.native import last_id
from gt.client.read_ahead import SMALL, Get, ReadAhead
from gt.client.replies import Replies, Reply
from gt.client.tracer import Tracer
from gt.ops.table import spec_out
from gt.program.code import Encoded, Form, first_result, frees_of, number_of, ops, parted, result_at
from gt.program.stretch import pick
from gt.transport.interrupts import UNINTERRUPTED

FEW = 16  # most instructions since the last batch with which a question begins: frees and its loads
LEAST = 5  # least ops of a question that is sent with its load
LONGEST = 24  # most ops and calls of a question
MOST = 64  # most instructions of a batch that is looked at
KNOWN = 16  # most questions that are remembered
PAUSE = 2e-3  # seconds since the last question, after which Python issues the next one slowly, as its caches are cold


class QuestionsAhead:
    """A session's questions."""

    def __init__(self, tracer: Tracer, replies: Replies, ahead: ReadAhead) -> None:
        self.tracer, self.early, self.replies, self.ahead = tracer, tracer.early, replies, ahead
        self.known: dict[tuple[int, ...], FreshQuestion] = {}  # by the numbers of its loads
        self.begins: dict[int, FreshQuestion] = {}  # questions without loads, by the numbers of their first ops
        self.asked_at, self.slow = 0.0, False  # time of the last question, and whether it came after a pause
        self.loads = False  # whether there was a load since the last batch
        self.prepared: Asked | None = None  # the next question, if it is asked again
        self.later: FreshQuestion | None = None  # the question to prepare when Python pauses
        self.pending: Asked | None = None  # a question that was sent and not compared
        self.ready: dict[int, Reply] = {}  # replies to reads that a right guess has requested, by id
        self.deferred = DeferredQuestions(self.early.counts, replies)

    # Learning

    def learn(self, out: list[Encoded], gets: Sequence[Get], serial: int) -> None:
        """These instructions are sent with a read as the batch `serial`, and there was a load among them."""
        self.loads = False
        if len(out) > MOST or not self.early.on or self.ahead.last is None or self.ahead.last[0] != gets[0][1]:
            return
        code, _ = parted(out)
        loads = list(takewhile(self._is_load, code))
        rest = code[len(loads) :]
        if not loads or not 0 < len(rest) <= LONGEST or any(map(self._is_load, rest)):
            return
        key, numbers = tuple(map(number_of, loads)), tuple(map(number_of, rest))
        question = self.known.get(key)
        if question is None or question.numbers != numbers:
            if len(self.known) >= KNOWN:
                self.known.clear()
            question = self.known[key] = FreshQuestion(numbers)
        question.serial, first = serial, int(first_result(loads[0]))
        question.loads = [(number_of(load), first_result(load) - first) for load in loads]
        if question.forms != []:
            question.learn(rest, first, *self.ahead.last)

    def sent(self, issued: list[Encoded], out: list[Encoded], gets: Sequence[Get], session: Any) -> None:
        """The instructions `out`, which Python has issued as `issued`, were sent as the session's last batch."""
        serial = session.serial
        if gets and len(issued) <= MOST:
            self._learn_paused(issued, out, gets, session)
        elif (asked := self.prepared) is not None and asked.question.serial == serial - 1:
            code, ended = parted(out)  # if it frees nothing that the next question needs, that can be sent as well
            asked.question.serial += not code and not gets and asked.mentions.isdisjoint(ended)

    def _learn_paused(self, issued: list[Encoded], out: list[Encoded], gets: Sequence[Get], session: Any) -> None:
        """A question without loads was asked."""
        before, self.asked_at = self.asked_at, self.early.clock()
        if self.asked_at - before < PAUSE or not self.early.on or self.ahead.last is None or self.ahead.last[0] != gets[0][1]:
            return
        lead, (code, _) = ops(parted(issued)[0])[:1], parted(out)
        if not lead or not 0 < len(code) <= LONGEST or any(map(self._is_load, code)):
            return
        key, numbers = number_of(lead[0]), tuple(map(number_of, code))
        question = self.begins.get(key)
        if question is None or question.numbers != numbers:
            if len(self.begins) >= KNOWN:
                self.begins.clear()
            question = self.begins[key] = FreshQuestion(numbers, 1)
        question.serial = session.serial
        if question.forms != []:
            question.learn([*lead, *code], int(first_result(lead[0])), *self.ahead.last)
        if question.right >= question.wanted:
            if question.forms is None:
                question.forms = self._forms(question)  # its programs are sent with the next batch
            self.later = question if question.forms else None

    def clear(self) -> None:
        """Forget all questions, when their kinds are forgotten."""
        self.known.clear()
        self.begins.clear()
        self.prepared = self.later = None

    def pass_over(self, session: Any) -> None:
        """A question was answered without being sent: the known ones would be asked with ids that it has taken."""
        if self.known or self.begins:
            self.clear()
            self.take_back(session)

    def _is_load(self, ins: Encoded) -> bool:
        kind = self.tracer.kinds.get(number_of(ins))
        return kind is not None and kind.row.loads

    def _forms(self, question: FreshQuestion) -> list[Any]:
        """For each instruction of a question the function that gives the one to send, the place of its results, and the
        function that gives the ids that it would end; an empty list if one of them cannot be taken back, or if Python issues
        them in less time than it takes to predict and compare them."""
        found: list[Any] = []
        sizes = [len(self.tracer.programs[n].instructions) if n in self.tracer.programs else 1 for n in question.numbers]
        if sum(sizes) < LEAST and not question.leads or cpu_count() < 2:
            return found
        for number in question.numbers:
            kind, program = self.tracer.kinds.get(number), self.tracer.programs.get(number)
            if kind is not None and kind.row.kernel is not None and not kind.row.updates:
                found.append((tuple, Form.of(kind).results, pick([])))
            elif program is not None and (split := self.early.split(number)) is not None and split.rest is None:
                form = Form.of_call(len(program.results), program.inputs, program.holes)
                at = {v: result_at(i) for i, v in enumerate(program.results)}
                at |= {v: form.at(v - 1) for v in range(1, program.inputs + 1)}
                part = split.first
                question.programs.add(part.program.number)
                parts = [at[v] for v in (*part.made, *part.given)] + [form.at(program.inputs + h) for h in part.holes]
                found.append((part_of_call(part.program.number, parts), form.results, pick([at[v] for v in split.dying])))
            else:
                return []
        return found

    # Asking

    def loaded(self, session: Any, id: int, data: Any) -> bool:
        """A load was issued, of this array. If a known question begins with it, that is started, or sent with the rest of the
        buffer. Returns whether it was."""
        self.loads = True
        self.deferred.loaded(id, data)
        if not self.known or len(session.code) > FEW:
            return False
        code = session.code[:]  # other threads may add to it
        others, ended = parted(code)
        loads = ops(others)
        question = self.known.get(tuple(map(number_of, loads)))
        if question is None or not self._sends(session, question):
            return False
        if self._start(session, question, loads, ended):
            session.code[: len(code)] = frees_of(ended)
            session.written += len(loads)
            return True
        asked = self._asked(session, question, int(first_result(loads[0])), ended)
        if asked is not None:
            session._send(*self._message(session, asked, len(code), [*frees_of(ended), *loads]), False)
        return asked is not None

    def begin(self, session: Any) -> None:
        """An op was issued, the first since the last batch. If the question that is prepared begins with it, after a pause, it
        is sent; the op stays in the buffer, to be compared with the others."""
        if self.later is not None and self.later.leads and number_of(session.code[-1]) in self.begins:
            with session.lock:
                self._prepare_next(session, last_id(session))
        asked = self.prepared
        if asked is None or asked.lead != session.code[-1:]:
            return
        question = asked.question
        if not self.deferred.waits(asked) and self.early.clock() - self.asked_at < PAUSE:
            return
        with UNINTERRUPTED, session.lock:
            code = session.code[:]
            others, ended = parted(code)
            if others != asked.lead or asked.first != last_id(session) or not self._sends(session, question):
                return
            if self._start(session, question, (), ended):
                session.limit = session.lengths.most
            elif asked.mentions.isdisjoint(ended):
                self._sent_early(session, asked)
                session.limit = session.lengths.most
                session._send(*self._message(session, asked, len(ended), [*frees_of(ended)]), False)
            else:
                question.right = 0

    def _start(self, session: Any, question: FreshQuestion, loads: Sequence[Encoded], ended: list[Any]) -> bool:
        """Start the question that begins with these loads, if it waits at its worker."""
        asked = self.prepared
        if asked is None or asked.question is not question or not self.deferred.waits(asked):
            return False
        if not asked.mentions.isdisjoint(ended) or loads and min(asked.made) <= last_id(session):
            return False
        if not self.deferred.start(session, loads):
            return False
        self._sent_early(session, asked)
        question.serial = session.serial
        return True

    def _prepare_next(self, session: Any, first: int) -> None:
        """Prepare the question that was asked, as it may be asked next, with this id of its first load or op."""
        question, self.later = self.later, None
        asked = self._prepare(question, first) if question is not None else None
        self.prepared = asked if asked is not None and asked.replies else None

    def paused(self, session: Any) -> None:
        """Python pauses behind a question: prepare the next one, and send it to wait at its worker if it is likely enough."""
        if self.later is not None:
            with session.lock:
                self._prepare_next(session, last_id(session) + 1)
                if self.prepared is not None and self._may_send(session):
                    self.deferred.offer(session, self.prepared)

    def _sends(self, session: Any, question: FreshQuestion) -> bool:
        """Whether a question is sure enough, and can be sent."""
        if question.right < question.wanted or question.read is None:
            return False
        if question.serial != session.serial or not self._may_send(session):
            return False
        if question.forms is None:
            question.forms = self._forms(question)
            return False  # its programs are sent with the next batch
        return bool(question.forms) and self.tracer.programs.keys() >= question.programs

    def _message(self, session: Any, asked: Asked, taken: int, sent: list[Encoded]) -> Any:
        """The message of a question, behind the instructions `sent`, for which so many are taken from the buffer."""
        del session.code[:taken]
        session.written += taken
        if self.early.begins:
            self.early.follow(sent, end=True)
        return sent + asked.sent, asked.gets

    def _may_send(self, session: Any) -> bool:
        tracer = self.tracer
        unsent = tracer.defined or tracer.dropped or session.kinds.fresh or session.uploads
        watched = session.reports is not None or session.checks is not None or session.noted is not None
        gone = session.lost or session.closed or not session.workers
        gone = gone or session.steps is not None and session.steps.loop is not None
        return not (self.pending or unsent or watched or gone or session.window.full()) and tracer.between_traces()

    def _asked(self, session: Any, question: FreshQuestion, first: int, ended: list[Any]) -> Asked | None:
        """The question behind loads of which the first has the id `first`, and behind frees of `ended`; None if an operand of
        it was freed, if another thread has taken the id of one of its results, or if it reads none of them."""
        asked, self.prepared = self.prepared, None
        if asked is None or asked.question is not question or asked.first != first:
            asked = self._prepare(question, first)
        if not asked.mentions.isdisjoint(ended):
            question.right = 0
            return None
        if not asked.replies or min(asked.made) <= last_id(session):
            return None
        self._sent_early(session, asked)
        return asked

    def _sent_early(self, session: Any, asked: Asked) -> None:
        """A question is sent before Python has issued it."""
        asked.question.serial = session.serial + 1
        session.limit, self.prepared, self.pending = 1, None, asked
        for reply in asked.replies.values():
            self.replies.ahead[reply.ticket] = reply
        self.early.counts["sent"] += 1
        self.early.counts["with_reads"] += 1

    def _prepare(self, question: FreshQuestion, first: int) -> Asked:
        """A question, and the requests for the values that will be read; none if the first of them is not its result."""
        asked = Asked(question, first)
        assert question.read is not None
        id, spec = first + question.read[0], question.read[1]
        wanted = [(id, spec)]
        for following in self.ahead.guessed(spec):
            id += following.distance
            wanted.append((id, following.spec))
        if wanted[0][0] in asked.made and spec.nbytes <= SMALL:
            for id, spec in wanted:
                if id in asked.made:
                    reply = asked.replies[id] = Reply(self.replies.next_ticket())
                    reply.wanted = (id, spec_out(spec))
                    asked.gets += ((reply.ticket, *reply.wanted),)
        return asked

    def take_back(self, session: Any) -> None:
        """Everything is to be sent, or the workers have changed: free the results of the question that waits at its worker."""
        if self.deferred.waiting is not None:
            with session.lock:
                session.code += self.deferred.cancel()
            session.link.wake()

    # Comparing

    def passed(self, session: Any, out: list[Encoded], gets: Sequence[Get], mark: bool) -> list[Encoded] | None:
        """These instructions are to be sent, before a read if `mark`. The ones to send in their place; None for none."""
        if self.pending is None:
            self.learn(out, gets, session.serial + 1)
        elif out or mark:
            out, right = self._settle(out)
            if right and mark and not gets:
                session.code[:0] = out  # frees, which are sent with the next batch
                if self.slow:
                    session.link.wake()
                else:
                    session.link.let_sleep()
                    self.paused(session)
                return None
        return out

    def _settle(self, out: list[Encoded]) -> tuple[list[Encoded], bool]:
        """Python has issued these instructions since. The instructions to send in their place, and whether the guess was
        right."""
        asked, self.pending = self.pending, None
        assert asked is not None
        code, ended = parted(out)
        if code == asked.code:
            self.early.counts["right"] += 1
            before, self.asked_at = self.asked_at, self.early.clock()
            self.ready, self.later, self.slow = asked.replies, asked.question, self.asked_at - before >= PAUSE
            return [*frees_of([*asked.ends, *ended])], True
        question = asked.question
        question.right, question.wanted, question.known = 0, min(2 * question.wanted, RIGHT_AFTER_WRONG), False
        question.streak = 0
        self.early.counts["wrong"] += 1
        self.forget(asked.replies)
        return [*frees_of(asked.made), *out], False

    def replies_to(self, session: Any) -> dict[int, Reply]:
        """The replies under way to the reads of a question, by id; they are the caller's from now on."""
        if self.pending is not None:
            session.flush(wait=False, read=True)
        found, self.ready = self.ready, {}
        return found

    def forget(self, replies: dict[int, Reply] | None = None) -> None:
        """Forget these replies, or all: a worker was lost, and reads are sent again."""
        for asked in (replies,) if replies is not None else (self.ready, self.pending.replies if self.pending else {}):
            for reply in asked.values():
                self.replies.ahead.pop(reply.ticket, None)
            asked.clear()
