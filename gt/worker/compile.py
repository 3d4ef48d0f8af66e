"""From a kind or a trace to a callable. A trace becomes one Python function of resolved kernels over local variables; an
engine may give a faster form of it, which then takes its place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container
from typing import Any, NamedTuple

from gt.ops import Kind
from gt.transport.messages import FREE, TraceDef
from gt.worker.engine import Engine

Holes = tuple[tuple[tuple[int, int], ...], ...]
TRACE = 3  # the form of a trace
TALK = 4  # the form of what workers do together


class Ready:
    """A kind resolved to a kernel. `form` is how it is called: 1 or 2 tensors in and one out, or 0 for any other way."""

    __slots__ = ("run", "form", "kind", "outs", "tensors", "ops", "ways", "dies")

    def __init__(self, kind: Kind, run: Callable, way: str = "", form: int | None = None) -> None:
        self.run, self.kind, self.outs, self.dies = run, kind, len(kind.outs), ()
        self.tensors = tuple(1 + self.outs + i for i in kind.tensors)
        plain = self.outs == 1 and len(kind.tensors) == len(kind.ins)
        self.form = form if form is not None else len(kind.ins) if plain and len(kind.ins) in (1, 2) else 0
        self.ops = {kind.row.name: 1}
        self.ways = {way: 1} if way else {}

    def stats(self) -> dict[str, float]:
        return {}


def trace_kinds(trace: TraceDef) -> set[int]:
    return {int(ins[0]) for ins in trace.body if ins[0] != FREE}


def _silent(line: str) -> None:
    """Nobody asked what is compiled."""


class Program:
    """A trace on this worker: its straight-line function, and, once it is hot, whatever faster form the engine has. `compile`
    asks for a compiled form, `say` is told what became of it."""

    def __init__(
        self, trace: TraceDef, kinds: dict[int, Ready], engine: Engine, compile: bool = False,
        say: Callable[[str], None] = _silent, faster: bool = True,
    ) -> None:  # fmt: skip
        self.trace, self.kinds, self.engine, self.say = trace, kinds, engine, say
        self.compile = compile or trace.compile
        self.outs, self.inputs = len(trace.outs), trace.inputs
        self.tensors = tuple(range(1 + self.outs, 1 + self.outs + self.inputs))
        self.dies = tuple(1 + self.outs + i for i in trace.dies)
        self.ops = Counter(kinds[int(ins[0])].kind.row.name for ins in trace.body if ins[0] != FREE)
        self.ways: Counter[str] = Counter()
        for ins in trace.body:
            if ins[0] != FREE:
                self.ways.update(kinds[int(ins[0])].ways)
        self.length = sum(self.ops.values())
        self.kind = f"a trace of {self.length} ops"
        over = {n: kernel for n, r in kinds.items() if (kernel := engine.over(r.kind)) is not None}
        updates = gathered(trace, kinds, engine.update)
        self.function = straight_line(trace, {n: r.run for n, r in kinds.items()}, kinds, gather=updates, over=over)
        self.calls = 0
        self.failed: str = ""  # why there is no faster form, where one was tried
        self.faster: Any = engine.faster(self) if faster else None
        becomes = f"{type(self.faster).__name__} when it is hot" if self.faster is not None else "no faster form is asked for"
        self.tell(f"one function of {', '.join(f'{name} {n}' for name, n in self.ops.most_common(6))}; {becomes}")

    def run(self, table: dict[int, Any], ins: tuple) -> None:
        """A call: inputs from the table, results into it."""
        self.calls += 1
        if self.faster is not None and self.faster.run(table, ins):
            return
        outs = self.outs
        split = 1 + outs + self.inputs
        arrays = [table[i] for i in ins[1 + outs : split]]
        for i in self.dies:
            del table[ins[i]]
        made = self.function(arrays, *ins[split:])
        for i, array in enumerate(made):
            table[ins[1 + i]] = array

    def give_up(self, why: str) -> None:
        """There will be no faster form; the reason is shown with the statistics."""
        self.faster, self.failed = None, why
        self.tell(f"left to its straight-line function: {why}")

    def tell(self, what: str) -> None:
        self.say(f"{self.kind} (number {self.trace.number}): {what}")

    def stats(self) -> dict[str, float]:
        own = {"traces": 1, "calls": self.calls, "launches_saved": self.calls * max(0, self.length - 1)}
        if self.failed:
            own["fallbacks"] = 1
            own[f"fallback: {self.failed}"] = 1
        return {**own, **(self.faster.stats() if self.faster is not None else {})}


def ends(trace: TraceDef, kinds: dict[int, Ready], number: int) -> bool:
    """Whether updates of this kind, run together where the last of them or a later update stands, may write over all their
    tensors but the second, the gradient: each ends in the trace, and neither another update nor anything from there on reads
    it."""
    places = [i for i, ins in enumerate(trace.body) if ins[0] == number]
    tensors = kinds[number].tensors
    written = [trace.body[i][j] for i in places for j in tensors if j != tensors[1]]
    read = {trace.body[i][tensors[1]] for i in places}
    for i, ins in enumerate(trace.body):
        if ins[0] not in (FREE, number) and (i > places[-1] or kinds[int(ins[0])].kind.row.updates):
            read |= {ins[j] for j in kinds[int(ins[0])].tensors}
    freed = {ins[1] for ins in trace.body if ins[0] == FREE}
    return len(set(written)) == len(written) and freed.issuperset(written) and not read.intersection(written)


def gathered(
    trace: TraceDef, kinds: dict[int, Ready], kernel: Callable[[Kind], Callable[..., Any] | None]
) -> dict[int, Callable[..., Any]]:
    """Kernels for updates that may run together and write over what they update, by kind: one for all shapes."""
    found: dict[int, Callable[..., Any]] = {}
    alike: dict[tuple, Callable[..., Any]] = {}
    for n, ready in kinds.items():
        run = kernel(ready.kind)
        if run is not None and ends(trace, kinds, n):
            found[n] = alike.setdefault((ready.kind.row.name, ready.kind.statics), run)
    return found


def together(body: list, kinds: dict[int, Ready], gather: dict[int, Callable]) -> tuple[dict[int, list[int]], set[int]]:
    """Instructions that can run as one call, as they have a kernel of `gather` in common: by the index of the last of each
    group, the indices of all; and the indices of frees that have to wait for it. Their results must not be used before."""
    groups: dict[Callable, list[int]] = {}
    for index, ins in enumerate(body):
        if ins[0] in gather:
            groups.setdefault(gather[ins[0]], []).append(index)
    found: dict[int, list[int]] = {}
    late: set[int] = set()
    for places in groups.values():
        made = {r for i in places for r in body[i][1 : 1 + kinds[int(body[i][0])].outs]}
        used = {r for i in places for r in body[i][1 + kinds[int(body[i][0])].outs :]}
        between = range(places[0], places[-1] + 1)
        reads = [body[k][1] if body[k][0] == FREE else [body[k][j] for j in kinds[int(body[k][0])].tensors] for k in between]
        if any(r in made for read in reads for r in (read if isinstance(read, list) else [read])):
            continue
        found[places[-1]] = places
        late |= {k for k in between if body[k][0] == FREE and body[k][1] in used}
    return found, late


class Halves(NamedTuple):
    """A trace in two: all but some updates, and those. The first has the trace's inputs and numbers, and gives those of the
    trace's results that it makes, then what the updates want of it; the second has the updates' tensors as its inputs."""

    first: TraceDef
    updates: TraceDef
    given: tuple[int, ...]  # for each input of the second: an input of the trace, or, from `inputs` on, a result of the first
    results: tuple[int, ...]  # for each result of the trace: a result of the first, or, from its number on, of the second


def halves(trace: TraceDef, kinds: dict[int, Ready], numbers: Container[int]) -> Halves | None:
    """The trace with updates of these kinds apart. None where there are none, or something in the trace uses their results."""
    places = [i for i, ins in enumerate(trace.body) if ins[0] in numbers]
    late = [trace.body[i] for i in places]
    made = [int(r) for ins in late for r in ins[1 : 1 + kinds[int(ins[0])].outs]]
    used = {int(ins[i]) for ins in trace.body if ins[0] != FREE for i in kinds[int(ins[0])].tensors}
    if not places or used.intersection(made):
        return None
    taken = list(dict.fromkeys(int(ins[i]) for ins in late for i in kinds[int(ins[0])].tensors))
    left = [i for i, ins in enumerate(trace.body) if ins[0] not in numbers and not (ins[0] == FREE and ins[1] in taken)]
    outs = [r for r in trace.outs if r not in made] + [r for r in taken if r > trace.inputs]
    register = {r: i + 1 for i, r in enumerate((*taken, *made))}
    body = []
    for ins in late:
        ready = kinds[int(ins[0])]
        names = {*range(1, 1 + ready.outs), *ready.tensors}
        body.append(tuple(register[int(x)] if i in names else x for i, x in enumerate(ins)))
    last = tuple(register[r] for r in trace.outs if r in register and r in made)
    return Halves(
        TraceDef(trace.number, trace.inputs, [trace.body[i] for i in left], tuple(outs), _moved(trace.holes, left)),
        TraceDef(trace.number, len(taken), body, last, _moved(trace.holes, places)),
        tuple(r - 1 if r <= trace.inputs else trace.inputs + outs.index(r) for r in taken),
        tuple(len(outs) + last.index(register[r]) if r in made else outs.index(r) for r in trace.outs),
    )


def _moved(holes: Holes, kept: list[int]) -> Holes:
    """Holes where only these instructions are left of a body."""
    place = {index: i for i, index in enumerate(kept)}
    return tuple(tuple((place[index], i) for index, i in places if index in place) for places in holes)


def overwritten(body: list, kinds: dict[int, Ready], numbers: set[int]) -> set[int]:
    """Indices of instructions of these kinds that may write over their first operand: it was made here as new memory, nothing
    but kinds that make new memory has seen it, so that there is no view of it, and it ends there."""
    made: dict[int, int] = {}  # registers that are new memory, by the instruction that made them
    last: dict[int, list[int]] = {}  # registers, and where they are used
    freed = {ins[1] for ins in body if ins[0] == FREE}
    for index, ins in enumerate(body):
        if ins[0] == FREE:
            continue
        ready = kinds[int(ins[0])]
        for i in ready.tensors:
            if ins[0] in numbers:
                last.setdefault(ins[i], []).append(index)
            else:
                made.pop(ins[i], None)
        if ins[0] in numbers:
            made[ins[1]] = index
    return {places[-1] for register, places in last.items()
            if register in made and register in freed and body[places[-1]][2] == register
            and places.count(places[-1]) == 1}  # fmt: skip


def straight_line(
    trace: TraceDef, kernels: dict[int, Callable], kinds: dict[int, Ready], flat: bool = False,
    gather: dict[int, Callable] | None = None, over: dict[int, Callable] | None = None,
) -> Callable[..., tuple]:  # fmt: skip
    """`f(inputs, *numbers) -> results`, or with `flat` `f(*inputs, *numbers)`: a line for each instruction, kernels and
    numbers bound as globals. The list of inputs is emptied, so that each array ends with its last use. Kinds in `gather` have
    a kernel that takes the operands of many instructions at once and gives a list of their results; those in `over` one that
    writes over its first operand."""
    holes = {place: f"h{i}" for i, places in enumerate(trace.holes) for place in places}
    names: dict[str, Any] = {}
    registers = [f"r{i + 1}" for i in range(trace.inputs)]
    lines = [f"def program({', '.join([*(registers if flat else ['inputs']), *(f'h{i}' for i in range(len(trace.holes)))])}):"]
    if registers and not flat:
        lines.append(f"    {', '.join(registers)}, = inputs")
        lines.append("    del inputs[:]")
    over = over or {}
    ending = overwritten(trace.body, kinds, set(over))
    groups, late = together(trace.body, kinds, gather or {})
    waiting = {i for places in groups.values() for i in places}
    calls: dict[int, tuple[str, str]] = {}  # of instructions that wait for others: results and operands
    for index, ins in enumerate(trace.body):
        if ins[0] == FREE:
            if index not in late:
                lines.append(f"    del r{ins[1]}")
            continue
        ready = kinds[int(ins[0])]
        form = "o" if index in ending else "k"
        kernel = f"{form}{ins[0]}".replace("-", "_")  # the dispatcher's own kinds have numbers below zero
        names[kernel] = over[int(ins[0])] if index in ending else kernels[int(ins[0])]
        operands = []
        for i in range(1 + ready.outs, len(ins)):
            if i in ready.tensors:
                operands.append(f"r{ins[i]}")
            elif (index, i) in holes:
                operands.append(holes[index, i])
            else:
                names[f"c{index}_{i}"] = ins[i]
                operands.append(f"c{index}_{i}")
        results = ", ".join(f"r{r}" for r in ins[1 : 1 + ready.outs])
        if index not in waiting:
            lines.append(f"    {results} = {kernel}({', '.join(operands)})")
            continue
        calls[index] = results, ", ".join(operands)
        if index in groups:
            names[f"all_{kernel}"] = gather[int(ins[0])]  # type: ignore[index]
            left = ", ".join(f"({calls[i][0]},)" for i in groups[index])
            lines.append(f"    {left}, = all_{kernel}([{', '.join(f'({calls[i][1]},)' for i in groups[index])}])")
    lines.append(f"    return ({''.join(f'r{r}, ' for r in trace.outs)})")
    exec(compile("\n".join(lines), f"<trace {trace.number}>", "exec"), names)
    return names["program"]
