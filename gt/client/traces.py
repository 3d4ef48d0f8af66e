"""What a trace is: the topology of a stretch of ops, how another stretch is recognised as the same, and how it is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from gt.client.native import NATIVE
from gt.ops.table import Kind
from gt.spec import Spec
from gt.transport.messages import FREE, Instruction, TraceDef

_number = itemgetter(0)
TOKEN, MADE, GIVEN, SAME, FIXED, HOLE, REST = range(7)  # what a number of an instruction is, to native.c


class Window:
    """Ops of the stream, and the ids freed between the first of them and the next op behind them."""

    __slots__ = ("ops", "freed")

    def __init__(self, ops: list[Instruction], freed: set[int]) -> None:
        self.ops, self.freed = ops, freed

    @classmethod
    def of(cls, pieces: list[Instruction]) -> Window:
        return cls([ins for ins in pieces if ins[0] > FREE], {ins[1] for ins in pieces if ins[0] == FREE})  # type: ignore[misc]

    @property
    def tokens(self) -> list[int]:
        return list(map(_number, self.ops))


def _pick(positions: list[int]) -> Callable[[Any], tuple]:
    """The items at these positions, as a tuple, at the speed of C."""
    if not positions:
        return lambda items: ()
    if len(positions) == 1:
        at = positions[0]
        return lambda items: (items[at],)
    return itemgetter(*positions)


class Topology:
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
        self.frees: list[tuple[int, int]] = []  # where an id is freed among the ops, and which
        at = 0
        for ins in window.ops:
            if ins[0] <= FREE:
                if ins[0] == FREE:
                    self.frees.append((at + 1, ins[1]))  # type: ignore[arg-type]
                at += len(ins)
                continue
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
    """A stretch that is known to come again: its topology, which numbers stay and which are given with each call (`holes`, the
    positions of numbers that change together in one), which results are wanted afterwards (`live`) and which inputs
    end in it (`dies`)."""

    def __init__(
        self, number: int, window: Window, shape: Topology, holes: list[list[int]], live: list[int], dies: list[int]
    ) -> None:
        self.number, self.tokens, self.shape = number, window.tokens, shape
        self.length = len(self.tokens)
        flat = list(chain.from_iterable(window.ops))
        self.hole_positions = holes
        open_ = {p for places in holes for p in places}
        fixed = [p for p in shape.number_positions if p not in open_]
        self.fixed, self.holes = _pick(fixed), _pick([places[0] for places in holes])
        self.same = _pick([p for places in holes for p in places[1:]])
        self.same_of = _pick([i for i, places in enumerate(holes) for _ in places[1:]])
        self.values = self.fixed(flat)
        count = len(shape.outs(flat))
        self.live_results, self.dies_inputs = live, dies
        self.live, self.dies = _pick(live), _pick(dies)
        alive = set(live)
        self.dead = _pick([i for i in range(count) if i not in alive])
        self.calls = self.misses = 0
        self.tries = 0  # how often the way in which it came was remembered

    def worth(self) -> int:
        """How much there is to gain: its length, unless it is more often begun than completed."""
        return self.length if self.misses <= self.calls + 4 else 0

    def call(self, window: Window) -> tuple[Instruction | None, set[int], str]:
        """The instruction that stands for this stretch and the ids still to be freed; or None, and why not."""
        flat = list(chain.from_iterable(window.ops))
        bound = self.shape.bind(flat)
        if bound is None:
            return None, set(), "another topology"
        numbers = self.holes(flat)
        if self.fixed(flat) != self.values or self.same(flat) != self.same_of(numbers):
            return None, set(), "a number changed"
        outs, inputs = bound
        dead, dies = self.dead(outs), self.dies(inputs)
        if not window.freed.issuperset(dead):
            return None, set(), "a result was kept alive"
        if not window.freed.issuperset(dies):
            return None, set(), "an input was kept alive"
        rest = window.freed.difference(dead, dies)
        return (self.number, *self.live(outs), *inputs, *numbers), rest, ""


def blame(trace: Trace, window: Window, why: str) -> int:
    """The result that stands for what differed in a stretch of a trace's kinds; 0 where that is no single one."""
    flat = list(chain.from_iterable(window.ops))
    outs, inputs = trace.shape.outs(flat), trace.shape.firsts(flat)
    if why == "a result was kept alive":
        return next(id for id in trace.dead(outs) if id not in window.freed)
    if why == "an input was kept alive":
        return next(id for id in trace.dies(inputs) if id not in window.freed)
    if why != "a number changed":
        return 0
    open_ = {p for places in trace.hole_positions for p in places}
    fixed = [p for p in trace.shape.number_positions if p not in open_]
    changed = next((p for p, old in zip(fixed, trace.values) if flat[p] != old), None)
    if changed is None:
        return 0
    for ins in window.ops:
        changed -= len(ins)
        if changed < 0:
            return int(ins[1])
    return 0  # numbers that were one have parted


