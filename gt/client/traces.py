"""Traces: the topology of a stretch of ops, the match of another stretch with it, and its program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gt.client.native import NATIVE
from gt.ops.table import Kind
from gt.program import Program
from gt.program.code import Encoded, bits, first_result, freed, next_op, number_of, ops, same_bits
from gt.program.stretch import Stretch, flat, pick

TOKEN, MADE, GIVEN, SAME, FIXED, HOLE, REST = range(7)  # role of an element of an instruction, for native.c


class Window:
    """Ops of the stream, and the ids freed between the first of them and the op after the last."""

    __slots__ = ("ops", "freed")

    def __init__(self, ops: list[tuple], freed: set[int]) -> None:
        self.ops, self.freed = ops, freed

    @classmethod
    def of(cls, pieces: list[tuple]) -> Window:
        return cls(ops(pieces), freed(pieces))

    @property
    def tokens(self) -> list[int]:
        return list(map(number_of, self.ops))


class Topology:
    """The topology of a stretch, in a form that matches other stretches of the same kinds fast."""

    def __init__(self, stretch: Stretch) -> None:
        self.stretch = stretch
        self.results, self.refs, self.firsts = pick(stretch.result_at), pick(stretch.ref_at), pick(stretch.first_at)
        self.ref_of, self.again, self.again_of = pick(stretch.ref_of), pick(stretch.again_at), pick(stretch.again_of)

    def bind(self, known: list) -> tuple[tuple, tuple] | None:
        """The results and inputs of another stretch of the same kinds, if it has this topology."""
        results, inputs = self.results(known), self.firsts(known)
        if self.refs(known) != self.ref_of(results) or self.again(known) != self.again_of(inputs):
            return None
        if len(set(inputs)) != len(inputs) or not set(results).isdisjoint(inputs):
            return None
        return results, inputs


class Trace:
    """A repeating stretch: its topology, its constant numbers, the arguments of each call (`holes`, each with the
    positions of numbers that change together), the results that outlive it (`live`) and the inputs that it frees (`dies`)."""

    def __init__(
        self, number: int, window: Window, topology: Topology, holes: list[list[int]], live: list[int], dies: list[int]
    ) -> None:
        self.number, self.tokens, self.topology = number, window.tokens, topology
        self.length = self.size = len(self.tokens)  # `size` counts each item of an op on lists
        known = flat(window.ops)
        self.hole_positions = holes
        open_ = {p for places in holes for p in places}
        fixed = [p for p in topology.stretch.number_at if p not in open_]
        self.fixed, self.holes = pick(fixed), pick([places[0] for places in holes])
        self.same = pick([p for places in holes for p in places[1:]])
        self.same_of = pick([i for i, places in enumerate(holes) for _ in places[1:]])
        self.values = self.fixed(known)
        count = len(topology.stretch.result_at)
        self.live_results, self.dies_inputs = live, dies
        self.live, self.dies = pick(live), pick(dies)
        alive = set(live)
        self.dead = pick([i for i in range(count) if i not in alive])
        self.calls = self.misses = 0
        self.tries = 0  # number of its forms that were remembered

    def holes_at(self) -> dict[int, int]:
        """The hole of each position of a number that is an argument."""
        return {p: hole for hole, places in enumerate(self.hole_positions) for p in places}

    def worth(self) -> int:
        """The gain of a call: its length, unless its attempts fail more often than they match."""
        return self.length if self.misses <= self.calls + 4 else 0

    def call(self, window: Window) -> tuple[Encoded | None, set[int], str]:
        """The call for this stretch and the ids still to be freed; or None, and the reason."""
        known = flat(window.ops)
        bound = self.topology.bind(known)
        if bound is None:
            return None, set(), "another topology"
        numbers = self.holes(known)
        if not same_bits(self.fixed(known), self.values) or not same_bits(self.same(known), self.same_of(numbers)):
            return None, set(), "a number changed"
        results, inputs = bound
        dead, dies = self.dead(results), self.dies(inputs)
        if not window.freed.issuperset(dead):
            return None, set(), "a result was kept alive"
        if not window.freed.issuperset(dies):
            return None, set(), "an input was kept alive"
        rest = window.freed.difference(dead, dies)
        return (self.number, *self.live(results), *inputs, *numbers), rest, ""


def candidates(traces: Sequence[Trace], tokens: Sequence[int], at: int) -> list[Trace]:
    """The traces whose second op is also that of the instructions at `at`, or may be it, if that has not come yet: nothing is
    held back, or compared, for the others."""
    second = next_op(tokens, at + 1) if traces else len(tokens)
    if second >= len(tokens):
        return list(traces)
    return [trace for trace in traces if trace.length == 1 or trace.tokens[1] == tokens[second]]


def most_general(refused: list[tuple[Trace, Window, str]]) -> tuple[Trace, Window] | None:
    """Of the traces that refused a stretch for a number or a lifetime, the one with most holes, and the stretch."""
    revisable = [(trace, window) for trace, window, why in refused if why != "another topology" and trace.calls <= 1 << 20]
    return max(revisable, key=lambda pair: len(pair[0].hole_positions), default=None)


def blame(trace: Trace, window: Window, why: str) -> int:
    """The result at which a stretch of a trace's kinds differed; 0 if there is no single one."""
    known = flat(window.ops)
    results, inputs = trace.topology.results(known), trace.topology.firsts(known)
    if why == "a result was kept alive":
        return next(id for id in trace.dead(results) if id not in window.freed)
    if why == "an input was kept alive":
        return next(id for id in trace.dies(inputs) if id not in window.freed)
    if why != "a number changed":
        return 0
    open_ = {p for places in trace.hole_positions for p in places}
    fixed = [p for p in trace.topology.stretch.number_at if p not in open_]
    changed = next((p for p, old in zip(fixed, trace.values) if bits(known[p]) != bits(old)), None)
    if changed is None:
        return 0
    for ins in window.ops:
        changed -= len(ins)
        if changed < 0:
            return int(first_result(ins))
    return 0  # numbers of one hole differ


