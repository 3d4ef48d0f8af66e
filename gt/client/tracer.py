"""The tracer stands between the client's buffer and the wire. A stretch of the stream that comes again is sent once as a trace
and then called by one instruction. While a stretch is being matched its instructions are held back; where it turns out
otherwise they are sent as they were, so replay can change the cost of a program and never its result."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from gt.client.early import Early
from gt.client.traces import Raw, Trace, Window, blame, define, equal, program_of
from gt.ops.table import Kind
from gt.program import Program
from gt.program.code import free, frees, is_client_kind, next_op, number_of, op_numbers, op_places
from gt.program.foreach import ForeachKind
from gt.program.wire import TraceDef, write

MARK = -1  # the pseudo-instruction (MARK,): a natural boundary, never sent
SHORTEST = 5
LONGEST = 1 << 14
UNROLL = 128  # a short period is repeated to at least this many ops, so that a call is worth its message
KNOWN = 128  # traces kept
SEEN = 512  # stretches remembered, in the hope that they come again
FORMS = 8  # ways in which one trace comes, remembered
TRIES = 64  # ways tried; past it the trace's frees come anywhere, and are looked at each time


class Tracer:
    """Stands between the buffer and the wire: `fold` takes instructions and gives the ones to send. Frees and marks stay among
    the ops as they came; where they stand matters only to the quick way of recognising a trace."""

    def __init__(self, number: Callable[[], int], kinds: dict[int, Kind], lists: dict[int, ForeachKind] | None = None) -> None:
        self.number, self.kinds, self.lists = number, kinds, lists if lists is not None else {}
        self.pieces: list[tuple] = []  # held back: the beginning of a possible trace
        self.tokens: list[int] = []  # the first number of each
        self.stretch: list[tuple] = []  # sent since the last boundary
        self.fresh = True  # at a boundary, where a known trace may begin
        self.ending = False  # behind a boundary, where the frees of what was before it come
        self.traces: OrderedDict[int, list[Trace]] = OrderedDict()  # by first token, the last used at the end
        self.forms: dict[int, list[Raw]] = {}  # by first token, the longest first
        self.seen: OrderedDict[tuple, list[list[tuple]]] = OrderedDict()  # stretches, by the tokens of their ops
        self.plain: set[int] = set()  # tokens of ops that may be part of a trace
        self.defined: list[Program] = []
        self.programs: dict[int, Program] = {}  # by number, all that can be called
        self.dropped: list[int] = []
        self.compiled: set[str] = set()  # signals whose ops are to be compiled
        self.misses: Counter[str] = Counter()
        self.lines: dict[str, Any] = {}  # by reason, the line of an op that was not as in the trace
        self.asked_for: Callable[[int], Any] = lambda result: None  # the session gives the real one
        self.line: Callable[[int], str] = lambda result: ""  # the user's line that asked for a result, in short
        self.found = self.hits = self.saved = 0
        self.early = Early(number, kinds, self.programs, self._send_program)
        self.probed = 0  # length of the stretch when it was last searched for a period
        self.ahead = -1  # ops until a period begins anew, where one was found

    def fold(self, batch: list[tuple], final: bool, mark: bool) -> list[tuple]:
        """Instructions to send for these. `final`: nothing may be held back; `mark`: their end is a boundary."""
        out: list[tuple] = []
        pieces, tokens = self.pieces, self.tokens
        pieces += batch
        tokens += map(number_of, batch)
        if mark:
            pieces.append((MARK,))
            tokens.append(MARK)
        at, n = 0, len(pieces)
        while at < n:
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
        if final and self.ending:
            self._close()
        del pieces[:at], tokens[:at]
        if self.early.begins:
            self.early.follow(out, end=True)
        if mark:
            self.early.read()
        return out

    def _between(self, at: int, out: list[tuple]) -> int:
        """Frees and marks between two stretches. Those behind a boundary belong to the stretch before it, which is complete
        when an op stands behind them."""
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
        """Send instructions that are no trace, up to the next boundary."""
        try:
            end = self.tokens.index(MARK, at)
            self.ending = True
        except ValueError:
            end = len(self.tokens)
        sent = self.pieces[at:end]
        out += sent
        self.stretch += sent
        if self.ending:
            return end + 1
        if len(self.stretch) > 2 * LONGEST:
            self.stretch, self.probed = [], 0
        elif len(self.stretch) - self.probed >= UNROLL:
            self._find_period()
        return end

    def _lead(self, at: int, out: list[tuple]) -> int:
        """Send the ops that are left of a period, and their frees, as they are: a trace may begin behind them."""
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
        """The end of the call that starts here; `at` where no trace does, None where more must come first."""
        pieces, tokens = self.pieces, self.tokens
        n = len(pieces)
        for form in self.forms.get(tokens[at], ()):
            end = at + form.length
            if end < n or (end == n and final):
                if tokens[at:end] == form.tokens and (end == n or is_client_kind(tokens[end])):
                    found = form.call(pieces[at:end])
                    if found is not None:
                        return self._replay(form.trace, found[0], found[1], out, at, end)
            elif not final and tokens[at:] == form.tokens[: n - at]:
                return None  # it may end here, or frees may follow
        candidates = self.traces.get(tokens[at])
        return self._search(at, candidates, out, final) if candidates else at

    def _search(self, at: int, candidates: list[Trace], out: list[tuple], final: bool) -> int | None:
        """As `_match`, wherever the frees stand."""
        longest = max(t.length for t in candidates)
        places = op_places(self.tokens, at)[: longest + 1]
        tokens = [self.tokens[i] for i in places]
        have, why, refusal = len(tokens), "", None
        for trace in sorted(candidates, key=Trace.worth, reverse=True):
            n = trace.length
            if have < n or (have == n and not final):
                if tokens != trace.tokens[:have]:
                    why = why or "diverged"
                elif final:
                    why = why or "a value was read"
                    continue  # it may yet keep its promise; that it was cut short is not its fault
                elif trace.worth() > 0:
                    return None
                else:
                    why = why or "too often broken off"
            elif tokens[:n] == trace.tokens:
                end = places[n] if have > n else len(self.pieces)
                window = Window.of(self.pieces[at:end])
                call, rest, refused = trace.call(window)
                if call is not None:
                    self._remember(trace, self.pieces[at:end])
                    self.traces.move_to_end(trace.tokens[0])
                    return self._replay(trace, call, rest, out, at, end)
                if not why:
                    why, refusal = refused, (trace, window, refused)
                self._revise(trace, window, refused)
            else:
                why = why or "diverged"
            trace.misses += 1
        times = self.misses[why] = self.misses[why] + 1
        if times & (times - 1) == 0:  # the first, second, fourth, ...: to look for the line each time would cost
            result = blame(*refusal) if refusal else 0
            self.lines[why] = self.asked_for(result or self._left(places, tokens, candidates))
        return at

    def _left(self, places: list[int], tokens: list[int], candidates: list[Trace]) -> int:
        """The result of the op where the last of the candidates to be left was left."""
        common = 0
        for trace in candidates:
            pairs = zip(tokens, trace.tokens)
            common = max(common, next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(tokens), trace.length)))
        return int(self.pieces[places[min(common, len(places) - 1)]][1])

    def _replay(self, trace: Trace, call: tuple, freed: Any, out: list[tuple], at: int, end: int) -> int:
        if not self.early.reached(trace, call, self.pieces[at:end], freed, out):
            out.append(call)
            out += map(free, freed)
        trace.calls += 1
        self.hits += 1
        self.saved += trace.size - 1
        if self.stretch:
            self.stretch, self.probed = [], 0
        return end

    def _remember(self, trace: Trace, pieces: list[tuple]) -> None:
        """This way in which a trace came, so that the next time is recognised at once."""
        trace.tries += 1
        if trace.tries > TRIES:
            return
        forms = self.forms.setdefault(trace.tokens[0], [])
        own = [f for f in forms if f.trace is trace]
        if len(own) >= FORMS:
            forms.remove(own[0])
        forms.append(Raw(trace, pieces, self.kinds))
        forms.sort(key=lambda form: form.length, reverse=True)

    def _revise(self, trace: Trace, window: Window, why: str) -> None:
        """A trace that fits but for a number or a lifetime gets a sibling that fits this stretch too."""
        if why == "another topology" or trace.calls > 1 << 20:
            return
        holes = {p: None for places in trace.hole_positions for p in places}
        for before in reversed(self.seen.get(tuple(trace.tokens), [])):
            if self._learn(Window.of(before), window, holes):
                return

    # Finding

    def _close(self) -> None:
        """A boundary was reached: if this stretch has been seen before, it becomes a trace."""
        stretch = self.stretch
        self.stretch, self.probed, self.fresh, self.ending = [], 0, True, False
        tokens = op_numbers(map(number_of, stretch))
        if self.size(tokens) < SHORTEST:
            return
        if not self.plain.issuperset(tokens):
            stretch, tokens = self._traceable(stretch)
        if not SHORTEST <= self.size(tokens) <= LONGEST:
            return
        key = tuple(tokens)
        alike = self.seen.pop(key, None)
        if alike is None:
            self.seen[key] = [stretch]
            if len(self.seen) > SEEN:
                self.seen.popitem(last=False)
            return
        for before in reversed(alike):  # the same kinds may come in several topologies
            if self._learn(Window.of(before), Window.of(stretch)):
                break
        self.seen[key] = [*alike[-3:], stretch]

    def size(self, tokens: list[int]) -> int:
        """The number of ops; an op on lists counts for each item."""
        lists = self.lists
        if not lists or lists.keys().isdisjoint(tokens):
            return len(tokens)
        return len(tokens) + sum([len(lists[t].kinds) - 1 for t in tokens if t in lists])

    def _traceable(self, stretch: list[tuple]) -> tuple[list[tuple], list[int]]:
        """What follows the last load of a stretch, and the tokens of its ops; nothing where it calls traces."""
        kinds = self.kinds
        self.plain.update(t for t in {ins[0] for ins in stretch} if t in kinds and kinds[t].row.kernel is not None)
        loads = [i for i, ins in enumerate(stretch) if ins[0] in kinds and ins[0] not in self.plain]
        rest = stretch[loads[-1] + 1 :] if loads else stretch
        tokens = op_numbers(map(number_of, rest))
        return (rest, tokens) if self.plain.issuperset(tokens) else ([], [])

    def _learn(self, before: Window, now: Window, holes: Mapping[int, Any] = MappingProxyType({})) -> bool:
        """Make a trace of two stretches; whether they are calls of one."""
        trace = define(self.number(), self.kinds, before, now, holes)
        if trace is None:
            return False
        same = self.traces.setdefault(trace.tokens[0], [])
        if any(equal(trace, t) for t in same):
            return True
        trace.size = self.size(trace.tokens)
        self.define(trace)
        same.append(trace)
        self.found += 1
        if len(same) > 16:
            self._drop([same.pop(0)])
        while sum(map(len, self.traces.values())) > KNOWN:
            self._drop(self.traces.popitem(last=False)[1])
        return True

    def _drop(self, traces: list[Trace]) -> None:
        """Let go of traces with the same first token."""
        self.drop(*(t.number for t in traces))
        first = traces[0].tokens[0]
        left = [form for form in self.forms.pop(first, ()) if form.trace not in traces]
        if left:
            self.forms[first] = left

    def define(self, trace: Trace) -> None:
        """Have a trace's program sent with the next batch."""
        self._send_program(program_of(trace, self.compiled, self.line))

    def _send_program(self, program: Program) -> None:
        self.defined.append(program)
        self.programs[program.number] = program

    def drop(self, *numbers: int) -> None:
        """Programs that will not be called again."""
        numbers = (*numbers, *self.early.drop(numbers))
        self.dropped += numbers
        for number in numbers:
            self.programs.pop(number, None)

    def _find_period(self) -> None:
        """A stretch without boundaries that repeats itself, such as a loop of plain arithmetic. A trace begins where the
        repetition began, as it will the next time. The first time round is no example: its inputs may live on."""
        self.probed = len(self.stretch)
        places = op_places(list(map(number_of, self.stretch)))
        ops = [self.stretch[i] for i in places]
        tokens = list(map(number_of, ops))
        n = len(tokens)
        if n < 2 * SHORTEST:
            return
        for period in _periods(tokens):
            times = max(1, -(-UNROLL // period))
            length = period * times
            begin = _begin(tokens, period)
            behind = (n - begin - 1) % period + 1  # ops of the period under way; what comes before it is freed by now
            first, middle, end = (n - behind - k * length for k in (2, 1, 0))
            if length < SHORTEST or first < begin + period:
                continue
            if not self.plain.issuperset(tokens[first:]) and len(self._traceable(ops[first:])[1]) < n - first:
                return
            before, now = self.stretch[places[first] : places[middle]], self.stretch[places[middle] : places[end]]
            if self._learn(Window.of(before), Window.of(now)):
                self.seen[tuple(tokens[middle:end])] = [before]
            self.stretch, self.probed, self.ahead = [], 0, -behind % period
            return

    def held(self) -> int:
        """How many instructions are held back."""
        return len(self.pieces)

    def reset(self) -> None:
        """Forget all traces, as their kinds are forgotten."""
        for known in (self.traces, self.forms, self.seen, self.plain, self.programs):
            known.clear()
        self.early.reset()
        self.stretch, self.probed, self.ahead, self.fresh, self.ending = [], 0, -1, False, False

    def take(self) -> tuple[tuple[TraceDef, ...], tuple[int, ...]]:
        """Definitions to send with the next batch, and numbers that will not be called again."""
        defined, self.defined = tuple(map(write, self.defined)), []
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


def _begin(tokens: list, period: int) -> int:
    """Where the repetition that ends with these tokens begins."""
    at = len(tokens) - period - 1
    while at >= 0 and tokens[at] == tokens[at + period]:
        at -= 1
    return at + 1


def _periods(tokens: list) -> list[int]:
    """Distances at which the last token stood before, nearest first; a few are enough."""
    found, last, at = [], tokens[-1], len(tokens) - 1
    for i in range(at - 1, max(-1, at - 1 - len(tokens) // 2), -1):
        if tokens[i] == last:
            found.append(at - i)
            if len(found) == 24:
                break
    return found