def define(
    number: int, kinds: dict[int, Kind], before: Window, now: Window, holes: Mapping[int, Any] = MappingProxyType({})
) -> Trace | None:
    """A trace that both stretches are calls of, or None where their topologies differ. Numbers at `holes` are given with each
    call in any case; those with different labels there are given apart, though they may be equal now."""
    shape = Topology(now, kinds)
    old, new = (list(chain.from_iterable(w.ops)) for w in (before, now))
    bound, bound_before = shape.bind(new), shape.bind(old)
    if bound is None or bound_before is None:
        return None
    differing: dict[tuple, list[int]] = {}
    for p in shape.number_positions:
        if p in holes or old[p] != new[p]:
            differing.setdefault((type(new[p]), old[p], new[p], holes.get(p)), []).append(p)
    dead = [all(o in w.freed for o, w in ((a, now), (b, before))) for a, b in zip(bound[0], bound_before[0])]
    dies = [i for i, (a, b) in enumerate(zip(bound[1], bound_before[1])) if a in now.freed and b in before.freed]
    live = [i for i, gone in enumerate(dead) if not gone]
    return Trace(number, now, shape, list(differing.values()), live, dies)


def definition(trace: Trace, window: Window, kinds: dict[int, Kind], compiled: set[str] = frozenset()) -> TraceDef:  # type: ignore[assignment]
    """The trace as it is sent: a body over registers, inputs first, each freed behind its last use."""
    flat = list(chain.from_iterable(window.ops))
    outs, inputs = trace.shape.outs(flat), trace.shape.firsts(flat)
    register = {id: i + 1 for i, id in enumerate((*inputs, *outs))}
    alive = {register[outs[i]] for i in trace.live_results}
    alive |= {register[id] for i, id in enumerate(inputs) if i not in set(trace.dies_inputs)}
    body: list[Instruction] = []
    last: dict[int, int] = {}  # register -> index in body of its last mention
    hole_of = {p: i for i, places in enumerate(trace.hole_positions) for p in places}
    holes: list[list[tuple[int, int]]] = [[] for _ in trace.hole_positions]
    at = 0
    for ins in window.ops:
        kind = kinds[ins[0]]  # type: ignore[index]
        n = len(kind.outs)
        row: list[Any] = [ins[0], *(register[o] for o in ins[1 : 1 + n])]
        for i, spec in enumerate(kind.ins):
            value = ins[1 + n + i]
            row.append(register[value] if type(spec) is Spec else value)
            if at + 1 + n + i in hole_of:
                holes[hole_of[at + 1 + n + i]].append((len(body), 1 + n + i))
        for r in (*row[1 : 1 + n], *(row[1 + n + i] for i in kind.tensors)):
            last[r] = len(body)
        body.append(tuple(row))
        at += len(ins)
    return TraceDef(
        trace.number,
        len(inputs),
        _with_frees(body, last, alive, holes),
        tuple(register[outs[i]] for i in trace.live_results),
        tuple(map(tuple, holes)),
        tuple(trace.dies_inputs),
        bool(compiled) and any(kinds[t].signal in compiled for t in trace.tokens),
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
    holes[:] = [[(moved[i], p) for i, p in places] for places in holes]
    return out


class Raw:
    """A trace as it comes in practice, frees and marks among its ops at the same places each time: recognised without taking
    them apart."""

    def __init__(self, trace: Trace, pieces: list[Instruction], kinds: dict[int, Kind]) -> None:
        self.tokens = list(map(_number, pieces))
        self.length = len(pieces)
        self.trace, self.number = trace, trace.number
        shape = self.shape = Topology(Window(pieces, set()), kinds)
        flat = list(chain.from_iterable(pieces))
        outs, inputs = shape.outs(flat), shape.firsts(flat)
        position = dict(zip(trace.shape.number_positions, shape.number_positions))
        self.holes = _pick([position[places[0]] for places in trace.hole_positions])
        self.same = _pick([position[p] for places in trace.hole_positions for p in places[1:]])
        self.same_of = trace.same_of
        open_ = {p for places in trace.hole_positions for p in places}
        self.fixed = _pick([position[p] for p in trace.shape.number_positions if p not in open_])
        self.values = trace.values
        self.live, self.count = trace.live, len(inputs)
        ends = {*trace.dead(outs), *trace.dies(inputs)}
        register = {id: i for i, id in enumerate((*outs, *inputs))}
        self.ended = _pick([p for p, id in shape.frees if id in ends])
        self.ended_of = _pick([register[id] for _, id in shape.frees if id in ends])
        self.rest = _pick([p for p, id in shape.frees if id not in ends])
        if NATIVE is not None:
            self.call = self._native(trace, pieces, ends, register, position).call  # type: ignore[method-assign]

    def _native(self, trace: Trace, pieces: list, ends: set, register: dict, position: dict) -> Any:
        """The same check in C: what each number of the pieces is to be."""
        outs, refs, ref_of, first, again, again_of, numbers = self.shape.signature
        places: dict[int, tuple[int, int]] = {p: (MADE, i) for i, p in enumerate(outs)}
        places |= {p: (GIVEN, len(outs) + i) for i, p in enumerate(first)}
        places |= {p: (SAME, i) for p, i in zip(refs, ref_of)}
        places |= {p: (SAME, len(outs) + i) for p, i in zip(again, again_of)}
        places |= {p: (SAME, register[id]) if id in ends else (REST, 0) for p, id in self.shape.frees}
        places |= {position[p]: (HOLE, i) for i, group in enumerate(trace.hole_positions) for p in group}
        places |= {p: (FIXED, i) for i, p in enumerate(p for p in numbers if p not in places)}
        flat = [places.get(p, (TOKEN, 0)) for p in range(sum(map(len, pieces)))]
        alive = tuple(trace.live_results)
        return NATIVE.Form(self.number, self.length, flat, self.values, alive, len(outs), len(first), len(trace.hole_positions))

    def call(self, pieces: list[Instruction]) -> tuple[Instruction, tuple] | None:
        """The call that stands for these pieces, and what is still to be freed; None where they are not of this form."""
        flat = list(chain.from_iterable(pieces))
        shape = self.shape
        outs, inputs = shape.outs(flat), shape.firsts(flat)
        numbers = self.holes(flat)
        if (
            shape.refs(flat) != shape.ref_of(outs)
            or shape.again(flat) != shape.again_of(inputs)
            or self.fixed(flat) != self.values
            or self.same(flat) != self.same_of(numbers)
            or self.ended(flat) != self.ended_of(outs + inputs)
            or len(set(inputs)) != self.count
            or (inputs and outs and max(inputs) >= min(outs))  # ids grow: an input was there before any result
        ):
            return None
        return (self.number, *self.live(outs), *inputs, *numbers), self.rest(flat)


def equal(a: Trace, b: Trace) -> bool:
    return (
        a.tokens == b.tokens
        and a.hole_positions == b.hole_positions
        and a.live_results == b.live_results
        and a.dies_inputs == b.dies_inputs
        and a.values == b.values
        and a.shape.signature == b.shape.signature
    )
