"""Which workers share a host, and how much dearer a byte is that crosses between hosts than one that does not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

CROSSING = 4.0  # what a byte between hosts costs in bytes inside one, where nobody has measured it
DEAREST = 100.0
Link = tuple[str, str, float]  # two hosts, or one twice, and the bytes a second between workers of them


@dataclass(slots=True)
class Hosts:
    of: dict[int, str] = field(default_factory=dict)  # by worker
    names: set[str] = field(default_factory=set)
    links: tuple[Link, ...] = ()  # as measured by `gt doctor --network`

    def add(self, worker: int, host: str) -> None:
        self.of[worker] = host
        self.names.add(host)

    @property
    def several(self) -> bool:
        return len(self.names) > 1

    def spanned(self, workers: Iterable[int]) -> int:
        """On how many hosts these workers are."""
        return len({self.of.get(w, "") for w in workers})

    def nearest(self, worker: int, holders: Sequence[int], turn: int) -> int:
        """Whom a worker takes a piece from that all of these hold: itself, one of its host, or any; in turns."""
        if worker in holders:
            return worker
        near = [h for h in holders if self.of.get(h, "") == self.of.get(worker, "")] or holders
        return near[turn % len(near)]

    @property
    def crossing(self) -> float:
        """What a byte between hosts costs, in bytes inside one."""
        inside = [rate for a, b, rate in self.links if a == b]
        between = [rate for a, b, rate in self.links if a != b]
        if not inside or not between:
            return CROSSING
        return min(DEAREST, max(1.0, median(inside) / median(between)))

    def keep(self, links: Any) -> str:
        """Keep what was measured. Why not, where it is nothing that can be kept; else ""."""
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


ONE = Hosts()  # where nobody says otherwise, all workers are on one host
