"""The cost of watching: the same work with an observer and without. Two live clusters take turns of some hundredths of a
second, one of them watched, in the order A B B A, which cancels a drift of the machine's speed; after each round the observer
moves to the other one, which cancels differences between the clusters. After each move the work goes on for a moment before it
is measured. The "rival" is the cluster that nobody watches: a ratio of 0.97 means that watching costs 3% of the throughput. Of
two turns right after one another, before the observer moved and after it, it is the geometric mean of both ratios; told is the
median over all such pairs, some hundreds, with the ends of its 95% interval by resampling (`low`, `high`). Workers have one
thread each. CPU seconds of client, dispatcher and worker, and of all three (`-cpu`), include the time for which they poll."""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import chain as joined
from pathlib import Path
from typing import Any

import psutil
from measure import Result, rates, took

import gt
from gt.client.here import here

PAIRS = int(os.environ.get("WATCH_PAIRS", "12"))  # of rounds
CHOSEN = os.environ.get("WATCH_CASES", "chain chain-every mlp mlp-every").split()
SETTLE = 0.7  # seconds of work after the observer moved, before it is measured: two reports of a sample
TURN, TURNS = 0.06, 24  # seconds of a turn, and turns of each cluster in a round
MODULES = {"dispatcher": "gt.server", "worker": "gt.worker"}
PARTS = ("client", "dispatcher", "worker")
LEVELS = {"": 1, "-every": 2}  # as `gt top` watches, SAMPLED, and as `gt trace` does, EVERY
OBSERVER = """
import select, sys
from gt.watch.listen import Listener
for line in sys.stdin:
    listener = Listener(sys.argv[1], int(line))
    print("on", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        for watched in listener.take(0.2):
            pass
    sys.stdin.readline()
    listener.close()
    print("off", flush=True)
"""


class Talk:
    """A process that answers each line with a line."""

    def __init__(self, *command: str) -> None:
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        pipe, env = subprocess.PIPE, {**os.environ, **threads}
        self.process = subprocess.Popen([sys.executable, *command], stdin=pipe, stdout=pipe, text=True, env=env)

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, line: object) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.answer()

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *exc: object) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.process.kill()
        self.process.wait()


class WatchedCluster:
    """A client with a cluster of its own, in other processes, and an observer that watches it on request."""

    def __init__(self, stack: ExitStack, case: str) -> None:
        self.client = stack.enter_context(Talk(__file__, case))
        self.observer = stack.enter_context(Talk("-c", OBSERVER, self.client.answer()))
        self.level = 0

    def watch(self, level: int) -> None:
        for word in ([0] if self.level else []) + ([level] if level else []):  # the first ends the last observation
            self.observer.ask(word)
        self.level = level

    def work(self, times: int) -> dict[str, float]:
        """Seconds by the clock and of each process, for so many runs of the work."""
        found: dict[str, float] = json.loads(self.client.ask(times))
        return found


def processes() -> dict[str, int]:
    """The process ids of client, dispatcher and worker."""
    own = psutil.Process()
    parts = {"client": own.pid}
    for child in own.children():
        words = child.cmdline()
        parts |= {part: child.pid for part, module in MODULES.items() if module in words}
    return parts


def cpu(parts: dict[str, int]) -> dict[str, float]:
    """Seconds of CPU time so far."""
    return {part: process_seconds(pid) for part, pid in parts.items()}


def process_seconds(pid: int) -> float:
    """Of all threads of a process, as the scheduler counts it: `cpu_times` comes in hundredths of a second."""
    times = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has ended
            times += int((task / "schedstat").read_text().split()[0])
    return times / 1e9


def chain() -> Callable[[], Any]:
    x, a, b = gt.ones(16, 16), gt.full((16, 16), 0.999), gt.full((16, 16), 0.001)

    def work() -> None:
        for _ in range(20):
            y = x
            for _ in range(1000):
                y = y * a + b
            y.numpy()

    return work


