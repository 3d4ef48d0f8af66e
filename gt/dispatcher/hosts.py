"""The hosts of the workers, and the cost of a byte between hosts relative to a byte inside one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

CROSSING = 4.0  # cost of a byte between hosts, in bytes inside one, unless measured
DEAREST = 100.0
Link = tuple[str, str, float]  # two hosts (the same one twice for a link inside it), and bytes a second


@dataclass(slots=True)
class Hosts:
    of: dict[int, str] = field(default_factory=dict)  # by worker
    names: set[str] = field(default_factory=set)
    links: tuple[Link, ...] = ()  # as measured by `gt doctor --network`

    def add(self, worker: int, host: str) -> None:
        self.of[worker] = host
        self.names.add(host)

    def remove(self, worker: int) -> None:
        host = self.of.pop(worker)
        if host not in self.of.values():
            self.names.discard(host)

    @property
    def several(self) -> bool:
        return len(self.names) > 1

    def host(self, worker: int) -> str:
        """The name of a worker's host; "" of an unknown one."""
        return self.of.get(worker, "")

    def spanned(self, workers: Iterable[int]) -> int:
        """The number of hosts of these workers."""
        return len({self.of.get(w, "") for w in workers})

    def nearest(self, worker: int, holders: Sequence[int], turn: int) -> int:
        """The holder from which a worker takes a piece: itself, else one of its host, else any; `turn` rotates among
        several."""
        if worker in holders:
            return worker
        near = [h for h in holders if self.host(h) == self.host(worker)] or holders
        return near[turn % len(near)]

    @property
    def crossing(self) -> float:
        """The cost of a byte between hosts, in bytes inside one."""
        inside = [rate for a, b, rate in self.links if a == b]
        between = [rate for a, b, rate in self.links if a != b]
        if not inside or not between:
            return CROSSING
        return min(DEAREST, max(1.0, median(inside) / median(between)))

    def keep(self, links: Any) -> str:
        """Keep measured links. Returns the reason if they are invalid, else ""."""
        if not isinstance(links, (list, tuple)) or not links:
            return "expected a list of links: two hosts and the bytes a second between them"
        found = []
        for link in links:
            match link:
                case [str(a), str(b), int() | float() as rate] if rate > 0 and {a, b} <= self.names:
                    found.append((a, b, float(rate)))
                case _:
                    return f"expected two hosts of this pool and a rate above 0, got {link!r}"[:200]
        self.links = tuple(found)
        return ""


ONE = Hosts()  # the default: all workers on one host