def define(
    number: int, kinds: dict[int, Kind], before: Window, now: Window, holes: Mapping[int, Any] = MappingProxyType({})
) -> Trace | None:
    """A trace that matches both stretches, or None if their topologies differ. Numbers at `holes` are arguments in any case;
    numbers with different labels there are separate arguments, even if equal now."""
    topology = Topology(Stretch(now.ops, kinds.get))
    old, new = flat(before.ops), flat(now.ops)
    bound, bound_before = topology.bind(new), topology.bind(old)
    if bound is None or bound_before is None:
        return None
    differing: dict[tuple, list[int]] = {}
    for p in topology.stretch.number_at:
        pair = bits(old[p]), bits(new[p])
        if p in holes or pair[0] != pair[1]:
            differing.setdefault((pair, holes.get(p)), []).append(p)
    dead = [all(o in w.freed for o, w in ((a, now), (b, before))) for a, b in zip(bound[0], bound_before[0])]
    dies = [i for i, (a, b) in enumerate(zip(bound[1], bound_before[1])) if a in now.freed and b in before.freed]
    live = [i for i, gone in enumerate(dead) if not gone]
    return Trace(number, now, topology, list(differing.values()), live, dies)


def program_of(trace: Trace, compiled: set[str] | frozenset[str], line: Callable[[int], str]) -> Program:
    """The trace as a program; `line` returns the user's line of a result."""
    stretch = trace.topology.stretch
    kinds = (stretch.kind_of(t) for t in trace.tokens)
    return stretch.program(
        trace.number, trace.live_results, trace.dies_inputs,
        trace.holes_at(),
        compile=bool(compiled) and any(kind is not None and kind.signal in compiled for kind in kinds),
        line=lambda _, ins: line(first_result(ins)),
    )  # fmt: skip


