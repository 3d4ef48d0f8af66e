"""Finding and replaying repeats. A stretch of the stream that comes again is sent once as a trace and then called by one
instruction. While a stretch is being matched its instructions are held back; where it turns out otherwise they are sent as
they were, so replay can change the cost of a program and never its result."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable
from itertools import chain
from operator import itemgetter
from typing import Any

from gt.ops.table import Kind
from gt.spec import Spec
from gt.transport.messages import FREE, Instruction, TraceDef

MARK = -1  # the pseudo-instruction (MARK,): a natural boundary, never sent
SHORTEST = 5
LONGEST = 1 << 14
UNROLL = 128  # a short period is repeated to at least this many ops, so that a call is worth its message
KNOWN = 128  # traces kept
SEEN = 512  # stretches remembered, in the hope that they come again

_number = itemgetter(0)


class Window:
    """Ops of the stream, and the ids freed between the first of them and the next op behind them."""

    __slots__ = ("ops", "freed")

    def __init__(self, ops: list[Instruction], freed: set[int]) -> None:
        self.ops, self.freed = ops, freed

    @property
    def tokens(self) -> list[int]:
        return list(map(_number, self.ops))  # type: ignore[arg-type]


def _pick(positions: list[int]) -> Callable[[Any], tuple]:
    """The items at these positions, as a tuple, at the speed of C."""
    if not positions:
        return lambda items: ()
    if len(positions) == 1:
        at = positions[0]
        return lambda items: (items[at],)
    return itemgetter(*positions)


class Shape:
    """The topology of a stretch of ops: which of its numbers are results, which refer to results of its own, which to
    tensors from before, and which are plain numbers. Positions count through all instructions, laid end to end."""

    def __init__(self, window: Window, kinds: dict[int, Kind]) -> None:
        outs: list[int] = []  # positions of results
        refs: list[int] = []  # positions of operands made inside, and which result each is
        ref_of: list[int] = []
        first: list[int] = []  # position of the first mention of each input
        again: list[int] = []  # further mentions, and of which input
        again_of: list[int] = []
        numbers: list[int] = []
        made: dict[int, int] = {}
        inputs: dict[int, int] = {}
        at = 0
        for ins in window.ops:
            kind = kinds[ins[0]]  # type: ignore[index]
            n = len(kind.outs)
            for i, spec in enumerate(kind.ins):
                position, value = at + 1 + n + i, ins[1 + n + i]
                if type(spec) is not Spec:
                    numbers.append(position)
                elif value in made:
                    refs.append(position)
                    ref_of.append(made[value])  # type: ignore[index]
                elif value in inputs:
                    again.append(position)
                    again_of.append(inputs[value])  # type: ignore[index]
                else:
                    inputs[value] = len(first)  # type: ignore[index]
                    first.append(position)
            for i in range(n):
                made[ins[1 + i]] = len(outs)  # type: ignore[index]
                outs.append(at + 1 + i)
            at += len(ins)
        self.number_positions = numbers
        self.signature = (outs, refs, ref_of, first, again, again_of, numbers)
        self.outs, self.refs, self.firsts, self.again = _pick(outs), _pick(refs), _pick(first), _pick(again)
        self.ref_of, self.again_of = _pick(ref_of), _pick(again_of)
        self.numbers = _pick(numbers)

    def bind(self, flat: list) -> tuple[tuple, tuple] | None:
        """Results and inputs of another stretch of the same kinds, if its topology is this one."""
        outs, inputs = self.outs(flat), self.firsts(flat)
        if self.refs(flat) != self.ref_of(outs) or self.again(flat) != self.again_of(inputs):
            return None
        if len(set(inputs)) != len(inputs) or not set(outs).isdisjoint(inputs):
            return None
        return outs, inputs


class Trace:
    """A stretch that is known to come again: its topology, which numbers stay and which are given with each call (`holes`),
    which results are wanted afterwards (`live`) and which inputs end in it (`dies`)."""

    def __init__(self, number: int, window: Window, shape: Shape, holes: list[int], live: list[int], dies: list[int]) -> None:
        self.number, self.tokens, self.shape = number, window.tokens, shape
        self.length = len(self.tokens)
        flat = list(chain.from_iterable(window.ops))
        self.hole_positions = holes
        fixed = [p for p in shape.number_positions if p not in set(holes)]
        self.fixed, self.holes = _pick(fixed), _pick(holes)
        self.values = self.fixed(flat)
        count = len(shape.outs(flat))
        self.live_results, self.dies_inputs = live, dies
        self.live, self.dies = _pick(live), _pick(dies)
        alive = set(live)
        self.dead = _pick([i for i in range(count) if i not in alive])
        self.calls = self.misses = 0

    def worth(self) -> int:
        """How much there is to gain: its length, unless it is more often begun than completed."""
        return self.length if self.misses <= self.calls + 4 else 0

    def call(self, window: Window) -> tuple[Instruction | None, set[int], str]:
        """The instruction that stands for this stretch and the ids still to be freed; or None, and why not."""
        flat = list(chain.from_iterable(window.ops))
        bound = self.shape.bind(flat)
        if bound is None:
            return None, set(), "another topology"
        if self.fixed(flat) != self.values:
            return None, set(), "a number changed"
        outs, inputs = bound
        dead, dies = self.dead(outs), self.dies(inputs)
        if not window.freed.issuperset(dead):
            return None, set(), "a result was kept alive"
        if not window.freed.issuperset(dies):
            return None, set(), "an input was kept alive"
        self.calls += 1
        rest = window.freed.difference(dead, dies)
        return (self.number, *self.live(outs), *inputs, *self.holes(flat)), rest, ""


def define(number: int, kinds: dict[int, Kind], before: Window, now: Window, holes: set[int] = frozenset()) -> Trace | None:  # type: ignore[assignment]
    """A trace that both stretches are calls of, or None where their topologies differ."""
    shape = Shape(now, kinds)
    old, new = (list(chain.from_iterable(w.ops)) for w in (before, now))
    bound, bound_before = shape.bind(new), shape.bind(old)
    if bound is None or bound_before is None:
        return None
    differing = {p for p in shape.number_positions if old[p] != new[p]} | holes
    dead = [all(o in w.freed for o, w in ((a, now), (b, before))) for a, b in zip(bound[0], bound_before[0])]
    dies = [i for i, (a, b) in enumerate(zip(bound[1], bound_before[1])) if a in now.freed and b in before.freed]
    live = [i for i, gone in enumerate(dead) if not gone]
    return Trace(number, now, shape, sorted(differing), live, dies)


def definition(trace: Trace, window: Window, kinds: dict[int, Kind]) -> TraceDef:
    """The trace as it is sent: a body over registers, inputs first, each freed behind its last use."""
    flat = list(chain.from_iterable(window.ops))
    outs, inputs = trace.shape.outs(flat), trace.shape.firsts(flat)
    register = {id: i + 1 for i, id in enumerate((*inputs, *outs))}
    alive = {register[outs[i]] for i in trace.live_results}
    alive |= {register[id] for i, id in enumerate(inputs) if i not in set(trace.dies_inputs)}
    body: list[Instruction] = []
    last: dict[int, int] = {}  # register -> index in body of its last mention
    holes, hole_at = [], set(trace.hole_positions)
    at = 0
    for ins in window.ops:
        kind = kinds[ins[0]]  # type: ignore[index]
        n = len(kind.outs)
        row: list[Any] = [ins[0], *(register[o] for o in ins[1 : 1 + n])]  # type: ignore[index]
        for i, spec in enumerate(kind.ins):
            value = ins[1 + n + i]
            row.append(register[value] if type(spec) is Spec else value)  # type: ignore[index]
            if at + 1 + n + i in hole_at:
                holes.append((len(body), 1 + n + i))
        for r in (*row[1 : 1 + n], *(row[1 + n + i] for i in kind.tensors)):
            last[r] = len(body)
        body.append(tuple(row))
        at += len(ins)
    return TraceDef(
        trace.number,
        len(inputs),
        _with_frees(body, last, alive, holes),
        tuple(register[outs[i]] for i in trace.live_results),
        tuple(holes),
        tuple(trace.dies_inputs),
    )


def _with_frees(body: list, last: dict[int, int], alive: set[int], holes: list) -> list[Instruction]:
    """The body with each register freed behind its last mention; the holes' indices move along."""
    ends: dict[int, list[int]] = {}
    for register, index in last.items():
        if register not in alive:
            ends.setdefault(index, []).append(register)
    out: list[Instruction] = []
    moved: dict[int, int] = {}
    for i, row in enumerate(body):
        moved[i] = len(out)
        out.append(row)
        out.extend((FREE, r) for r in ends.get(i, ()))
    holes[:] = [(moved[i], p) for i, p in holes]
    return out