def mlp() -> Callable[[], Any]:
    model = gt.nn.Sequential(gt.nn.Linear(784, 256), gt.nn.ReLU(), gt.nn.Linear(256, 10))
    optimizer = gt.optim.SGD(model.parameters(), lr=0.01)
    x, target = gt.randn(128, 784), gt.randn(128, 10)

    def work() -> None:
        for _ in range(25):
            loss = ((model(x) - target) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        loss.item()

    return work


WORK = {"chain": chain, "mlp": mlp}


def serve(case: str) -> None:
    """A client: tells its server's address, and then for each number that it is told the seconds of so many runs."""
    gt.ones(2).numpy()
    work = WORK[case]()
    for _ in range(5):
        work()
    print(here().session.link.address, flush=True)  # type: ignore[attr-defined]
    parts = processes()
    for line in sys.stdin:
        before, times = cpu(parts), int(line)
        wall = took(lambda: [work() for _ in range(times)])  # noqa: B023
        print(json.dumps({"": wall, **{part: now - before[part] for part, now in cpu(parts).items()}}), flush=True)


Turn = tuple[dict[str, float], dict[str, float]]  # seconds of a run by part, of the cluster that is watched and of the other


def measured(clusters: list[WatchedCluster], watched: int, level: int) -> list[Turn]:
    """The turns of a round."""
    clusters[1 - watched].watch(0)
    clusters[watched].watch(level)
    one = min(cluster.work(1)[""] for cluster in clusters for _ in range(3))
    for cluster in clusters:
        cluster.work(math.ceil(SETTLE / one))
    times, turns = max(1, round(TURN / one)), list[Turn]()
    for i in range(TURNS):
        order = (watched, 1 - watched) if i % 2 else (1 - watched, watched)
        spent = {which: clusters[which].work(times) for which in order}
        mine, alone = ({part: s / times for part, s in spent[which].items()} for which in (watched, 1 - watched))
        turns.append((mine, alone))
    return turns


def watch() -> Iterator[Result]:
    """Throughput of work that is watched, and of the same that is not; for each process its CPU time."""
    for case in WORK:
        levels = {name: level for name, level in LEVELS.items() if f"{case}{name}" in CHOSEN}
        with ExitStack() as stack:
            clusters = [WatchedCluster(stack, case) for _ in range(2 if levels else 0)]
            for name, level in levels.items():
                rounds = (zip(*[measured(clusters, watched, level) for watched in (0, 1)]) for _ in range(PAIRS))
                pairs = [list(both) for both in rounds]
                label = f"watch-{case}{name}"
                yield compared(label, pairs, "runs/s", ("",))
                yield compared(f"{label}-cpu", pairs, "runs/CPU second", PARTS)
                for part in PARTS:
                    yield compared(f"{label}-{part}", pairs, "runs/CPU second", (part,))


def compared(case: str, pairs: list[list[tuple[Turn, Turn]]], unit: str, parts: tuple[str, ...]) -> Result:
    """The rates of both, and the median of their ratios, with its 95% interval. Turns of one round are more alike than those
    of two, so pairs of rounds are resampled, with all their turns."""
    sums = [[[[sum(spent[part] for part in parts) for spent in turn] for turn in pair] for pair in both] for both in pairs]
    ratios = [[math.sqrt(math.prod(alone / mine for mine, alone in pair)) for pair in both] for both in sums]
    mine, alone = (statistics.median(turn[i] for both in sums for pair in both for turn in pair) for i in (0, 1))
    chosen = random.Random(0)
    medians = sorted(statistics.median(joined.from_iterable(chosen.choices(ratios, k=len(ratios)))) for _ in range(1000))
    found = rates(case, 1 / mine, 1 / alone, unit)
    return {**found, "ratio": statistics.median(joined.from_iterable(ratios)), "low": medians[25], "high": medians[974]}


CASES = {"watch": watch}
if __name__ == "__main__":
    serve(sys.argv[1])