class TraceForm:
    """One form of a trace, with frees and marks among its ops at fixed positions: matched without separating them."""

    def __init__(self, trace: Trace, pieces: list[tuple], kinds: dict[int, Kind]) -> None:
        self.tokens = list(map(number_of, pieces))
        self.length = len(pieces)
        self.trace, self.number = trace, trace.number
        stretch = Stretch(pieces, kinds.get)
        topology = self.topology = Topology(stretch)
        known = flat(pieces)
        results, inputs = topology.results(known), topology.firsts(known)
        position = dict(zip(trace.topology.stretch.number_at, stretch.number_at))
        self.holes = pick([position[places[0]] for places in trace.hole_positions])
        self.same = pick([position[p] for places in trace.hole_positions for p in places[1:]])
        self.same_of = trace.same_of
        open_ = {p for places in trace.hole_positions for p in places}
        self.fixed = pick([position[p] for p in trace.topology.stretch.number_at if p not in open_])
        self.values = trace.values
        self.live, self.count = trace.live, len(inputs)
        ends = {*trace.dead(results), *trace.dies(inputs)}
        register = {id: i for i, id in enumerate((*results, *inputs))}
        self.ended = pick([p for p, id, _ in stretch.frees if id in ends])
        self.ended_of = pick([register[id] for _, id, _ in stretch.frees if id in ends])
        self.rest = pick([p for p, id, _ in stretch.frees if id not in ends])
        if NATIVE is not None:
            self.call = self._native(trace, pieces, ends, register, position).call  # type: ignore[method-assign]

    def _native(self, trace: Trace, pieces: list, ends: set, register: dict, position: dict) -> Any:
        """The same check in C: the role of each element of the pieces."""
        results, refs, ref_of, first, again, again_of, numbers = self.topology.stretch.signature
        places: dict[int, tuple[int, int]] = {p: (MADE, i) for i, p in enumerate(results)}
        places |= {p: (GIVEN, len(results) + i) for i, p in enumerate(first)}
        places |= {p: (SAME, i) for p, i in zip(refs, ref_of)}
        places |= {p: (SAME, len(results) + i) for p, i in zip(again, again_of)}
        places |= {p: (SAME, register[id]) if id in ends else (REST, 0) for p, id, _ in self.topology.stretch.frees}
        places |= {position[p]: (HOLE, i) for i, group in enumerate(trace.hole_positions) for p in group}
        places |= {p: (FIXED, i) for i, p in enumerate(p for p in numbers if p not in places)}
        flat = [places.get(p, (TOKEN, 0)) for p in range(sum(map(len, pieces)))]
        alive = tuple(trace.live_results)
        return NATIVE.Form(
            self.number, self.length, flat, self.values, alive, len(results), len(first), len(trace.hole_positions)
        )

    def call(self, pieces: list[tuple]) -> tuple[Encoded, tuple] | None:
        """The call for these pieces, and the ids still to be freed; None if they do not have this form."""
        known = flat(pieces)
        topology = self.topology
        results, inputs = topology.results(known), topology.firsts(known)
        numbers = self.holes(known)
        if (
            topology.refs(known) != topology.ref_of(results)
            or topology.again(known) != topology.again_of(inputs)
            or not same_bits(self.fixed(known), self.values)
            or not same_bits(self.same(known), self.same_of(numbers))
            or self.ended(known) != self.ended_of(results + inputs)
            or len(set(inputs)) != self.count
            or (inputs and results and max(inputs) >= min(results))  # ids grow: inputs are older than results
        ):
            return None
        return (self.number, *self.live(results), *inputs, *numbers), self.rest(known)


def equal(a: Trace, b: Trace) -> bool:
    return (
        a.tokens == b.tokens
        and a.hole_positions == b.hole_positions
        and a.live_results == b.live_results
        and a.dies_inputs == b.dies_inputs
        and same_bits(a.values, b.values)
        and a.topology.stretch.signature == b.topology.stretch.signature
    )


def common_length(tokens: list[int], traces: list[Trace]) -> int:
    """The number of ops up to the first that differs from the trace that fits longest."""
    found = 0
    for trace in traces:
        pairs = zip(tokens, trace.tokens)
        found = max(found, next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(tokens), trace.length)))
    return found
