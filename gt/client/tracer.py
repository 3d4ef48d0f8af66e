"""The tracer stands between the client's buffer and the wire. A stretch of the stream that comes again is sent once as a trace
and then called by one instruction. While a stretch is being matched its instructions are held back; where it turns out
otherwise they are sent as they were, so replay can change the cost of a program and never its result."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from gt.client.traces import Raw, Trace, Window, blame, define, definition, equal
from gt.ops.table import Kind
from gt.transport.messages import FREE, Instruction, TraceDef

MARK = -1  # the pseudo-instruction (MARK,): a natural boundary, never sent
SHORTEST = 5
LONGEST = 1 << 14
UNROLL = 128  # a short period is repeated to at least this many ops, so that a call is worth its message
KNOWN = 128  # traces kept
SEEN = 512  # stretches remembered, in the hope that they come again


_number = itemgetter(0)


class Tracer:
    """Stands between the buffer and the wire: `fold` takes instructions and gives those to be sent."""

    def __init__(self, number: Callable[[], int], kinds: dict[int, Kind]) -> None:
        self.number, self.kinds = number, kinds
        self.held_raw: list[Instruction] = []  # the beginning of what may be a trace, as it came
        self.ops: list[Instruction] = []  # those being looked at
        self.free_ids: list[int] = []  # frees among them, and how many of `ops` come before each
        self.free_after: list[int] = []
        self.frees_done = 0  # how many of those have been decided on
        self.marks: list[int] = []
        self.stretch: list[Instruction] = []  # sent since the last boundary, and freed since
        self.stretch_freed: set[int] = set()
        self.fresh = True  # at a boundary, where a known trace may begin
        self.ending = False  # at a boundary whose frees may still come
        self.traces: OrderedDict[int, list[Trace]] = OrderedDict()  # by first token, the last used at the end
        self.seen: OrderedDict[tuple, list[Window]] = OrderedDict()
        self.defined: list[TraceDef] = []
        self.dropped: list[int] = []
        self.compiled: set[str] = set()  # signals whose ops are to be compiled
        self.misses: Counter[str] = Counter()
        self.lines: dict[str, Any] = {}  # by reason, the line of an op that was not as in the trace
        self.asked_for: Callable[[int], Any] = lambda result: None  # the session gives the real one
        self.found = self.hits = self.saved = 0
        self.probed = 0  # length of the stretch when it was last searched for a period
        self.likely: dict[int, Trace] = {}  # the trace last called, by its first token

    def fold(self, batch: list[Instruction], final: bool, mark: bool) -> list[Instruction]:
        """Instructions to send for these. `final`: nothing may be held back; `mark`: their end is a boundary."""
        out: list[Instruction] = []
        if self.ending:
            batch = self._end(batch, final, out)
        if self.held_raw:
            batch, self.held_raw = self.held_raw + batch, []
        if self.fresh and self.likely:
            batch = self._quick(batch, final, out)
            if not batch:
                return out
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
        taken = self._advance(out, final)
        if taken == len(ops):
            rest = freed[self.frees_done :]
            out.extend((FREE, id) for id in rest)
            self.stretch_freed.update(rest)
            self.ending = self.ending or bool(marks) and marks[-1] == taken and not self.fresh
        else:  # a trace may be under way: hold the rest as it came
            places = [k for k, ins in enumerate(batch) if ins[0] > 0] if taken else [0]
            self.held_raw = batch[places[taken] :]
        for pending in (ops, after, freed, marks):
            pending.clear()
        self.frees_done = 0
        return out

    def _end(self, batch: list[Instruction], final: bool, out: list[Instruction]) -> list[Instruction]:
        """A batch ended at a boundary: what was freed since belongs to the stretch before it. Gives the rest."""
        first = next((i for i, ins in enumerate(batch) if ins[0] > 0), len(batch))
        if first == len(batch) and not final:
            return batch
        freed = [ins for ins in batch[:first] if ins[0] == FREE]
        out.extend(freed)
        self.stretch_freed.update(ins[1] for ins in freed)  # type: ignore[misc]
        self.ending = False
        self._close()
        return batch[first:]

    def _quick(self, batch: list[Instruction], final: bool, out: list[Instruction]) -> list[Instruction]:
        """Replay what comes just as it came before; gives what has to be looked at closely."""
        tokens: list[Any] = [ins[0] for ins in batch]
        at, n = 0, len(batch)
        while at < n:
            trace = self.likely.get(tokens[at])
            if trace is None:
                break
            raw = trace.raw or self._form(trace, batch, tokens, at, final)
            if raw is None:
                break
            end = at + raw.length
            if end >= n and not final:
                if tokens[at:] == raw.tokens[: n - at]:
                    self.held_raw = batch[at:]  # it may end here, or frees may follow
                    return []
                break
            found = raw.call(batch[at:end]) if tokens[at:end] == raw.tokens and (end == n or tokens[end] > 0) else None
            if found is None:
                trace.raw = None
                break
            out.append(found[0])
            out.extend((FREE, id) for id in found[1])
            self._count(trace)
            at = end
        return batch[at:] if at else batch

    def _form(self, trace: Trace, batch: list, tokens: list, at: int, final: bool) -> Raw | None:
        """How a trace comes in practice, from the stretch that begins here, if that is a call of it."""
        places = [k for k in range(at, len(batch)) if tokens[k] > 0][: trace.length + 1]
        if [tokens[k] for k in places[: trace.length]] != trace.tokens or (len(places) <= trace.length and not final):
            return None
        trace.raw_tries += 1
        if trace.raw_tries > 16:  # its frees never come at the same places
            return None
        pieces = batch[at : places[trace.length] if len(places) > trace.length else len(batch)]
        ops = [ins for ins in pieces if ins[0] > 0]
        if trace.call(Window(ops, {ins[1] for ins in pieces if ins[0] == FREE}))[0] is None:
            return None
        trace.raw = Raw(trace, pieces, self.kinds)
        return trace.raw

    def _count(self, trace: Trace) -> None:
        trace.calls += 1
        self.hits += 1
        self.saved += trace.length - 1
        if self.stretch:
            self.stretch, self.stretch_freed, self.probed = [], set(), 0

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
                first = bisect_right(self.free_after, at, self.frees_done)
                last = bisect_right(self.free_after, at + n, first)
                window = Window(ops[at : at + n], set(self.free_ids[first:last]))
                call, rest, refused = trace.call(window)
                if call is not None:
                    out.extend((FREE, id) for id in self.free_ids[self.frees_done : first])
                    self.frees_done = last
                    return self._replay(trace, call, rest, out)
                if not why:
                    why, refusal = refused, (trace, window, refused)
                self._revise(trace, window, refused)
            else:
                why = why or "diverged"
            trace.misses += 1
        times = self.misses[why] = self.misses[why] + 1
        if times & (times - 1) == 0:  # the first, second, fourth, ...: to look for the line each time would cost
            result = blame(*refusal) if refusal else 0
            self.lines[why] = self.asked_for(result or self._left(at, tokens, candidates))
        return 0

    def _left(self, at: int, tokens: list, candidates: list[Trace]) -> int:
        """The result of the op where the last of the candidates to be left was left."""
        common = 0
        for trace in candidates:
            pairs = zip(tokens, trace.tokens)
            common = max(common, next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(tokens), trace.length)))
        return int(self.ops[min(at + common, len(self.ops) - 1)][1])

    def _replay(self, trace: Trace, call: Instruction, rest: set[int], out: list) -> int:
        out.append(call)
        out.extend((FREE, id) for id in rest)
        self._count(trace)
        self.traces.move_to_end(trace.tokens[0])
        self.likely[trace.tokens[0]] = trace
        return trace.length

    def _revise(self, trace: Trace, window: Window, why: str) -> None:
        """A trace that fits but for a number or a lifetime gets a sibling that fits this stretch too."""
        if why == "another topology" or trace.calls > 1 << 20:
            return
        for before in reversed(self.seen.get(tuple(trace.tokens), [])):
            if self._learn(before, window, {p for places in trace.hole_positions for p in places}):
                return

    # Finding

    def _close(self) -> None:
        """A boundary was reached: if this stretch has been seen before, it becomes a trace."""
        loads = [i for i, ins in enumerate(self.stretch) if self._loads(ins)]
        window = Window(self.stretch[loads[-1] + 1 :] if loads else self.stretch, self.stretch_freed)
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

    def _loads(self, ins: Instruction) -> bool:
        kind = self.kinds.get(ins[0])  # type: ignore[arg-type]
        return kind is not None and kind.row.kernel is None

    def _learn(self, before: Window, now: Window, holes: set[int] = frozenset()) -> bool:  # type: ignore[assignment]
        """Make a trace of two stretches; whether they are calls of one."""
        trace = define(self.number(), self.kinds, before, now, holes)
        if trace is None:
            return False
        same = self.traces.setdefault(trace.tokens[0], [])
        if any(equal(trace, t) for t in same):
            return True
        self.defined.append(definition(trace, now, self.kinds, self.compiled))
        same.append(trace)
        self.found += 1
        if len(same) > 16:
            self.dropped.append(same.pop(0).number)
            self.likely.pop(trace.tokens[0], None)
        while sum(map(len, self.traces.values())) > KNOWN:
            first, oldest = self.traces.popitem(last=False)
            self.likely.pop(first, None)
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

    def held(self) -> int:
        """How many instructions are held back."""
        return len(self.held_raw)

    def reset(self) -> None:
        """Forget all traces, as their kinds are forgotten."""
        self.traces.clear()
        self.likely.clear()
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
            "trace_miss_lines": {why: origin for why, origin in self.lines.items() if origin is not None},
        }


def _periods(tokens: list) -> list[int]:
    """Distances at which the last token stood before, nearest first; a few are enough."""
    found, last, at = [], tokens[-1], len(tokens) - 1
    for i in range(at - 1, max(-1, at - 1 - len(tokens) // 2), -1):
        if tokens[i] == last:
            found.append(at - i)
            if len(found) == 24:
                break
    return found
