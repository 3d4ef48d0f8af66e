"""Speculative calls of traces. Once a trace has repeated often enough, its call is sent at the first instruction of the next
repetition, if its inputs exist and the workers are idle; the rest of the step is compared as Python issues it. Values on the
workers never change, so a wrong guess only costs its results, which are freed. The part that frees inputs, the updates, is
called when Python has reached the end of the trace. See docs/design/early.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from gt import environment
from gt.client.early_gain import Trial
from gt.client.traces import Trace
from gt.ops.table import Kind
from gt.program import Program
from gt.program.code import Encoded, Form, arguments, first_result, frees_of, number_of, ops, parted, same_bits
from gt.program.split import Split, before_updates
from gt.program.stretch import flat, pick

CALLS = 6  # calls of a trace before guessing begins
RIGHT = 3  # consecutive right guesses before one is sent
LEAST = 24  # least ops of a trace that is called early
BETWEEN = 16  # most calls between two reads with which the first of them is sent early
RIGHT_AFTER_WRONG = 1 << 10  # consecutive right guesses required after many wrong ones
HELD = 0.03  # seconds for which a trace in progress is held while the workers have work
AHEAD = 64  # instructions after a read that are searched for the first one of a trace
MOST = 1 << 12  # most instructions of a batch whose results are followed

EARLY_STATISTICS = tuple(
    f"early_calls_{name}"
    for name in (
        "sent",
        "right",
        "wrong",
        "with_reads",
        "deferred",
        "deferred_wasted",
        "inputs_not_there",
        "no_gain",
        "trials",
    )  # fmt: skip
)
SAME, FROM_FIRST, FROM_LAST = range(3)  # how an id of a call follows from earlier ones


class Guess:
    """Predicts the ids and numbers of a trace's calls from earlier calls: an id is the `SAME` in each call, or at a fixed
    distance from the first result of this call (fresh data) or of the last call of any trace (its results)."""

    def __init__(self, trace: Trace, split: Split) -> None:
        self.trace, self.split = trace, split
        self.seen: tuple[list[int], int, int] | None = (
            None  # ids of a call's values, first ids of that call and of the previous one
        )
        self.rules: dict[int, tuple[int, int]] = {}  # for each value of the first part: rule, and distance or id
        self.predictable = False  # whether all values have a rule
        self.numbers: tuple[Any, ...] = ()  # the holes' numbers in the last call, and in the call before
        self.older: tuple[Any, ...] = ()
        self.right = 0  # consecutive guesses that were, or would have been, right
        self.wanted = RIGHT
        self.trial = Trial()

    def note(self, numbers: tuple[Any, ...]) -> None:
        """Learn from the numbers of a call."""
        self.older, self.numbers = self.numbers, numbers

    def learn(self, ids: list[int], first: int, last: int) -> None:
        """Learn from the ids of a call. `first` is its first result, `last` that of the previous call of any trace."""
        before, self.seen = self.seen, (ids, first, last)
        if before is None:
            return
        part, at, then = self.split.first, (first, last), before[1:]
        rules = {v: _rule(ids[v], before[0][v], at, then) for v in part.given}
        rules |= {v: (FROM_FIRST, ids[v] - first) for v in part.made}
        self.rules = {v: rule for v, rule in rules.items() if rule is not None}
        self.predictable = len(self.rules) == len(rules)

    def call(self, first: int, last: int) -> tuple[Encoded, list[int]] | None:
        """The predicted call if the trace's first result has the id `first`, and the ids that it reads; None if it cannot be
        predicted."""
        if not self.predictable or len(self.older) != len(self.numbers):
            return None
        base = (0, first, last)  # by rule
        ids = {v: base[rule] + distance for v, (rule, distance) in self.rules.items()}
        part = self.split.first
        return part.call(ids, list(map(_following, self.numbers, self.older))), [ids[v] for v in part.given]


def _following(now: Any, before: Any) -> Any:
    """An integer that grew grows by the same step, as the count of random draws does; other numbers stay."""
    return 2 * now - before if type(now) is int and type(before) is int else now


def _rule(now: int, before: int, at: tuple[int, int], then: tuple[int, int]) -> tuple[int, int] | None:
    """The rule of an id, and the id or distance."""
    if now == before:
        return (SAME, now)
    if now - at[0] == before - then[0]:
        return (FROM_FIRST, now - at[0])
    if now - at[1] == before - then[1]:
        return (FROM_LAST, now - at[1])
    return None


class Early:
    """A tracer's guesses. `begins` are the first tokens of traces that it may call early."""

    def __init__(
        self, number: Callable[[], int], kinds: dict[int, Kind], programs: dict[int, Program], defined: list[Program]
    ) -> None:
        # The tracer's tables, not the tracer: a cycle of the two would keep their stretches until Python collects cycles.
        self.number, self.kinds, self.programs, self.defined = number, kinds, programs, defined
        self.on = environment.EARLY.value()
        self.idle = False  # a read was sent, so that the workers are idle when the client continues
        self.looked = False  # whether the stream was checked for an early call since the last read
        self.began = False  # at the first instruction of the checked stretch
        self.begins: set[int] = set()
        self.guesses: dict[int, Guess | None] = {}  # by trace
        self.splits: dict[int, Split | None] = {}  # by program, of small ones that are sent with their inputs' loads
        self.next: dict[tuple[int, int], Trace] = {}  # by previous trace and first token, the trace that followed
        self.before = self.last = 0  # the trace called last, and its first result
        self.calls = 0  # calls of traces since the last read
        self.effects: dict[
            Any, tuple[slice, Callable[[Encoded], tuple[Any, ...]]]
        ] = {}  # by number: results and freed ids of its instructions
        self.alive: set[Any] = set()  # ids of live values, as far as known
        self.newest = 0  # the largest id sent
        self.followed = 0  # instructions of the current batch that `alive` accounts for
        self.sent: tuple[Guess, Encoded] | None = None  # an early call whose end Python has not reached
        self.expected: tuple[Guess, Encoded] | None = None  # a call that would have been sent
        self.resting = False  # the trace that began is neither sent early nor compared with its guess
        self.timed: Guess | None = None  # the guess whose trial has a step in progress, until the next answer
        self.answer: float | None = None  # the time of the last answer, if a step of a trial was the last step
        self.clock: Callable[[], float] = float  # the session sets a real clock
        self.have_devices: Callable[[], bool] = lambda: True  # whether not all workers are CPUs; set by the session
        self.counts: Counter[str] = Counter()

    def waits(self) -> bool:
        """Whether the next instruction may be the first of a trace to call early."""
        return self.idle and not self.looked and bool(self.begins)

    def busy(self, in_flight: float) -> float:
        """Seconds for which a trace in progress is better held than sent as it is, with so many seconds of work in flight by
        estimate: the workers do not wait for it, and on CPUs their work may keep the user's thread from going on. To give up a
        trace that was called early wastes its call; behind a read the estimate is of before."""
        if self.sent is not None:
            return max(HELD, in_flight)
        return 0.0 if self.idle else min(HELD, in_flight)

    def read(self) -> None:
        """A read was sent. With many calls since the previous read, the workers are idle for a small part of the time, and
        guessing does not pay."""
        self.idle, self.looked, self.calls = self.calls <= BETWEEN, False, 0

    def answered(self) -> None:
        """The value of a read arrived, the first since the timed step began."""
        before, self.answer = self.answer, self.clock()
        guess, self.timed = self.timed, None
        if guess is not None and before is not None:
            guess.trial.took(self.answer - before)
            self.counts["trials"] += not guess.trial.runs()

    def _expected_guess(self, token: int) -> Guess | None:
        """The guess of the trace that begins with this token, if it is the one that followed the last trace before."""
        trace = self.next.get((self.before, token))
        return self.guesses.get(trace.number) if trace is not None else None

    def _sends(self, guess: Guess) -> bool:
        """Whether its next call is to be sent early: on GPUs, whose kernels take no core from Python, each one."""
        return guess.right >= guess.wanted and (guess.trial.sends() or self.have_devices())

    def sends(self, token: int) -> bool:
        """Whether a call is to be sent with the instruction of this token, the first of a trace."""
        guess = self._expected_guess(token)
        return guess is not None and self._sends(guess)

    def look(self, session: Any) -> bool:
        """Whether the last instruction is the first of a trace whose call is to be sent; if not, the next one is checked."""
        issued = session.code
        begins = bool(issued) and number_of(issued[-1]) in self.begins
        if not begins and len(issued) < AHEAD:
            session.limit = len(issued) + 1
            return False
        self.looked, session.limit = True, session.lengths.most
        return begins and self.sends(number_of(issued[-1]))

    def begin(self, ins: Encoded, out: list[Encoded]) -> None:
        """A trace may begin with this instruction: add its early call to `out`, the instructions to send."""
        if not self.idle or self.began:
            return
        self.began = True
        guess = self._expected_guess(int(ins[0]))
        if guess is not None and guess.right >= guess.wanted and not self.have_devices() and self._rests(guess):
            return
        found = guess.call(int(first_result(ins)), self.last) if guess is not None else None
        if found is None or guess is None:
            self.timed = None
            return
        self.follow(out)
        call, given = found
        if not self.alive.issuperset(given) or self.newest >= int(first_result(ins)):
            self.counts["inputs_not_there"] += 1
            guess.right, self.timed = 0, None
            return
        if guess.right < guess.wanted:
            self.expected, self.answer = (guess, call), None
        else:
            out.append(call)
            self.sent = (guess, call)
            self.counts["sent"] += 1

    def _rests(self, guess: Guess) -> bool:
        """A step has begun whose call could be sent early, on CPUs: whether it is not, by trial."""
        self.resting = not guess.trial.sends()
        if guess.trial.runs():
            self.timed = guess
        else:
            self.timed = self.answer = None
            self.counts["no_gain"] += self.resting
            guess.trial.passed()
        return self.resting

    def reached(self, trace: Trace, call: Encoded, code: list[Encoded], freed: Iterable[int], out: list[Encoded]) -> bool:
        """Python has reached the end of a trace with the instructions `code`. If its call was sent early, add the rest to
        `out`; returns whether it was."""
        first, done = int(first_result(code[0])), False
        self.calls += 1
        guess = self._guess(trace) if self.began else self.guesses.get(trace.number)
        if guess is not None:
            numbers = call[len(call) - len(trace.hole_positions) :]
            guess.note(numbers)
            if self.began and not self.resting:
                done = self._settle(guess, ops(code), numbers, first, freed, out)
        if self.began:
            self.idle = self.resting = False
        if not done:
            self.cancel(out)
        self.began = False
        self.next[self.before, trace.tokens[0]] = trace
        self.before, self.last = trace.number, first
        return done

    def called(self, trace: Trace, first: int) -> None:
        """A trace that is never called early was called; its first result has the id `first`."""
        self.calls += 1
        self.next[self.before, trace.tokens[0]] = trace
        self.before, self.last = trace.number, first

    def guesses_now(self) -> bool:
        """Whether there is a guess whose trace Python has not reached the end of."""
        return self.began or self.sent is not None or self.expected is not None

    def _settle(
        self, guess: Guess, code: list[Encoded], numbers: tuple[Any, ...], first: int, freed: Iterable[int], out: list[Encoded]
    ) -> bool:
        """Compare a trace's call with the guess and learn from it. Returns whether it was sent early."""
        trace, known = guess.trace, flat(code)
        inputs = trace.topology.firsts(known)
        ids = [0, *inputs, *trace.topology.results(known)]  # by value; values count from 1
        done = self._right(guess, guess.split.first.call(ids, numbers))
        if done:
            if guess.split.rest is not None:
                out.append(guess.split.rest.call(ids, numbers))
            out += frees_of([ids[v] for v in guess.split.dying])
            out += frees_of(freed)
        else:
            guess.learn(ids, first, self.last)
        self.alive.update(inputs)
        self.alive.difference_update(trace.dies(inputs))
        return done

    def _right(self, guess: Guess, call: Encoded) -> bool:
        """Whether the call that Python has reached was sent early. A right guess that was not sent is counted."""
        if self.sent is not None and self.sent[0] is guess and same_bits(self.sent[1], call):
            self.sent = None
            self.counts["right"] += 1
            return True
        if self.expected is not None:
            right = self.expected[0] is guess and same_bits(self.expected[1], call)
            guess.right = guess.right + 1 if right else 0
            self.expected = None
        return False

    def cancel(self, out: list[Encoded]) -> None:
        """The guess was wrong: free the results of the early call before their ids are used again."""
        if self.resting or self.sent is not None or self.expected is not None:
            self.timed = self.answer = None
        self.began = self.resting = False
        if self.sent is not None:
            guess, call = self.sent
            out += frees_of(arguments(call)[: len(guess.split.first.made)])
            guess.right, guess.wanted, self.sent = 0, min(2 * guess.wanted, RIGHT_AFTER_WRONG), None
            self.counts["wrong"] += 1
        if self.expected is not None:
            self.expected[0].right, self.expected = 0, None

    def follow(self, out: list[Encoded], end: bool = False) -> None:
        """Note the ids that the instructions of this batch define and free."""
        alive = self.alive
        if len(out) - self.followed > MOST or len(alive) > 16 * MOST:
            alive.clear()
        others, freed = parted(out[self.followed :])  # most of them are frees
        for ins in others:
            effect = self.effects.get(ins[0]) or self._effect(ins[0])
            if effect is None:
                continue
            results, dying = effect
            alive.difference_update(dying(ins))
            made: tuple[Any, ...] = ins[results]
            if made:
                alive.update(made)
                self.newest = max(self.newest, max(made))
        alive.difference_update(freed)
        self.followed = 0 if end else len(out)

    def _effect(self, number: Any) -> tuple[slice, Callable[[Encoded], tuple[Any, ...]]] | None:
        """The slice of the results in instructions of this kind or program, and a function that returns the ids they free."""
        kind, program = self.kinds.get(number), self.programs.get(number)
        if kind is not None:
            self.effects[number] = (Form.of(kind).results, pick([]))
        elif program is not None:
            form = Form.of_call(len(program.results), program.inputs, program.holes)
            self.effects[number] = (form.results, pick([form.at(i) for i in program.dying]))
        if len(self.effects) > MOST:
            self.effects.clear()
            return self._effect(number)
        return self.effects.get(number)

    def _guess(self, trace: Trace) -> Guess | None:
        """The guess for a trace, after `CALLS` calls."""
        if trace.number not in self.guesses and self.on and trace.calls >= CALLS and trace.size >= LEAST:
            split = self._define(trace.number) if trace.live_results else None  # else no result of it is used
            if split is not None:
                self.begins.add(trace.tokens[0])
            self.guesses[trace.number] = Guess(trace, split) if split is not None else None
        return self.guesses.get(trace.number)

    def split(self, number: int) -> Split | None:
        """A small program split before its updates."""
        if number not in self.splits:
            small = len(self.programs[number].instructions) < LEAST
            self.splits[number] = self._define(number) if small else None
        return self.splits[number]

    def _define(self, number: int) -> Split | None:
        """A program split before its updates; the parts are sent with the next batch."""
        split = before_updates(self.programs[number], self.number(), self.number())
        if split is not None:
            parts = [part.program for part in (split.first, split.rest) if part is not None]
            self.defined += parts
            self.programs.update((program.number, program) for program in parts)
        return split

    def drop(self, numbers: tuple[int, ...]) -> list[int]:
        """Forget traces; returns the numbers of their split programs."""
        gone = [guess.split for n in numbers if (guess := self.guesses.pop(n, None)) is not None]
        gone += [split for n in numbers if (split := self.splits.pop(n, None)) is not None]
        parts = [part.program.number for split in gone for part in (split.first, split.rest) if part is not None]
        for n in (*numbers, *parts):
            self.effects.pop(n, None)
        dropped = set(numbers)
        for key in [key for key, trace in self.next.items() if key[0] in dropped or trace.number in dropped]:
            del self.next[key]
        return parts

    def reset(self) -> None:
        for known in (self.begins, self.guesses, self.splits, self.next, self.alive, self.effects):
            known.clear()
        self.before = self.last = 0
        self.expected, self.timed, self.began, self.resting = None, None, False, False

    def stats(self) -> dict[str, int]:
        return {name: self.counts[name.removeprefix("early_calls_")] for name in EARLY_STATISTICS}
