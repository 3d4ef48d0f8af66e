"""The instruction log: a line for each instruction as it comes in, goes to workers, is done, and is acknowledged."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TextIO

from gt.ops.table import Kind
from gt.spec import DTYPES
from gt.transport.messages import FREE, Batch, Run

ARITY = {0: "CreateOp", 1: "UnaryOp", 2: "BinaryOp", 3: "TernaryOp"}
PLACES = {1: ("input",), 2: ("left", "right")}


def sort_of(kind: Kind) -> str:
    """What sort of op a kind is, by the operands that count: all of a pointwise one's, only tensors for others."""
    n = len(kind.ins) if kind.row.pointwise else len(kind.tensors)
    return ARITY.get(n, "NaryOp")


def details(kind: Kind, ins: tuple) -> str:
    """`result=2 op=matmul left=0 right=1`, and the statics behind."""
    outs = len(kind.outs)
    operands = ins[1 + outs :]
    words = [f"result={','.join(map(str, ins[1 : 1 + outs]))}", f"op={kind.row.name}"]
    names = PLACES.get(len(operands)) if kind.tensors else None
    if names:
        words += [f"{name}={x}" for name, x in zip(names, operands)]
    elif operands:
        words.append(f"inputs={','.join(map(str, operands))}")
    words += [f"{k}={DTYPES[v].name if k == 'dtype' else v}".replace(" ", "") for k, v in kind.settings.items()]
    return " ".join(words)


class InstructionLog:
    """Called by the dispatcher with what passes: see `Dispatcher.watch`."""

    def __init__(self, out: str | TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.file = open(out, "a", buffering=1 << 16) if isinstance(out, str) else out  # noqa: SIM115
        self.clock, self.start = clock, clock()
        self.received: dict[tuple[str, int], list[str]] = {}  # sorts of a batch's instructions, until it is acknowledged
        self.running: dict[tuple[str, str, int], list[tuple[Any, ...]]] = {}  # results a worker is to make, until it is done

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
                for table in (self.received, self.running):
                    for key in [k for k in table if what.name in k]:
                        del table[key]  # type: ignore[attr-defined]
        self.file.flush()

    def _batch(self, who: str, client: Any, batch: Batch) -> None:
        sorts = self.received.setdefault((client.name, batch.serial), [])
        for ins in batch.code:
            if ins and ins[0] == FREE:
                self._line("RECV", who, "FreeOp", f"tensor={ins[-1]}")
            elif ins and ins[0] in client.uses:
                kind = client.uses[ins[0]].kind
                sorts.append(sort_of(kind))
                self._line("RECV", who, sorts[-1], details(kind, ins))
        for _, id, _ in batch.gets:
            sorts.append("ReadOp")
            self._line("RECV", who, "ReadOp", f"tensor={id}")

    def _run(self, who: str, client: Any, run: Run) -> None:
        results = self.running.setdefault((who, client.name, run.serial), [])
        for ins in run.code:
            if ins[0] != FREE and ins[0] in client.uses:
                use = client.uses[ins[0]]
                result = ",".join(f"{client.label}_{id}" for id in ins[1 : 1 + use.outs])
                results.append(ins[1 : 1 + use.outs])
                self._line("WORKER_SEND", who, "WorkerOp", f"op={use.kind.row.name} result={result}")
        for get in run.gets:
            results.append(())
            self._line("WORKER_SEND", who, "WorkerOp", f"op=read result={client.label}_{get.id}")

    def _done(self, who: str, client: Any, serial: int, broken: tuple[int, ...]) -> None:
        for ids in self.running.pop((who, client.name, serial), ()):
            failed = [f"{client.label}_{id}" for id in ids if id in broken]
            text = f"success=False result={','.join(failed)}" if failed else "success=True"
            self._line("WORKER_RECV", who, "WorkerOp", text)

    def _line(self, event: str, who: str, what: str, details: str) -> None:
        self.file.write(f"[TAPE {self.clock() - self.start:.3f}s] {event:<12} | {who:<15} | {what:<9} | {details}\n")

    def close(self) -> None:
        self.file.close()
