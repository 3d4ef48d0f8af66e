"""The bound of eight small trainers on one worker: the CPU time that dispatcher, worker and clients take for a step, how busy
worker and device are, and the steps in a turn, for eight (`gt`) and for one alone (`rival`)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
from measure import Result, rates, times
from share import EQUAL, SMALL, Client, _listener, clients, server, together, worker

import gt

ROUNDS = 3


def bound(script: str = "") -> Iterator[Result]:
    """Eight trainers and one, in turns; of the round in which the eight were fastest. `script` may run the worker."""
    with server() as port:
        process = worker(port, script)
        trainers = [Client("gt", "train", port, SMALL, wait=False) for _ in range(EQUAL)]
        with clients(*trainers):
            at = {"dispatcher": [_listener(port)], "worker": [psutil.Process(process.pid)]}
            at["clients"] = [psutil.Process(t.pid) for t in trainers]
            rounds = [(_measured(port, at, trainers), _measured(port, at, trainers[:1])) for _ in range(ROUNDS)]
    many, one = max(rounds, key=lambda pair: pair[0]["rate"])
    yield rates("share-bound-sum", many["rate"], max(o["rate"] for _, o in rounds), "steps/s")
    for name in at:
        yield times(f"share-bound-{name}", many[name] * 1e6, one[name] * 1e6, "us CPU a step")
    yield rates("share-bound-worker-busy", many["busy"] * 100, one["busy"] * 100, "% of a core")
    yield rates("share-bound-device-busy", many["device"] * 100, one["device"] * 100, "% of the time")
    yield rates("share-bound-turn", many["turn"], one["turn"], "steps a turn")


def _measured(port: int, at: dict[str, list[psutil.Process]], trainers: list[Client]) -> dict[str, float]:
    before, cpu, began = _stats(port), {name: -_cpu(processes) for name, processes in at.items()}, time.perf_counter()
    each = [rate for (rate,) in together(*trainers)]
    wall = time.perf_counter() - began
    cpu = {name: seconds + _cpu(at[name]) for name, seconds in cpu.items()}
    after, steps = _stats(port), sum(each) * wall
    used, turns = (after[key] - before[key] for key in ("seconds", "turns"))
    found = {name: seconds / steps for name, seconds in cpu.items()}
    return found | {"rate": sum(each), "busy": cpu["worker"] / wall, "device": used / wall, "turn": steps / max(1.0, turns)}


def _stats(port: int) -> dict[str, float]:
    """Device seconds and turns of all clients so far, asked by a client that leaves at once."""
    gt.connect(f"localhost:{port}")
    (stats,) = gt.debug.get_worker_stats().values()
    gt.disconnect()
    return {key: sum(share.get(key, 0.0) for share in stats["shares"].values()) for key in ("seconds", "turns")}


def _cpu(processes: list[psutil.Process]) -> float:
    return float(sum(sum(p.cpu_times()[:2]) for p in processes))


CASES: dict[str, Callable[[], Iterator[Result]]] = {"share-bound": bound}

if __name__ == "__main__":  # `share_bound.py SCRIPT`: with a worker that a script runs
    from run import line

    result: dict[str, Any]
    for result in bound(*sys.argv[1:]):
        print(line(result), flush=True)
