"""Introspection from a script: the tape of this thread, and statistics of the workers."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gt.client.autograd import Node, Port, Tensor
from gt.client.early import EARLY_STATISTICS
from gt.client.here import here
from gt.client.local_answers import LOCAL_STATISTICS
from gt.client.native import NATIVE
from gt.client.steps_ahead import AHEAD_STATISTICS
from gt.client.user_lines import line_of
from gt.errors import GTError
from gt.lazy_import import LazyImport
from gt.spec import Spec
from gt.transport.events import EXACT, Watched
from gt.watch import own, timeline
from gt.watch.doctor import text as diagnosis_text
from gt.watch.html import HtmlStats

stats_tables = LazyImport("gt.watch.stats")  # imports rich


@dataclass(frozen=True, slots=True)
class TapeEntry:
    """An op on the tape. `inputs` are shapes and dtypes, or numbers; `sources` the entries and leaves its gradients go to."""

    order: int
    op: str
    inputs: tuple[Spec | float, ...]
    outputs: tuple[Spec, ...]
    sources: tuple[int | str, ...]


def get_tape() -> list[TapeEntry]:
    """The ops of this thread that wait for a `backward()`, oldest first.

    >>> a = gt.ones(2, requires_grad=True)
    >>> loss = (a * 3.0).sum()
    >>> [entry.op for entry in gt.debug.get_tape()]
    ['mul', 'sum']
    """
    mine = threading.get_ident()
    nodes = [o for o in gc.get_objects() if type(o) is Node and o.scope.thread == mine and o.inputs is not None]
    return [_entry(node) for node in sorted(nodes, key=lambda n: n.order)]


def _entry(node: Node) -> TapeEntry:
    kind = node.known.kind
    held = node.inputs if isinstance(node.inputs, list) else kind.ins
    inputs = tuple(spec if isinstance(spec, Spec) else value for value, spec in zip(held, kind.ins))
    return TapeEntry(node.order, node.name, inputs, kind.outs, tuple(_source(e) for e in node.edges if e is not None))


def _source(edge: Any) -> int | str:
    if isinstance(edge, Tensor):
        return "leaf"
    return edge.node.order if isinstance(edge, Port) else edge.order


def print_tape() -> None:
    """The tape of this thread, as a table."""
    from rich.console import Console
    from rich.table import Table

    entries = get_tape()
    table = Table(title=f"Tape: {len(entries)} op{'' if len(entries) == 1 else 's'}")
    for name in ("#", "op", "inputs", "output", "gradients go to"):
        table.add_column(name)
    for e in entries:
        sources = ", ".join(s if isinstance(s, str) else f"#{s}" for s in e.sources)
        table.add_row(str(e.order), e.op, ", ".join(map(_text, e.inputs)), ", ".join(map(_text, e.outputs)), sources)
    Console().print(table)


def _text(value: Any) -> str:
    return f"{value.dtype.name}{list(value.shape)}" if isinstance(value, Spec) else repr(value)


def is_native() -> bool:
    """Whether ops are issued by the part of GT that is compiled when it is installed, where a compiler is there."""
    return NATIVE is not None


def placement(tensor: Tensor) -> None:
    """Print the placement of a tensor, and the piece of each worker.

    >>> gt.debug.placement(gt.ones(2))
    Replicate() on [0]
      worker 0: [2]
    """
    found = tensor.placement
    print(found)
    for worker, start, shape in found.pieces:
        at = f" from {list(start)}" if any(start) else ""
        print(f"  worker {worker}: {list(shape)}{at}")


def get_worker_stats() -> dict[str, dict[str, Any]]:
    """By worker's name: engine, device, ops by name, bytes in use and in all, queue (instructions that waited when this was
    asked) and the idle share of its time. Under "replay": traces this script's stream was found to have, `hits` and `misses`
    by reason with the line of one (`miss_lines`), and the worker's counts of them: calls, sharded calls (with
    collectives inside), compiled executions, fallbacks by reason, launches saved, seconds spent compiling."""
    session = here().session
    workers = session.ask("stats")["workers"]
    mine = {**session.tracer.stats(), **session.steps.stats()} if session.tracer and session.steps else {}
    mine |= session.local.stats()
    for stats in workers.values():
        stats["replay"] = replay(stats["traces"], mine)
    return HtmlStats(workers)


def clients() -> list[dict[str, Any]]:
    """A row for each client of this script's server that this script may know of, its own included: its `number`, `user` and
    `process`, `weight`, device `seconds`, the share of all seconds that it `wanted` while it had something to do and `got`, how
    long work waited to begin (`wait_p50`, `wait_p99`, seconds), `bytes` of its tensors and how many of those
    are `moved` to host memory, and instructions that wait at workers (`queue`) and at the dispatcher (`held`).

    >>> x = gt.ones(256) + 1
    >>> [row] = gt.debug.clients()
    >>> row["bytes"]
    1024
    """
    return here().session.ask("clients")


def in_flight() -> dict[str, float]:
    """The work in flight, sent by this script and not known to be executed: instructions, their estimated device seconds, bytes
    of loads; and the number of times that an op waited because too much was in flight.

    >>> sorted(gt.debug.in_flight())
    ['bytes', 'instructions', 'seconds', 'waits']
    """
    session = here().session
    window = session.window
    return {
        "instructions": window.sent - window.executed,
        "seconds": window.seconds(),
        "bytes": session.link.outstanding() + sum(map(len, session.uploads.values())),
        "waits": window.waits,
    }


def host_copies() -> dict[str, int]:
    """Copies of tensors that this client keeps because their elements are read one by one: how many, of how many bytes, and how
    many reads they served."""
    found = here().session.copies
    return (
        {"tensors": len(found.copies), "bytes": found.bytes, "served": found.served}
        if found
        else dict.fromkeys(("tensors", "bytes", "served"), 0)
    )


@contextmanager
def record(keep: int = 1 << 16) -> Iterator[timeline.Timeline]:
    """Let the workers record the times of this script's work: each keeps its last `keep` units of work. At its end this
    waits until all is done. A device that runs behind is waited for after each op, so steps take longer while recorded.

    >>> with gt.debug.record() as timeline:
    ...     y = gt.ones(2, 2) @ gt.ones(2, 2)
    >>> [span.name for span in timeline.spans]
    ['full', 'full', 'matmul']
    """
    if keep < 1:
        raise GTError(f"cannot keep {keep!r} times: expected 1 or more")
    made, kept = timeline.Timeline(), timeline.LastSpans(keep)
    with own.watching(here().session, kept.observe, EXACT):
        yield made
    made.spans = kept.spans()


@contextmanager
def watch(observe: Callable[[Watched], None]) -> Iterator[None]:
    """Have `observe` called with this script's own events as they come (docs/monitoring.md), such as the `write` of a capture's
    file. At the end all that was asked for is done and told."""
    with own.watching(here().session, observe):
        yield


@contextmanager
def doctor(show: bool = True) -> Iterator[own.Diagnosis]:
    """Find the slow lines of a block of a script: reads that drain the queue, traces that break, arrays that are sent
    again and again, tensors that are gathered, idle workers, recompiles. It is printed at the end, and kept as `findings`.

    >>> with gt.debug.doctor(show=False) as seen:
    ...     y = (gt.ones(2) + 1).sum()
    >>> [finding for finding in seen.findings if finding.sort == "uploads"]
    []
    """
    seen = own.Diagnosis()
    with own.watching(here().session, seen.observe):
        yield seen
    seen.end()
    if show:
        print(diagnosis_text(seen.recording))


@dataclass(frozen=True, slots=True)
class ProgramStages:
    """A program of this script's on a worker. `source` is its origin: a "trace", a "unit" of single instructions, a
    "sharded trace" with collectives inside, or a "segment" of one between them. `stages` has it as it came and as each pass
    gave it, in order."""

    worker: str
    number: int
    source: str
    calls: int
    stages: dict[str, str]

    def __str__(self) -> str:
        head = f"{self.source} {self.number} on {self.worker}, called {self.calls} times"
        return "\n\n".join([head, *(f"{name}\n{text}" for name, text in self.stages.items())])


def programs() -> list[ProgramStages]:
    """The programs that the workers have made of this script's repeats: each before and after every pass, with the script's
    lines. `print` one to read it.

    >>> x = gt.ones(4)
    >>> for _ in range(10):
    ...     y = (((x * 2.0 + 1.0).exp() - 0.5) * x).sin().sum().item()
    >>> "exp" in str(gt.debug.programs()[0])
    True
    """
    found = here().session.ask("programs")["workers"]
    return [
        ProgramStages(worker, p["number"], p["source"], p["calls"], p["stages"])
        for worker, answer in found.items()
        for p in answer.get("programs", ())
    ]


def replay(done: dict[str, float], found: dict[str, Any]) -> dict[str, Any]:
    """Statistics of replay: a worker's, and this client's."""
    lines = found.get("trace_miss_lines", {})
    return {
        "traces_found": found.get("traces_found", 0),
        "hits": found.get("trace_hits", 0),
        "misses": found.get("trace_misses", {}),
        "miss_lines": {why: line_of(origin) for why, origin in lines.items()},
        "instructions_saved": found.get("instructions_saved", 0),
        **{name: found.get(name, 0) for name in (*EARLY_STATISTICS, *AHEAD_STATISTICS, *LOCAL_STATISTICS)},
        "traces": int(done.get("traces", 0)),
        "calls": int(done.get("calls", 0)),
        "units": int(done.get("units", 0)),
        "unit_calls": int(done.get("unit_calls", 0)),
        "sharded_calls": int(done.get("sharded_calls", 0)),
        "collective_graph_calls": int(done.get("collective_graph_calls", 0)),
        "numpy_calls": int(done.get("numpy_calls", 0)),
        "small_run_ops": int(done.get("small_run_ops", 0)),
        "compiling": int(done.get("compiling", 0)),
        "compiled": int(done.get("compiled", 0) + done.get("graph_captures", 0)),
        "compiled_executions": int(done.get("compiled_calls", 0)),
        "fallbacks": {k.removeprefix("fallback: "): int(n) for k, n in done.items() if k.startswith("fallback: ")},
        "launches_saved": int(done.get("launches_saved", 0)),
        "compile_seconds": done.get("compile_seconds", 0.0),
    }


def print_worker_stats() -> None:
    """The properties and statistics of each worker, as tables."""
    from rich.console import Console

    workers = get_worker_stats()
    console = Console()
    console.print(stats_tables.report(workers))
    if any(s["replay"]["traces_found"] or s["replay"]["calls"] or s["replay"]["unit_calls"] for s in workers.values()):
        console.print(stats_tables.replay_table(workers))
