"""Counts of executed ops, of the ways in which the engine ran them, and of programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from gt.transport.messages import Run
from gt.worker.client_values import ClientValues
from gt.worker.programs.compile import FREED, Executable


class Counts:
    """Counts of dropped kinds; the counts of defined kinds are in each client's values."""

    def __init__(self) -> None:
        self.ops: Counter[str] = Counter()
        self.ways: Counter[str] = Counter()  # by way: OWN, DECOMPOSED or BRIDGED
        self.traced: Counter[str] = Counter()  # calls of traces, by form

    def retire(self, values: ClientValues, number: int) -> None:
        """Keep the counts of a kind or trace that is dropped."""
        if values.watched is not None:
            values.watched.retire(number)
        _add(values, number, values.counts.pop(number, 0), self.ops, self.traced, self.ways)
        if isinstance(ready := values.kinds[number][2], Executable):
            ready.dropped = True

    def forget(self, values: ClientValues, run: Run) -> None:
        """Drop the kinds that a client no longer uses: those below the previous run's bound, and the run's drops."""
        gone = [n for n in values.kinds if n < values.forget] if run.forget else []
        for number in (*gone, *(n for dropped in run.drops for n in values.parts(dropped))):
            if number in values.kinds and values.kinds[number][0] != FREED:
                self.retire(values, number)
                del values.kinds[number]
        values.forget = run.forget or values.forget

    def retire_all(self, values: ClientValues | None) -> None:
        """Keep the counts of a departed client."""
        for number in values.kinds if values is not None else ():
            self.retire(values, number)  # type: ignore[arg-type]

    def totals(self, clients: Collection[ClientValues]) -> dict[str, Any]:
        """The counts of dropped and defined kinds."""
        ops, traced, ways = Counter(self.ops), Counter(self.traced), Counter(self.ways)
        for values in clients:
            for number in values.kinds:
                _add(values, number, values.counts.get(number, 0), ops, traced, ways)
        return {
            "ops": dict(+ops), "instructions": sum(ops.values()), "tensors": sum(len(c.table) for c in clients),
            "clients": len(clients), "traces": dict(traced), "kernels": dict(+ways),
        }  # fmt: skip


def _add(
    values: ClientValues, number: int, times: int, ops: Counter[str], traced: Counter[str], ways: Counter[str]
) -> None:  # fmt: skip
    ready = values.kinds[number][2]
    for name, n in ready.ops.items():
        ops[name] += n * times
    for way, n in ready.ways.items():
        ways[way] += n * times
    traced.update(ready.stats())
