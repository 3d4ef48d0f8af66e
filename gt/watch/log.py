"""The instruction log: a line for each instruction as it comes in, goes to workers, is done, and is acknowledged."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from operator import neg
from typing import Any, TextIO

from gt.dispatcher.tables import Client, KindPlans, TracePlans
from gt.ops.table import Kind
from gt.program import Program, wire
from gt.program.code import Encoded, Form, is_free
from gt.spec import DTYPES
from gt.transport.checks import kind_in
from gt.transport.messages import Batch, Run

ARITY = {0: "CreateOp", 1: "UnaryOp", 2: "BinaryOp", 3: "TernaryOp"}
PLACES = {1: ("input",), 2: ("left", "right")}


def sort_of(kind: Kind) -> str:
    """What sort of op a kind is, by the operands that count: all of a pointwise one's, only tensors for others."""
    n = len(kind.ins) if kind.row.pointwise else len(kind.tensors)
    return ARITY.get(n, "NaryOp")


def details(kind: Kind, ins: tuple) -> str:
    """`result=2 op=matmul left=0 right=1`, and the statics behind."""
    form = Form.of(kind)
    operands = ins[form.operands]
    words = [f"result={','.join(map(str, ins[form.results]))}", f"op={kind.row.name}"]
    names = PLACES.get(len(operands)) if kind.tensors else None
    if names:
        words += [f"{name}={x}" for name, x in zip(names, operands)]
    elif operands:
        words.append(f"inputs={','.join(map(str, operands))}")
    words += [f"{k}={DTYPES[v].name if k == 'dtype' else v}".replace(" ", "") for k, v in kind.settings.items()]
    return " ".join(words)


Meaning = Callable[[int], "Kind | Program | None"]  # what the number of a kind or trace stands for


def spelled_out(meaning: Meaning, code: list[Encoded]) -> Iterator[tuple[Kind | None, Encoded]]:
    """Each instruction with its kind (None: it frees), calls of traces as the instructions they stand for. What only lives
    inside a call goes by its value, below zero."""
    for ins in code:
        use = meaning(ins[0]) if ins else None  # type: ignore[arg-type]
        if len(ins) == 2 and is_free(ins):
            yield None, ins
        elif isinstance(use, Program) and len(ins) == Form.of_call(len(use.results), use.inputs, use.holes).length:
            yield from ((op.kind, inner) for op, inner in wire.expand(use, ins, neg) if op is not None)
        elif isinstance(use, Kind) and len(ins) == Form.of(use).length:  # a client may write what means nothing
            yield use, ins


def of_client(client: Client) -> Meaning:
    """The numbers of a client, as the dispatcher knows them."""

    def meaning(number: int) -> Kind | Program | None:
        use = client.uses.get(number)
        return use.kind if isinstance(use, KindPlans) else use.program if isinstance(use, TracePlans) else None

    return meaning


class Told:
    """The kinds and traces that one worker was told of for one client, the dispatcher's own among them."""

    def __init__(self) -> None:
        self.known: dict[int, Kind | Program] = {}
        self.forget = 0

    def define(self, run: Run) -> None:
        self.known.update((d.number, kind_in(d)) for d in run.kinds)
        self.known.update((d.number, wire.read(d, self._kind)) for d in run.traces)

    def _kind(self, number: int) -> Kind | None:
        kind = self.known.get(number)
        return kind if isinstance(kind, Kind) else None

    def drop(self, run: Run) -> None:
        """Forget what the worker forgets when this is done."""
        if run.forget:
            self.known = {n: meaning for n, meaning in self.known.items() if n >= self.forget}
            self.forget = run.forget
        for number in run.drops:
            self.known.pop(number, None)


class InstructionLog:
    """Called by the dispatcher with what passes: see `Dispatcher.watch`."""

    def __init__(self, out: str | TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.file = open(out, "a", buffering=1 << 16) if isinstance(out, str) else out  # noqa: SIM115
        self.clock, self.start = clock, clock()
        self.received: dict[tuple[str, int], list[str]] = {}  # sorts of a batch's instructions, until it is acknowledged
        self.running: dict[tuple[str, str, int], list[tuple[Any, ...]]] = {}  # results a worker is to make, until it is done
        self.told: dict[tuple[str, str], Told] = {}  # by worker and client

    def __call__(self, event: str, who: str, what: Any) -> None:
        match event:
            case "batch":
                self._batch(who, *what)
            case "run":
                self._run(who, *what)
            case "done":
                self._done(who, *what)
            case "ack":
                client, serial = what
                for sort in self.received.pop((client.name, serial), ()):
                    self._line("SEND", who, sort, "success=True")
            case "gone":
                self.received = {k: v for k, v in self.received.items() if k[0] != what.name}
                self.running = {k: v for k, v in self.running.items() if k[1] != what.name}
                self.told = {k: v for k, v in self.told.items() if k[1] != what.name}
        self.file.flush()

    def _batch(self, who: str, client: Client, batch: Batch) -> None:
        sorts = self.received.setdefault((client.name, batch.serial), [])
        for kind, ins in spelled_out(of_client(client), batch.code):
            if kind is None:
                self._line("RECV", who, "FreeOp", f"tensor={ins[-1]}")
            else:
                sorts.append(sort_of(kind))
                self._line("RECV", who, sorts[-1], details(kind, ins))
        for _, id, _ in batch.gets:
            sorts.append("ReadOp")
            self._line("RECV", who, "ReadOp", f"tensor={id}")

    def _run(self, who: str, client: Client, run: Run) -> None:
        results = self.running.setdefault((who, client.name, run.serial), [])
        told = self.told.setdefault((who, client.name), Told())
        told.define(run)
        for kind, ins in spelled_out(told.known.get, run.code):
            if kind is not None:
                ids = ins[Form.of(kind).results]
                results.append(ids)
                result = ",".join(f"{client.label}_{id}" for id in ids)
                self._line("WORKER_SEND", who, "WorkerOp", f"op={kind.row.name} result={result}")
        for get in run.gets:
            results.append(())
            self._line("WORKER_SEND", who, "WorkerOp", f"op=read result={client.label}_{get.id}")
        told.drop(run)

    def _done(self, who: str, client: Client, serial: int, broken: tuple[int, ...]) -> None:
        for ids in self.running.pop((who, client.name, serial), ()):
            failed = [f"{client.label}_{id}" for id in ids if id in broken]
            text = f"success=False result={','.join(failed)}" if failed else "success=True"
            self._line("WORKER_RECV", who, "WorkerOp", text)

    def _line(self, event: str, who: str, what: str, details: str) -> None:
        self.file.write(f"[TAPE {self.clock() - self.start:.3f}s] {event:<12} | {who:<15} | {what:<9} | {details}\n")

    def close(self) -> None:
        """What could not be written is given up; a stream that others write to stays open."""
        if self.file is not sys.stderr:
            with contextlib.suppress(OSError):
                self.file.close()
