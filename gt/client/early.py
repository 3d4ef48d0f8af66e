"""Calls sent early. Once a trace has come again often enough, its call is sent at the first instruction of the next time, if
its inputs are there and nothing is left for the workers to do; the rest of the step is compared as Python writes it. Values on
the workers never change, so a wrong guess costs its results, which are freed. What ends its inputs, the updates, is called
when Python has reached the end of the trace. docs/design/early.md says why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from gt import environment
from gt.client.traces import Trace
from gt.ops.table import Kind
from gt.program import Program
from gt.program.code import Encoded, Form, arguments, free, is_free, ops
from gt.program.split import Split, before_updates
from gt.program.stretch import flat, pick

CALLS = 6  # calls of a trace that must have come before it is looked at
RIGHT = 3  # guesses in a row that would have been right before one is sent
LEAST = 24  # ops of a trace from which it is worth a message
BETWEEN = 16  # calls between two reads up to which the first of them is sent early
PATIENCE = 1 << 10  # guesses in a row that must be right after many that were wrong
MOST = 1 << 12  # instructions of a batch past which it is not followed what they make

SAME, FROM_FIRST, FROM_LAST = range(3)  # how an id of a call follows from those before


class Guess:
    """How the ids and numbers of a trace's calls follow from those of calls before: an id is the `SAME` each time, or as far
    from the first result of this call (fresh data) or of the last call of any trace (what that made) as it was."""

    def __init__(self, trace: Trace, split: Split) -> None:
        self.trace, self.split = trace, split
        self.seen: tuple[list[int], int, int] | None = None  # ids of the values, first ids of that call and the one before
        self.rules: dict[int, tuple[int, int]] = {}  # for each value of the first part: rule, and distance or id
        self.told = False  # whether there is a rule for all of them
        self.numbers: tuple[Any, ...] = ()  # of the last call's holes, and of the call before
        self.older: tuple[Any, ...] = ()
        self.right = 0  # guesses in a row that were, or would have been, right
        self.wanted = RIGHT

    def note(self, numbers: tuple[Any, ...]) -> None:
        """The numbers of another call."""
        self.older, self.numbers = self.numbers, numbers

    def learn(self, ids: list[int], first: int, last: int) -> None:
        """The ids of the values of a call. `first` is its first result, `last` that of the call before, of any trace."""
        before, self.seen = self.seen, (ids, first, last)
        if before is None:
            return
        part, at, then = self.split.first, (first, last), before[1:]
        rules = {v: _rule(ids[v], before[0][v], at, then) for v in part.given}
        rules |= {v: (FROM_FIRST, ids[v] - first) for v in part.made}
        self.rules = {v: rule for v, rule in rules.items() if rule is not None}
        self.told = len(self.rules) == len(rules)

    def call(self, first: int, last: int) -> tuple[Encoded, list[int]] | None:
        """The call to send where the trace's first result is named `first`, and the ids it reads; None where that cannot be
        told."""
        if not self.told or len(self.older) != len(self.numbers):
            return None
        base = (0, first, last)  # by rule
        ids = {v: base[rule] + distance for v, (rule, distance) in self.rules.items()}
        part = self.split.first
        return part.call(ids, list(map(_following, self.numbers, self.older))), [ids[v] for v in part.given]


def _following(now: Any, before: Any) -> Any:
    """A whole number that grows goes on growing, as the count of random draws does; others stay."""
    return 2 * now - before if type(now) is int and type(before) is int else now


def _rule(now: int, before: int, at: tuple[int, int], then: tuple[int, int]) -> tuple[int, int] | None:
    """How an id follows: the rule, and the id or distance."""
    if now == before:
        return (SAME, now)
    if now - at[0] == before - then[0]:
        return (FROM_FIRST, now - at[0])
    if now - at[1] == before - then[1]:
        return (FROM_LAST, now - at[1])
    return None


class Early:
    """What a tracer guesses. `begins` are the first tokens of traces that it may call early."""

    def __init__(
        self, number: Callable[[], int], kinds: dict[int, Kind], programs: dict[int, Program],
        define: Callable[[Program], None],
    ) -> None:  # fmt: skip
        self.number, self.kinds, self.programs, self.define = number, kinds, programs, define
        self.on = environment.EARLY.value()
        self.idle = False  # a read was sent, so that the workers have nothing to do when the client goes on
        self.looked = False  # whether the stream was looked at for that, once for each read
        self.began = False  # at the first instruction of the stretch that is looked at
        self.begins: set[int] = set()
        self.guesses: dict[int, Guess | None] = {}  # by trace
        self.next: dict[tuple[int, int], Trace] = {}  # by the trace before and the first token, the trace that came
        self.before = self.last = 0  # the trace called last, and its first result
        self.calls = 0  # of traces since the last read
        self.effects: dict[Any, tuple[slice, Callable[[Encoded], tuple[Any, ...]]]] = {}  # of instructions, by number
        self.alive: set[Any] = set()  # ids of values that are there, as far as they are known
        self.newest = 0  # the largest id that was sent
        self.followed = 0  # instructions of the current batch that `alive` accounts for
        self.sent: tuple[Guess, Encoded] | None = None  # a call that Python has not reached yet
        self.expected: tuple[Guess, Encoded] | None = None  # one that would have been sent
        self.counts: Counter[str] = Counter()

    def waits(self) -> bool:
        """Whether the next instruction may be the first of a trace to call early."""
        return self.idle and not self.looked and bool(self.begins)

    def read(self) -> None:
        """A read was sent. Where many calls came since the one before, the workers wait for a small part of the time, and it is
        not worth the guessing."""
        self.idle, self.looked = self.calls <= BETWEEN, False
        self.calls = 0

    def begin(self, ins: Encoded, out: list[Encoded]) -> None:
        """A trace may begin with this instruction. What goes out before it is in `out`, to which a call is added."""
        if not self.idle or self.began:
            return
        self.began = True
        trace = self.next.get((self.before, int(ins[0])))
        guess = self.guesses.get(trace.number) if trace is not None else None
        found = guess.call(int(ins[1]), self.last) if guess is not None else None
        if found is None or guess is None:
            return
        self.follow(out)
        call, given = found
        if not self.alive.issuperset(given) or self.newest >= int(ins[1]):
            self.counts["inputs_not_there"] += 1
            guess.right = 0
        elif guess.right < guess.wanted:
            self.expected = (guess, call)
        else:
            out.append(call)
            self.sent = (guess, call)
            self.counts["sent"] += 1

    def reached(self, trace: Trace, call: Encoded, code: list[Encoded], freed: Iterable[int], out: list[Encoded]) -> bool:
        """Python has reached the end of a trace, `code`, which the call stands for: whether what is still to be sent of it was
        added to `out`."""
        first, done = int(code[0][1]), False
        self.calls += 1
        guess = self._guess(trace) if self.began else self.guesses.get(trace.number)
        if guess is not None:
            numbers = call[len(call) - len(trace.hole_positions) :]
            guess.note(numbers)
            if self.began:
                done = self._settle(guess, ops(code), numbers, first, freed, out)
        if self.began:
            self.idle = False
        if not done:
            self.cancel(out)
        self.began = False
        self.next[self.before, trace.tokens[0]] = trace
        self.before, self.last = trace.number, first
        return done

    def _settle(
        self, guess: Guess, code: list[Encoded], numbers: tuple[Any, ...], first: int, freed: Iterable[int], out: list[Encoded]
    ) -> bool:
        """Compare what came with the guess, and learn from it; whether the call was sent before, so that the rest is now."""
        trace, known = guess.trace, flat(code)
        inputs = trace.topology.firsts(known)
        ids = [0, *inputs, *trace.topology.results(known)]  # by value, which are counted from 1
        done = self._right(guess, guess.split.first.call(ids, numbers))
        if done:
            if guess.split.rest is not None:
                out.append(guess.split.rest.call(ids, numbers))
            out += map(free, (ids[v] for v in guess.split.dying))
            out += map(free, freed)
        guess.learn(ids, first, self.last)
        self.alive.update(inputs)
        self.alive.difference_update(trace.dies(inputs))
        return done

    def _right(self, guess: Guess, call: Encoded) -> bool:
        """Whether the call that Python came to was sent. One that would have been is counted."""
        if self.sent is not None and self.sent[0] is guess and self.sent[1] == call:
            self.sent = None
            self.counts["right"] += 1
            return True
        if self.expected is not None:
            guess.right = guess.right + 1 if self.expected[0] is guess and self.expected[1] == call else 0
            self.expected = None
        return False

    def cancel(self, out: list[Encoded]) -> None:
        """The guess was wrong: free the results of the early call before their ids are used again."""
        self.began = False
        if self.sent is not None:
            guess, call = self.sent
            out += map(free, arguments(call)[: len(guess.split.first.made)])
            guess.right, guess.wanted, self.sent = 0, min(2 * guess.wanted, PATIENCE), None
            self.counts["wrong"] += 1
        if self.expected is not None:
            self.expected[0].right, self.expected = 0, None

    def follow(self, out: list[Encoded], end: bool = False) -> None:
        """Note the ids that the instructions of this batch make and free."""
        alive = self.alive
        if len(out) - self.followed > MOST or len(alive) > 16 * MOST:
            alive.clear()
        for ins in out[self.followed :]:
            effect = self.effects.get(ins[0]) or self._effect(ins[0])
            if effect is None:
                continue
            results, dying = effect
            alive.difference_update(dying(ins))
            made: tuple[Any, ...] = ins[results]
            if made:
                alive.update(made)
                self.newest = max(self.newest, max(made))
        self.followed = 0 if end else len(out)

    def _effect(self, number: Any) -> tuple[slice, Callable[[Encoded], tuple[Any, ...]]] | None:
        """Where the results of instructions of this kind or program stand, and what gives the ids that die with one."""
        kind, program = self.kinds.get(number), self.programs.get(number)
        if is_free((number,)):
            self.effects[number] = (slice(0), arguments)
        elif kind is not None:
            self.effects[number] = (Form.of(kind).results, pick([]))
        elif program is not None:
            form = Form.of_call(len(program.results), program.inputs, program.holes)
            self.effects[number] = (form.results, pick([form.at(i) for i in program.dying]))
        if len(self.effects) > MOST:
            self.effects.clear()
            return self._effect(number)
        return self.effects.get(number)

    def _guess(self, trace: Trace) -> Guess | None:
        """The guess for a trace, from some calls on."""
        if trace.number not in self.guesses and self.on and trace.calls >= CALLS and trace.size >= LEAST:
            split = None
            if trace.live_results:  # else nobody waits for what it computes
                split = before_updates(self.programs[trace.number], self.number(), self.number())
            if split is not None:
                for part in (split.first, split.rest):
                    if part is not None:
                        self.define(part.program)
                self.begins.add(trace.tokens[0])
            self.guesses[trace.number] = Guess(trace, split) if split is not None else None
        return self.guesses.get(trace.number)

    def drop(self, numbers: tuple[int, ...]) -> list[int]:
        """Traces that will not be called again: the programs made of them."""
        gone = [guess for n in numbers if (guess := self.guesses.pop(n, None)) is not None]
        parts = [part.program.number for g in gone for part in (g.split.first, g.split.rest) if part is not None]
        for n in (*numbers, *parts):
            self.effects.pop(n, None)
        return parts

    def reset(self) -> None:
        for known in (self.begins, self.guesses, self.next, self.alive, self.effects):
            known.clear()
        self.before = self.last = 0
        self.expected, self.began = None, False

    def stats(self) -> dict[str, int]:
        return {f"early_calls_{name}": self.counts[name] for name in ("sent", "right", "wrong", "inputs_not_there")}
