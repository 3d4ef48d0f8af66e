"""From a kind or a trace to a callable. A trace becomes one Python function of resolved kernels over local variables; an
engine may give a faster form of it, which then takes its place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from gt.errors import ProtocolError
from gt.ops import Kind
from gt.spec import Spec
from gt.transport.messages import FREE, TraceDef
from gt.worker.engine import Engine
from gt.worker.programs.codegen import straight_line
from gt.worker.programs.updates import gathered
from gt.worker.turns import LARGE

TRACE = 3  # the form of a trace
COLLECTIVE = 4  # the form of what workers do together


class Ready:
    """A kind resolved to a kernel. `form` is how it is called: 1 or 2 tensors in and one out, or 0 for any other way. `specs`
    are those of the tensors that it takes, `results` those that it gives, `short` both."""

    __slots__ = (
        "run",
        "watched",
        "form",
        "kind",
        "outs",
        "tensors",
        "ops",
        "ways",
        "dies",
        "specs",
        "results",
        "short",
        "large",
    )

    def __init__(self, kind: Kind, run: Callable, way: str = "", form: int | None = None) -> None:
        self.run, self.kind, self.outs, self.dies = run, kind, len(kind.outs), ()
        self.watched = run  # the same where it is called by itself: it may find that its client is gone
        self.tensors = tuple(1 + self.outs + i for i in kind.tensors)
        plain = self.outs == 1 and len(kind.tensors) == len(kind.ins)
        self.large = max((s.numel for s in (*kind.ins, *kind.outs) if isinstance(s, Spec)), default=0) >= LARGE
        self.form = form if form is not None else len(kind.ins) if plain and len(kind.ins) in (1, 2) and not self.large else 0
        self.specs: tuple[Spec, ...] = tuple(kind.ins[i] for i in kind.tensors)
        self.results = kind.outs
        self.short = (*self.specs, *self.results)
        self.ops = {kind.row.name: 1}
        self.ways = {way: 1} if way else {}

    def stats(self) -> dict[str, float]:
        return {}


def trace_kinds(trace: TraceDef) -> set[int]:
    return {int(ins[0]) for ins in trace.body if ins[0] != FREE}


def registers(trace: TraceDef, kinds: dict[int, Ready]) -> dict[int, Spec]:
    """What the registers of a trace hold, as the kinds in its body say; all that use one must agree."""
    held: dict[int, Spec] = {}
    for ins in trace.body:
        if ins[0] == FREE:
            continue
        ready = kinds[int(ins[0])]
        for i, spec in zip(ready.tensors, ready.specs):
            if held.setdefault(int(ins[i]), spec) is not spec:
                raise ProtocolError(f"{ready.kind} in trace {trace.number} takes {spec}, not {held[int(ins[i])]}")
        held.update(zip(map(int, ins[1 : 1 + ready.outs]), ready.results))
    return held


def _silent(line: str) -> None:
    """Nobody asked what is compiled."""


class Program:
    """A trace on this worker: its straight-line function, and, once it is hot, whatever faster form the engine has. `compile`
    asks for a compiled form, `say` is told what became of it, `warn` is told why the user's `compile: true` is not obeyed;
    `plain` is the reason why there must be no faster form."""

    large = True  # it takes long enough to look at the clock before

    def __init__(
        self, trace: TraceDef, kinds: dict[int, Ready], engine: Engine, compile: bool = False,
        say: Callable[[str], None] = _silent, warn: Callable[[str], None] = _silent, plain: str = "",
    ) -> None:  # fmt: skip
        self.trace, self.kinds, self.engine, self.say, self.warn = trace, kinds, engine, say, warn
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
        held = registers(trace, kinds)
        self.specs = tuple(held.get(i) for i in range(1, 1 + self.inputs))  # None: nothing looks at it
        self.results = tuple(held.get(out) for out in trace.outs)
        over = {n: kernel for n, r in kinds.items() if (kernel := engine.over(r.kind)) is not None}
        updates = gathered(trace, kinds, engine.update)
        self.function = straight_line(trace, {n: r.watched for n, r in kinds.items()}, kinds, gather=updates, over=over)
        self.calls = 0
        self.failed: str = ""  # why there is no faster form, where one was tried
        self.faster: Any = engine.faster(self) if not plain else None
        becomes = f"{type(self.faster).__name__} when it is hot" if self.faster is not None else "no faster form is asked for"
        self.tell(f"one function of {', '.join(f'{name} {n}' for name, n in self.ops.most_common(6))}; {becomes}")
        if trace.compile and self.faster is None:
            self.give_up(plain or f"the {engine.name} engine compiles nothing")

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
        if self.trace.compile:
            self.warn(f"compile: true is not obeyed: {why}")

    def tell(self, what: str) -> None:
        self.say(f"{self.kind} (number {self.trace.number}): {what}")

    def stats(self) -> dict[str, float]:
        own = {"traces": 1, "calls": self.calls, "launches_saved": self.calls * max(0, self.length - 1)}
        if self.failed:
            own["fallbacks"] = 1
            own[f"fallback: {self.failed}"] = 1
        return {**own, **(self.faster.stats() if self.faster is not None else {})}