class Tracer:
    """Stands between the buffer and the wire: `fold` takes instructions and gives those to be sent."""

    def __init__(self, number: Callable[[], int], kinds: dict[int, Kind]) -> None:
        self.number, self.kinds = number, kinds
        self.ops: list[Instruction] = []  # taken, not yet decided on
        self.free_ids: list[int] = []  # frees among them, and how many of `ops` come before each
        self.free_after: list[int] = []
        self.frees_done = 0  # how many of those have been decided on
        self.marks: list[int] = []
        self.stretch: list[Instruction] = []  # sent since the last boundary, and freed since
        self.stretch_freed: set[int] = set()
        self.fresh = True  # at a boundary, where a known trace may begin
        self.traces: OrderedDict[int, list[Trace]] = OrderedDict()  # by first token, the last used at the end
        self.seen: OrderedDict[tuple, list[Window]] = OrderedDict()
        self.defined: list[TraceDef] = []
        self.dropped: list[int] = []
        self.misses: Counter[str] = Counter()
        self.found = self.hits = self.saved = 0
        self.probed = 0  # length of the stretch when it was last searched for a period

    def fold(self, batch: list[Instruction], final: bool, mark: bool) -> list[Instruction]:
        """Instructions to send for these. `final`: nothing may be held back; `mark`: their end is a boundary."""
        ops, marks, after, freed = self.ops, self.marks, self.free_after, self.free_ids
        for ins in batch:
            number = ins[0]
            if number > 0:
                ops.append(ins)
            elif number == FREE:
                after.append(len(ops))
                freed.append(ins[1])  # type: ignore[arg-type]
            else:
                marks.append(len(ops))
        if mark:
            marks.append(len(ops))
        out: list[Instruction] = []
        self._shift(self._advance(out, final), out)
        return out

    def _advance(self, out: list[Instruction], final: bool) -> int:
        """Decide on as many ops as can be decided; how many those are."""
        at, n, passed = 0, len(self.ops), 0
        while at < n:
            if self.fresh:
                step = self._match(at, out, final)
                if step is None:
                    break  # a trace may be under way: hold the rest
                at += step
                if step:
                    continue
                self.fresh = False
            # A boundary counts once something stands behind it, so that the frees between belong to the stretch.
            while passed < len(self.marks) and self.marks[passed] <= at:
                passed += 1
            boundary = self.marks[passed] if passed < len(self.marks) else n
            met = passed < len(self.marks) and (boundary < n or final)
            self._send(at, boundary, out, met or final)
            at = boundary
            if met:
                self._close()
            elif len(self.stretch) - self.probed >= UNROLL:
                self._find_period()
        return at

    def _shift(self, taken: int, out: list[Instruction]) -> None:
        """Drop what was decided on. Frees behind the last op go out too, unless they belong to what is held."""
        done = self.frees_done
        if taken == len(self.ops):
            rest = self.free_ids[done:]
            out.extend((FREE, id) for id in rest)
            self.stretch_freed.update(rest)
            for pending in (self.ops, self.free_after, self.free_ids, self.marks):
                pending.clear()
        else:
            del self.ops[:taken], self.free_ids[:done]
            self.free_after = [k - taken for k in self.free_after[done:]]
            self.marks = [m - taken for m in self.marks if m > taken]
        self.frees_done = 0

    def _send(self, start: int, end: int, out: list[Instruction], through: bool) -> None:
        """Ops as they are, with the frees between them; with `through`, also those right behind the last."""
        at, done = start, self.frees_done
        stop = (bisect_right if through else bisect_left)(self.free_after, end, done)
        for k, id in zip(self.free_after[done:stop], self.free_ids[done:stop]):
            if k > at:
                out.extend(self.ops[at:k])
                at = k
            out.append((FREE, id))
        self.stretch_freed.update(self.free_ids[done:stop])
        self.frees_done = stop
        out.extend(self.ops[at:end])
        self.stretch.extend(self.ops[start:end])
        if len(self.stretch) > LONGEST:
            self.stretch, self.stretch_freed, self.probed = [], set(), 0

    # Replaying

    def _match(self, at: int, out: list[Instruction], final: bool) -> int | None:
        """Ops covered by a call that starts here; 0 where no trace does, None where more must come first."""
        ops = self.ops
        candidates = self.traces.get(ops[at][0])  # type: ignore[arg-type]
        if not candidates:
            return 0
        longest = max(t.length for t in candidates)
        tokens = list(map(_number, ops[at : at + longest + 1]))
        have, why = len(tokens), ""
        for trace in sorted(candidates, key=Trace.worth, reverse=True):
            n = trace.length
            if have < n or (have == n and not final):
                if tokens != trace.tokens[:have]:
                    why = why or "diverged"
                elif final:
                    why = why or "a value was read"
                elif trace.worth() > 0:
                    return None
            elif tokens[:n] == trace.tokens:
                first = bisect_right(self.free_after, at, self.frees_done)
                last = bisect_right(self.free_after, at + n, first)
                window = Window(ops[at : at + n], set(self.free_ids[first:last]))
                call, rest, refused = trace.call(window)
                if call is not None:
                    out.extend((FREE, id) for id in self.free_ids[self.frees_done : first])
                    self.frees_done = last
                    return self._replay(trace, call, rest, out)
                why = why or refused
                self._revise(trace, window, refused)
            else:
                why = why or "diverged"
            trace.misses += 1
        self.misses[why] += 1
        return 0

    def _replay(self, trace: Trace, call: Instruction, rest: set[int], out: list) -> int:
        out.append(call)
        out.extend((FREE, id) for id in rest)
        self.hits += 1
        self.saved += trace.length - 1
        self.traces.move_to_end(trace.tokens[0])
        self.stretch, self.stretch_freed, self.probed = [], set(), 0
        return trace.length

    def _revise(self, trace: Trace, window: Window, why: str) -> None:
        """A trace that fits but for a number or a lifetime gets a sibling that fits this stretch too."""
        if why == "another topology" or trace.calls > 1 << 20:
            return
        for before in reversed(self.seen.get(tuple(trace.tokens), [])):
            if self._learn(before, window, set(trace.hole_positions)):
                return

    # Finding

    def _close(self) -> None:
        """A boundary was reached: if this stretch has been seen before, it becomes a trace."""
        window = Window(self.stretch, self.stretch_freed)
        self.stretch, self.stretch_freed, self.probed = [], set(), 0
        self.fresh = True
        if not SHORTEST <= len(window.ops) <= LONGEST or not all(t in self.kinds for t in window.tokens):
            return  # too little, too much, or with calls of traces in it
        key = tuple(window.tokens)
        alike = self.seen.pop(key, [])
        for before in reversed(alike):  # the same kinds may come in several topologies
            if self._learn(before, window):
                break
        self.seen[key] = [*alike[-3:], window]
        while len(self.seen) > SEEN:
            self.seen.popitem(last=False)

    def _learn(self, before: Window, now: Window, holes: set[int] = frozenset()) -> bool:  # type: ignore[assignment]
        """Make a trace of two stretches; whether they are calls of one."""
        trace = define(self.number(), self.kinds, before, now, holes)
        if trace is None:
            return False
        same = self.traces.setdefault(trace.tokens[0], [])
        if any(_equal(trace, t) for t in same):
            return True
        self.defined.append(definition(trace, now, self.kinds))
        same.append(trace)
        self.found += 1
        if len(same) > 16:
            self.dropped.append(same.pop(0).number)
        while sum(map(len, self.traces.values())) > KNOWN:
            _, oldest = self.traces.popitem(last=False)
            self.dropped += [t.number for t in oldest]
        return True

    def _find_period(self) -> None:
        """A stretch without boundaries that repeats itself, such as a loop of plain arithmetic."""
        self.probed = len(self.stretch)
        tokens = list(map(_number, self.stretch))
        n = len(tokens)
        for period in _periods(tokens):
            times = max(1, -(-UNROLL // period))
            length = period * times
            if length < SHORTEST or 2 * length > n or tokens[n - length :] != tokens[n - 2 * length : n - length]:
                continue
            now, before = self.stretch[n - length :], self.stretch[n - 2 * length : n - length]
            # The last results are still in use by the op to come; only what both halves freed is taken for dead.
            self._learn(Window(before, self.stretch_freed), Window(now, self.stretch_freed))
            self.stretch, self.stretch_freed, self.probed = [], set(), 0
            self.fresh = True
            return

    def held(self) -> bool:
        return bool(self.ops)

    def reset(self) -> None:
        """Forget all traces, as their kinds are forgotten."""
        self.traces.clear()
        self.seen.clear()
        self.stretch, self.stretch_freed, self.probed, self.fresh = [], set(), 0, False

    def take(self) -> tuple[tuple[TraceDef, ...], tuple[int, ...]]:
        """Definitions to send with the next batch, and numbers that will not be called again."""
        defined, self.defined = tuple(self.defined), []
        dropped, self.dropped = tuple(self.dropped), []
        return defined, dropped

    def stats(self) -> dict[str, Any]:
        return {
            "traces_found": self.found,
            "trace_hits": self.hits,
            "instructions_saved": self.saved,
            "trace_misses": dict(self.misses),
        }


def _equal(a: Trace, b: Trace) -> bool:
    return (
        a.tokens == b.tokens
        and a.hole_positions == b.hole_positions
        and a.live_results == b.live_results
        and a.dies_inputs == b.dies_inputs
        and a.values == b.values
        and a.shape.signature == b.shape.signature
    )


def _periods(tokens: list) -> list[int]:
    """Distances at which the last token stood before, nearest first; a few are enough."""
    found, last, at = [], tokens[-1], len(tokens) - 1
    for i in range(at - 1, max(-1, at - 1 - len(tokens) // 2), -1):
        if tokens[i] == last:
            found.append(at - i)
            if len(found) == 24:
                break
    return found
