"""The tracer between the client's buffer and the link. A stretch of the stream that repeats is sent once as a trace and then
called by one instruction. While a stretch is being matched its instructions are held back; if it does not match they are sent
unchanged, so replay changes the cost of a program and never its result."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from gt.client.early import Early
from gt.client.periods import begin, periods
from gt.client.questions import FrequentQuestions
from gt.client.repeats import MARK, Part, Repeats
from gt.client.traces import Trace, TraceForm, Window, blame, candidates, common_length, define, equal, most_general, program_of
from gt.ops.table import Kind
from gt.program import Program
from gt.program.code import first_result, frees, frees_of, is_client_kind, next_op, number_of, op_numbers, op_places
from gt.program.foreach import ForeachKind
from gt.program.wire import TraceDef, write

SHORTEST = 5
LONGEST = 1 << 14
UNROLL = 128  # a short period is unrolled to at least this many ops, so that a call pays
KNOWN = 128  # most traces kept
SEEN = 512  # most stretches remembered, to recognise repetitions
FORMS = 8  # most forms (positions of frees and marks) remembered of one trace
TRIES = 64  # most forms tried of one trace; above, its frees vary, and only the slow match is used


class Tracer:
    """`fold` takes instructions and returns the ones to send. Frees and marks keep their positions among the ops; the positions
    matter only to the fast match of forms."""

    def __init__(self, number: Callable[[], int], kinds: dict[int, Kind], lists: dict[int, ForeachKind] | None = None) -> None:
        self.number, self.kinds, self.lists = number, kinds, lists if lists is not None else {}
        self.pieces: list[tuple] = []  # held back: the first instructions of a possible trace
        self.tokens: list[int] = []  # the first number of each
        self.stretch: list[tuple] = []  # sent since the last boundary
        self.stretch_tokens: list[int] = []  # of its ops
        self.fresh = True  # at a boundary, where a known trace may begin
        self.ending = False  # after a boundary, where the frees of the stretch before it follow
        self.traces: OrderedDict[int, list[Trace]] = OrderedDict()  # by first token, the most recently used last
        self.forms: dict[int, list[TraceForm]] = {}  # by first token, the longest first
        self.seen: OrderedDict[tuple, list[list[tuple]]] = OrderedDict()  # stretches, by the tokens of their ops
        self.plain: set[int] = set()  # tokens of ops that may be part of a trace
        self.defined: list[Program] = []  # to be sent with the next batch
        self.programs: dict[int, Program] = {}  # programs that can be called, by number
        self.dropped: list[int] = []
        self.compiled: set[str] = set()  # signals with `compile: true`
        self.misses: Counter[str] = Counter()
        self.lines: dict[str, Any] = {}  # by miss reason, the line of an op that differed
        self.asked_for: Callable[[int], Any] = lambda result: None  # set by the session
        self.line: Callable[[int], str] = lambda result: ""  # the user's line of a result, in short
        self.questions, self.found, self.hits, self.saved = FrequentQuestions(), 0, 0, 0
        self.early = Early(number, kinds, self.programs, self.defined)
        self.repeats = Repeats(self.early)
        self.learned = False  # whether the current batch had a stretch that may become a trace, or changed one
        self.matched: TraceForm | None = None  # the form that the last call was found by
        self.probed = 0  # length of the stretch at the last search for a period
        self.ahead = -1  # ops until the next period begins, if one was found

    def fold(self, batch: list[tuple], final: bool, mark: bool) -> list[tuple]:
        """The instructions to send for these. `final`: nothing may be held back; `mark`: their end is a boundary."""
        parts: list[Part] = []
        if not mark:
            return self._fold(batch, final, parts)
        neutral = self.between_traces()
        out = self.repeats.fold(batch, self._count) if neutral else None
        if out is None:
            self.learned = False
            out = self._fold([*batch, (MARK,)], final, parts, read=True)
            if neutral and not self.learned and self.between_traces():
                self.repeats.note(batch, parts)
        elif self.early.begins:
            self.early.follow(out, end=True)
        self.early.read()
        return out

    def between_traces(self) -> bool:
        """Whether no trace is in progress or guessed, and no instruction is held."""
        return self.fresh and not (self.ending or self.pieces or self.stretch or self.early.guesses_now()) and self.ahead < 0

    def _fold(self, batch: list[tuple], final: bool, parts: list[Part], read: bool = False) -> list[tuple]:
        """The instructions to send for these (before a `read`) and those held before. Notes in `parts` their parts."""
        out: list[tuple] = []
        pieces, tokens = self.pieces, self.tokens
        pieces += batch
        tokens += map(number_of, batch)
        at, n = 0, len(pieces)
        while at < n:
            start, self.matched = at, None
            if self.ending or self.fresh and not is_client_kind(tokens[at]):
                at = self._between(at, out)
            elif self.ahead >= 0:
                at = self._lead(at, out)
            elif self.fresh:
                self.early.begin(pieces[at], out)
                end = self._match(at, out, final)
                if end is None:
                    break  # a trace may have begun: hold the rest
                self.fresh = end > at
                if not self.fresh:
                    self.early.cancel(out)
                at = end
            else:
                at = self._pass(at, out)
            if at > start:
                parts.append((start, at, self.matched))
        if final and self.ending:
            self._close(read)
        del pieces[:at], tokens[:at]
        if self.early.begins:
            self.early.follow(out, end=True)
        return out

    def _between(self, at: int, out: list[tuple]) -> int:
        """Frees and marks between two stretches. Those after a boundary belong to the stretch before it, which is complete when
        an op follows them."""
        tokens = self.tokens
        end = next_op(tokens, at)
        freed = frees(self.pieces[at:end])
        out += freed
        if self.ending:
            self.stretch += freed
            if end < len(tokens):
                self._close()
        return end

    def _pass(self, at: int, out: list[tuple]) -> int:
        """Send instructions that are not part of a trace, up to the next boundary."""
        try:
            end = self.tokens.index(MARK, at)
            self.ending = True
        except ValueError:
            end = len(self.tokens)
        sent = self.pieces[at:end]
        out += sent
        self.stretch += sent
        self.stretch_tokens += op_numbers(self.tokens[at:end])
        if self.ending:
            return end + 1
        if len(self.stretch) > 2 * LONGEST:
            self._begin_stretch()
        elif len(self.stretch) - self.probed >= UNROLL:
            self._find_period()
        return end

    def _lead(self, at: int, out: list[tuple]) -> int:
        """Send the remaining ops of a period, and their frees, unchanged: a trace may begin after them."""
        tokens, end = self.tokens, at
        while end < len(tokens) and tokens[end] != MARK and (self.ahead or not is_client_kind(tokens[end])):
            self.ahead -= is_client_kind(tokens[end])
            end += 1
        out += self.pieces[at:end]
        if end < len(tokens):
            self.ahead, self.fresh = -1, tokens[end] != MARK
        return end

    # Replaying

    def _match(self, at: int, out: list[tuple], final: bool) -> int | None:
        """The end of the call that starts here; `at` if none does, None if more instructions are needed to decide."""
        pieces, tokens = self.pieces, self.tokens
        n = len(pieces)
        for form in self.forms.get(tokens[at], ()):
            end = at + form.length
            if end < n or (end == n and final):
                if tokens[at:end] == form.tokens and (end == n or is_client_kind(tokens[end])):
                    found = form.call(pieces[at:end])
                    if found is not None:
                        self.matched = form
                        return self._replay(form.trace, found[0], found[1], out, at, end)
            elif not final and tokens[at:] == form.tokens[: n - at]:
                return None  # it may end here, or frees may follow
        fitting = candidates(self.traces.get(tokens[at], ()), tokens, at)
        return self._search(at, fitting, out, final) if fitting else at

    def _search(self, at: int, candidates: list[Trace], out: list[tuple], final: bool) -> int | None:
        """As `_match`, with frees at any position."""
        self.learned = True
        longest = max(t.length for t in candidates)
        places = op_places(self.tokens, at)[: longest + 1]
        tokens = [self.tokens[i] for i in places]
        have, why, refused = len(tokens), "", list[tuple[Trace, Window, str]]()
        for trace in sorted(candidates, key=Trace.worth, reverse=True):
            n = trace.length
            if have < n or (have == n and not final):
                if tokens != trace.tokens[:have]:
                    why = why or "diverged"
                elif final:
                    why = why or "a value was read"
                    continue  # a read cut it short: that does not count against the trace
                elif trace.worth() > 0:
                    return None
                else:
                    why = why or "too often broken off"
            elif tokens[:n] == trace.tokens and (trace.size >= SHORTEST or have == n):
                end = places[n] if have > n else len(self.pieces)
                window = Window.of(self.pieces[at:end])
                call, rest, cause = trace.call(window)
                if call is not None:
                    self._remember(trace, self.pieces[at:end])
                    self.traces.move_to_end(trace.tokens[0])
                    return self._replay(trace, call, rest, out, at, end)
                why = why or cause
                refused.append((trace, window, cause))
            else:
                why = why or "diverged"
            trace.misses += 1
        if (revised := most_general(refused)) is not None:
            self._revise(*revised)
        times = self.misses[why] = self.misses[why] + 1
        if times & (times - 1) == 0:  # at powers of two only: finding the line is slow
            differing = places[min(common_length(tokens, candidates), have - 1)]
            result = blame(*refused[0]) if refused and refused[0][2] == why else 0
            self.lines[why] = self.asked_for(result or int(first_result(self.pieces[differing])))
        return at

    def _replay(self, trace: Trace, call: tuple, freed: Any, out: list[tuple], at: int, end: int) -> int:
        if not self.early.reached(trace, call, self.pieces[at:end], freed, out):
            out.append(call)
            out += frees_of(freed)
        self._count(trace)
        if self.stretch:
            self._begin_stretch()
        return end

    def _count(self, trace: Trace) -> None:
        trace.calls += 1
        self.hits += 1
        self.saved += trace.size - 1

    def _remember(self, trace: Trace, pieces: list[tuple]) -> None:
        """Remember the form of a trace for the fast match."""
        trace.tries += 1
        if trace.tries > TRIES:
            return
        forms = self.forms.setdefault(trace.tokens[0], [])
        own = [f for f in forms if f.trace is trace]
        if len(own) >= FORMS:
            forms.remove(own[0])
        forms.append(TraceForm(trace, pieces, self.kinds))
        self.repeats.clear()
        forms.sort(key=lambda form: form.length, reverse=True)

    def _revise(self, trace: Trace, window: Window) -> None:
        """For a stretch that differs from a trace only in a number or a lifetime, add a trace that fits both. Its holes may
        split and never join, so that numbers that vary each by itself end as a hole each."""
        for before in reversed(self.seen.get(tuple(trace.tokens), [])):
            if self._learn(Window.of(before), window, trace.holes_at()):
                return

    # Finding

    def _close(self, read: bool = False) -> None:
        """A boundary was reached, with `read` by a read: if this stretch has been seen before, it becomes a trace."""
        stretch, tokens = self.stretch, self.stretch_tokens
        self._begin_stretch()
        self.fresh, self.ending = True, False
        size, least = self.size(tokens), FrequentQuestions.LEAST if read else SHORTEST
        if size >= least and not self.plain.issuperset(tokens):
            stretch, tokens = self._traceable(stretch)
            size = self.size(tokens)
        if not least <= size <= LONGEST:
            return
        key = tuple(tokens)
        if size < SHORTEST and not (often := self.questions.came(key)):
            self.learned = self.learned or often is None
            return
        self.learned = True
        alike = self.seen.pop(key, None)
        if alike is None:
            self.seen[key] = [stretch]
            if len(self.seen) > SEEN:
                self.seen.popitem(last=False)
            return
        for before in reversed(alike):  # the same kinds may have several topologies
            if self._learn(Window.of(before), Window.of(stretch)):
                break
        self.seen[key] = [*alike[-3:], stretch]

    def size(self, tokens: list[int]) -> int:
        """The number of ops; an op on lists counts once per item."""
        lists = self.lists
        if not lists or lists.keys().isdisjoint(tokens):
            return len(tokens)
        return len(tokens) + sum([len(lists[t].kinds) - 1 for t in tokens if t in lists])

    def _traceable(self, stretch: list[tuple]) -> tuple[list[tuple], list[int]]:
        """The part of a stretch after its last load, and the tokens of its ops; empty if it contains calls of traces."""
        kinds = self.kinds
        self.plain.update(t for t in {ins[0] for ins in stretch} if t in kinds and kinds[t].row.kernel is not None)
        loads = [i for i, ins in enumerate(stretch) if ins[0] in kinds and ins[0] not in self.plain]
        rest = stretch[loads[-1] + 1 :] if loads else stretch
        tokens = op_numbers(map(number_of, rest))
        return (rest, tokens) if self.plain.issuperset(tokens) else ([], [])

    def _learn(self, before: Window, now: Window, holes: Mapping[int, Any] = MappingProxyType({})) -> bool:
        """Make a trace of two stretches. Returns whether they match."""
        trace = define(self.number(), self.kinds, before, now, holes)
        if trace is not None:
            trace.size = self.size(trace.tokens)
        if trace is None or trace.size < SHORTEST and self.questions.full():
            return False
        same = self.traces.setdefault(trace.tokens[0], [])
        if any(equal(trace, t) for t in same):
            return True
        self.questions.traces += trace.size < SHORTEST
        self.define(trace)
        same.append(trace)
        self.found += 1
        if len(same) > 16:
            self._drop([same.pop(0)])
        while sum(map(len, self.traces.values())) > KNOWN:
            self._drop(self.traces.popitem(last=False)[1])
        return True

    def _drop(self, traces: list[Trace]) -> None:
        """Drop the traces with this first token."""
        self.drop(*(t.number for t in traces))
        first = traces[0].tokens[0]
        left = [form for form in self.forms.pop(first, ()) if form.trace not in traces]
        if left:
            self.forms[first] = left

    def define(self, trace: Trace) -> None:
        """Send a trace's program with the next batch."""
        self.add(program_of(trace, self.compiled if trace.size >= SHORTEST else frozenset(), self.line))

    def add(self, program: Program) -> None:
        """Send a program with the next batch."""
        self.repeats.clear()
        self.defined.append(program)
        self.programs[program.number] = program

    def drop(self, *numbers: int) -> None:
        """Drop programs that will not be called again."""
        self.repeats.clear()
        numbers = (*numbers, *self.early.drop(numbers))
        self.dropped += numbers
        for number in numbers:
            self.programs.pop(number, None)

    def _find_period(self) -> None:
        """Find a period in a stretch without boundaries, such as a loop of plain arithmetic. A trace begins where the
        repetition began, as it will the next time. The first repetition is not used: its inputs may have other lifetimes."""
        self.probed = len(self.stretch)
        places = op_places(list(map(number_of, self.stretch)))
        ops = [self.stretch[i] for i in places]
        tokens = list(map(number_of, ops))
        n = len(tokens)
        if n < 2 * SHORTEST:
            return
        for period in periods(tokens):
            times = max(1, -(-UNROLL // period))
            length = period * times
            began = begin(tokens, period)
            behind = (n - began - 1) % period + 1  # ops of the current period; values of earlier periods are freed by now
            first, middle, end = (n - behind - k * length for k in (2, 1, 0))
            if length < SHORTEST or first < began + period:
                continue
            if not self.plain.issuperset(tokens[first:]) and len(self._traceable(ops[first:])[1]) < n - first:
                return
            before, now = self.stretch[places[first] : places[middle]], self.stretch[places[middle] : places[end]]
            if self._learn(Window.of(before), Window.of(now)):
                self.seen[tuple(tokens[middle:end])] = [before]
            self._begin_stretch()
            self.ahead = -behind % period
            return

    def _begin_stretch(self) -> None:
        self.stretch, self.stretch_tokens, self.probed = [], [], 0

    def reset(self) -> None:
        """Forget all traces, when their kinds are forgotten."""
        for known in (self.traces, self.forms, self.seen, self.plain, self.programs, self.questions, self.repeats):
            known.clear()
        self.early.reset()
        self._begin_stretch()
        self.ahead, self.fresh, self.ending = -1, False, False

    def take(self) -> tuple[tuple[TraceDef, ...], tuple[int, ...]]:
        """Definitions for the next batch, and numbers that will not be called again."""
        defined = tuple(map(write, self.defined))
        self.defined.clear()
        dropped, self.dropped = tuple(self.dropped), []
        return defined, dropped

    def stats(self) -> dict[str, Any]:
        return {
            "traces_found": self.found,
            "trace_hits": self.hits,
            "instructions_saved": self.saved,
            **self.early.stats(),
            "trace_misses": dict(self.misses),
            "trace_miss_lines": {why: origin for why, origin in self.lines.items() if origin is not None},
        }
