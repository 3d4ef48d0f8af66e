"""`gt doctor --network`: bandwidth between the workers of a pool, inside hosts and between them. The dispatcher keeps the
figures and weighs the transfers of its plans by them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from gt.client.default import connect, disconnect
from gt.client.functions.create import zeros
from gt.client.signals import context, register_config, tensor
from gt.config import ShardConfig, SignalConfig
from gt.errors import GTError

LARGE, SMALL = 2 << 20, 1  # elements of four bytes per move: the small move measures the latency
TIMES = 3
Link = tuple[str, str, float]  # two hosts (the same one twice for a link inside it), and bytes a second


def pairs(hosts: Mapping[int, str]) -> list[tuple[int, int]]:
    """Pairs of workers to measure: one pair inside each host with two workers, and one pair for each two hosts."""
    of: dict[str, list[int]] = {}
    for worker in sorted(hosts):
        of.setdefault(hosts[worker], []).append(worker)
    firsts = [there[0] for there in of.values()]
    inside = [(there[0], there[1]) for there in of.values() if len(there) > 1]
    return inside + [(a, b) for i, a in enumerate(firsts) for b in firsts[i + 1 :]]


def measure(hosts: Mapping[int, str], seconds: Callable[[int, int, int], float]) -> list[Link]:
    """The links between hosts; `seconds(a, b, elements)` measures one move from worker `a` to worker `b`."""
    found = []
    for a, b in pairs(hosts):
        moving = max(seconds(a, b, LARGE) - seconds(a, b, SMALL), 1e-9)
        found.append((hosts[a], hosts[b], 4 * LARGE / moving))
    return found


def seconds(a: int, b: int, elements: int) -> float:
    """The fastest of `TIMES` moves by this client's clock, from the request until the first element can be read."""
    for worker in (a, b):
        register_config(f"network {worker}", SignalConfig(ShardConfig(workers=[worker])))
    with context(f"network {a}"):
        x = zeros(elements)
    best = float("inf")
    for _ in range(1 + TIMES):  # the first one opens the connections
        x[:1].item()
        start = time.perf_counter()
        tensor(x, name=f"network {b}")[:1].item()
        best = min(best, time.perf_counter() - start)
    return best


def table(links: list[Link], crossing: float) -> str:
    rows = [f"{a if a == b else f'{a} - {b}'}: {rate / 1e9:.2f} GB/s" for a, b, rate in links]
    return "\n".join([*rows, f"A byte between hosts counts as {crossing:.1f} inside one in the dispatcher's plans."])


def report(server: str) -> str:
    """Measure a pool, store the figures in its dispatcher, and return them as text."""
    session = connect(server or None)
    try:
        workers = session.ask("stats")["workers"]
        of = session.ask("network")["hosts"]
        hosts = {stats["index"]: of[name] for name, stats in workers.items() if name in of}
        if len(hosts) < 2:
            raise GTError(f"nothing to measure: the pool has {len(hosts)} worker{'s' * (len(hosts) != 1)}")
        links = measure(hosts, seconds)
        return table(links, session.ask("network", links))
    finally:
        disconnect()
