"""How often a worker ran what: by op, by how the engine ran it, and what became of traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from gt.transport.messages import Run
from gt.worker.client_values import ClientValues
from gt.worker.programs.compile import FREED


class Counts:
    """Counts of kinds that are gone; those of the others stand with each client's values."""

    def __init__(self) -> None:
        self.ops: Counter[str] = Counter()
        self.ways: Counter[str] = Counter()  # kernels the engine ran by itself, and those it did not
        self.traced: Counter[str] = Counter()  # calls of traces, by form

    def retire(self, values: ClientValues, number: int) -> None:
        """A kind or trace of a client goes: keep its counts."""
        _add(values, number, values.counts.pop(number, 0), self.ops, self.traced, self.ways)

    def forget(self, values: ClientValues, run: Run) -> None:
        """Kinds go that a client names no more: those below the bound before this run's, and those it drops."""
        gone = [n for n in values.kinds if n < values.forget] if run.forget else []
        for number in (*gone, *(n for dropped in run.drops for n in values.parts(dropped))):
            if number in values.kinds and values.kinds[number][0] != FREED:
                self.retire(values, number)
                del values.kinds[number]
        values.forget = run.forget or values.forget

    def retire_all(self, values: ClientValues | None) -> None:
        """A client goes."""
        for number in values.kinds if values is not None else ():
            self.retire(values, number)  # type: ignore[arg-type]

    def totals(self, clients: Collection[ClientValues]) -> dict[str, Any]:
        """Of all there was and is."""
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
