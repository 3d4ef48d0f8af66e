"""How often a worker ran what: by op, by how the engine ran it, and what became of traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gt.worker.client_values import ClientValues


class Counts:
    """Counts of kinds that are gone; those of the others stand with each client's values."""

    def __init__(self) -> None:
        self.ops: Counter[str] = Counter()
        self.ways: Counter[str] = Counter()  # kernels the engine ran by itself, and those it did not
        self.traced: Counter[str] = Counter()  # calls of traces, by form

    def retire(self, values: ClientValues, number: int) -> None:
        """A kind or trace of a client goes: keep its counts."""
        _add(values, number, values.counts.pop(number, 0), self.ops, self.traced, self.ways)

    def totals(self, clients: Iterable[ClientValues]) -> tuple[Counter[str], Counter[str], Counter[str]]:
        """Ops, traces and ways of all there was and is."""
        ops, traced, ways = Counter(self.ops), Counter(self.traced), Counter(self.ways)
        for values in clients:
            for number in values.kinds:
                _add(values, number, values.counts.get(number, 0), ops, traced, ways)
        return ops, traced, ways


def _add(
    values: ClientValues, number: int, times: int, ops: Counter[str], traced: Counter[str], ways: Counter[str]
) -> None:  # fmt: skip
    ready = values.kinds[number][2]
    for name, n in ready.ops.items():
        ops[name] += n * times
    for way, n in ready.ways.items():
        ways[way] += n * times
    traced.update(ready.stats())
