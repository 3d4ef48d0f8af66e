"""Steps sent ahead: the next steps of a loop that reads a value in each step and takes nothing from outside, such as an
iteration until convergence. Their instructions follow from the last step's, so several steps are sent as one program, with
their reads, before Python has issued them. Values on the workers never change, so steps that do not come only cost their
results, which are freed. See docs/design/early.md."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

from gt import environment
from gt.client.loops import SURE, Loop, Numbers, learned, numbers_of
from gt.client.read_ahead import Get, ReadAhead
from gt.client.replies import Replies, Reply
from gt.client.tracer import Tracer
from gt.ops.table import spec_out
from gt.program.code import Encoded, frees_of, number_of, same_bits
from gt.program.unroll import unrolled
from gt.spec import Spec

SAMPLES = 3  # consecutive steps of the same kinds from which a loop is learned
TRIES = 4  # times that is tried
SURE_AFTER_WRONG = 1 << 10  # most right predictions in a row that are required after wrong ones
KNOWN = 32  # most loops that are remembered
FIRST = 2  # steps that are sent at once in the beginning
FEW = 8  # steps whose time is not looked at
SHARE = 4  # later at most one of so many steps that came, so that the steps that do not come are at most half as many

AHEAD_STATISTICS = ("steps_ahead_sent", "steps_ahead_right", "steps_ahead_wasted", "steps_ahead_failed")


class StepsAhead:
    """A session's loops, and the steps that are sent ahead."""

    def __init__(self, tracer: Tracer, replies: Replies, guessed: ReadAhead, clock: Callable[[], float]) -> None:
        self.tracer, self.replies, self.guessed, self.clock = tracer, replies, guessed, clock
        self.on = environment.EARLY.value()
        self.loops: OrderedDict[tuple[int, ...], Loop | None] = OrderedDict()  # by the kinds of a step's instructions
        self.tries: Counter[tuple[int, ...]] = Counter()  # to learn a loop
        self.key: tuple[int, ...] = ()  # of the last step
        self.samples: list[tuple[list[Encoded], Sequence[Get]]] = []  # the last steps, if their loop is not known
        self.last: Numbers | None = None  # of the last step that was sent
        self.right = 0  # right predictions in a row
        self.read_at = 0.0  # time of the last read
        self.loop: Loop | None = None  # whose steps are sent ahead
        self.sent: deque[tuple[Numbers, list[Reply]]] = deque()  # steps that Python has not reached
        self.reached: tuple[list[Encoded], Numbers, Reply] | None = None  # the last step that Python reached, until the next
        self.done = 0  # steps of this run of the loop that Python has reached
        self.length = 0  # steps of the last run, if this one may be as long
        self.began = (0, 0.0)  # steps of this run that Python had reached when steps were sent ahead, and the time
        self.at_once = FIRST  # steps that were sent last
        self.ended: list[Any] = []  # ids that Python has freed
        self.answers: dict[int, Reply] = {}  # by ticket of a read, the reply that was requested ahead
        self.counts: Counter[str] = Counter()

    # Learning

    def learn(self, batch: list[Encoded], gets: Sequence[Get]) -> bool:
        """A step of these instructions, which ends with a read, was sent. Returns whether to send the next steps ahead."""
        key, now = tuple(map(number_of, batch)), self.clock()
        took, self.read_at = now - self.read_at, now
        if key != self.key:
            self.key, self.samples, self.last, self.right = key, [], None, 0
            took = 1.0
        loop = self.loops.get(key)
        if loop is None or not self._expected(gets):
            if key not in self.loops and took < 1.0:
                self._try(batch, gets)
            return False
        loop.took(took)
        before, self.last = self.last, loop.numbers(batch, gets)
        if self.last is None or not loop.fits(self.last):
            self.right = 0
            return False
        goes_on = before is not None and same_bits(self.last, loop.following(before))
        self.right = self.right + 1 if goes_on else 0
        if self.right < loop.wanted or not loop.most:
            return False
        if goes_on and self.done and self.length:
            self.length = 0  # this run is longer than the last
        else:
            self.done, self.length = 0, loop.length
        self.loop, self.began, self.at_once, self.tracer.early.idle = loop, (self.done, now), FIRST, False
        return True

    def _try(self, batch: list[Encoded], gets: Sequence[Get]) -> None:
        """Learn a loop from this step and the ones before."""
        key = self.key
        self.samples.append((batch, gets))
        if len(self.samples) < SAMPLES:
            return
        loop, self.samples = learned(self.tracer, self.samples), []
        self.tries[key] += 1
        if loop is None and self.tries[key] < TRIES:
            if len(self.tries) > KNOWN * TRIES:
                self.tries.clear()
            return
        self.loops[key] = loop
        if len(self.loops) > KNOWN:
            _, dropped = self.loops.popitem(last=False)
            if dropped is not None and dropped.programs:
                self.tracer.drop(*[several.program.number for several in dropped.programs.values()])

    # Sending

    def count(self) -> int:
        """How many steps to send, a power of two: as many as the last run had, or a share of the ones that came."""
        loop = self.loop
        if loop is None or len(self.sent) >= loop.most or len(self.sent) >= 2 * self.at_once:
            return 0
        most = min(loop.most, 2 * self.at_once)  # the answers of the first steps are there before many are computed
        steps = min(most, max(FIRST, self.done // SHARE) if not self.length else self.length - self.done - len(self.sent))
        return 1 << steps.bit_length() - 1 if steps > 0 else 0

    def send(self, count: int) -> tuple[list[Encoded], tuple[Get, ...]]:
        """The instructions and reads of so many steps."""
        loop, steps, gets = self.loop, [], []
        assert loop is not None and self.last is not None
        if (came := self.done - self.began[0]) > FEW:  # they take less time than when each was sent by itself
            loop.took((self.clock() - self.began[1]) / came)
        several = loop.programs.get(count)
        if several is None:
            several = loop.programs[count] = unrolled(loop.step, self.tracer.number(), count, loop.carried)
            self.tracer.add(several.program)
        numbers, self.at_once = self.last, max(count, FIRST)
        for _ in range(count):
            numbers = loop.following(numbers)
            replies = [self.replies.ahead_of(id, spec) for id, spec in zip(numbers[loop.reads], loop.specs)]
            gets += [(reply.ticket, id, spec) for reply, id, spec in zip(replies, numbers[loop.reads], loop.specs)]
            steps.append(numbers)
            self.sent.append((numbers, replies))
        self.last = numbers
        self.counts["sent"] += count
        self.tracer.hits += 1
        self.tracer.saved += len(several.program.instructions) - 1
        ended, self.ended = frees_of(self.ended), []
        return [*ended, loop.call(steps, several)], tuple(gets)

    def reach(self, batch: list[Encoded], gets: Sequence[Get]) -> bool:
        """Python has issued these instructions and reads. Returns whether they are the next step that was sent."""
        if self.loop is None or not self.sent or [get[2] for get in gets] != self.loop.specs or not self._expected(gets):
            return False
        replies = self.sent[0][1]
        if not self._advance(batch, *[get[1] for get in gets]):
            return False
        self.answers[gets[0][0]] = replies[0]
        for get, reply in zip(gets[1:], replies[1:]):
            self.guessed.replace(get[1], reply)
            self.replies.ahead.pop(get[0], None)
        return True

    def reply_to(self, session: Any, id: int, spec: Spec) -> Reply | None:
        """The reply to a read, if Python has issued the next step that was sent, and reads its only value: `reach` without the
        request that would not be sent."""
        with session.lock:
            if self.loop is None or not self.sent or self.guessed.asked:
                return None
            (reply, *more), batch = self.sent[0][1], session.code[:]
            if more or reply.wanted != (id, spec_out(spec)) or not self._advance(batch, id):
                return None
            session.take_from_buffer(len(batch))
            self.guessed.note_answered(session, id, spec)
            if count := self.count():
                session._send(*self.send(count), False)
            return session.reply(reply)

    def _advance(self, batch: list[Encoded], *reads: int) -> bool:
        """Note that Python has reached the next step that was sent, if these are its instructions and reads. Returns whether
        they are."""
        loop, (numbers, replies) = self.loop, self.sent[0]
        assert loop is not None
        issued = numbers_of(loop.form, batch, reads) if tuple(map(number_of, batch)) == self.key else None
        if issued is None or not same_bits(issued, numbers):
            return False
        self._release()
        self.sent.popleft()
        self.replies.promote(replies[0])
        self.reached = (batch, numbers, replies[0])
        self.done += 1
        self.counts["right"] += 1
        return True

    def _expected(self, gets: Sequence[Get]) -> bool:
        """Whether these are one reader's read and the reads that are guessed to follow it."""
        return all(self.guessed.asks(id, ticket) for ticket, id, _ in gets[1:])

    def _release(self) -> None:
        """The step that Python reached last has its values: the ids that it frees can be freed."""
        if self.reached is not None and self.loop is not None:
            self.ended += self.loop.frees(self.reached[1])
        self.reached = None

    def give_up(self) -> list[Encoded]:
        """The steps that were sent do not come, or all have come: the instructions that free their results, and those of
        Python's frees."""
        loop = self.loop
        assert loop is not None
        wrong = not self.done
        loop.wanted = min(SURE_AFTER_WRONG, max(SURE, 2 * loop.wanted)) if wrong else loop.least
        self._release()
        if not self.sent:  # as many have come as in the last run: it may go on
            last, key = self.last, self.key
            ended = self._end()
            self.last, self.key = last, key
            return ended
        loop.length = self.done
        return self._end()

    def undo(self, reply: Reply) -> list[Encoded] | None:
        """The instructions to send if this reply of the step that Python reached last is an error: that step by itself, as a
        program of several steps may fail where one does not. None if the reply is of no such step."""
        if self.reached is None or self.reached[2] is not reply or self.loop is None:
            return None
        (batch, numbers, _), live = self.reached, self.loop.live
        self.reached = None
        self.loop.wanted = SURE_AFTER_WRONG
        self.counts["failed"] += 1
        return [*self._end(), *frees_of(numbers[:live]), *batch]

    def _end(self) -> list[Encoded]:
        loop = self.loop
        assert loop is not None
        ended: list[Encoded] = [*frees_of(self.ended)]
        for numbers, replies in self.sent:
            ended += frees_of(numbers[: loop.live])
            for reply in replies:
                self.replies.ahead.pop(reply.ticket, None)
        self.counts["wasted"] += len(self.sent)
        self.sent.clear()
        self.ended, self.loop, self.last, self.right, self.key = [], None, None, 0, ()
        return ended

    def pass_over(self) -> None:
        """A step was answered without being sent: the next one does not follow the last one that was."""
        self.key, self.samples, self.last = (), [], None

    def reset(self) -> None:
        """Forget all loops, when their kinds are forgotten."""
        self.loops.clear()
        self.pass_over()

    def stats(self) -> dict[str, int]:
        return {name: self.counts[name.removeprefix("steps_ahead_")] for name in AHEAD_STATISTICS}
