"""The cost of watching: the same work with an observer and without, alternately. The "rival" is the run that nobody watches: a
ratio of 0.97 means that watching costs 3% of the throughput. The work goes on for a moment after an observer came or went
before it is measured, so that these are rates of a steady state. A ratio is the median over rounds of watched, alone, alone,
watched, which cancels a drift of the machine's speed, with its 95% interval (`low`, `high`). CPU seconds of client, dispatcher
and worker, and of all three (`-cpu`), include the time for which they poll."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from measure import Result, rates, took

import gt
from gt.client.here import here

ROUNDS = 20
SETTLE = 0.3  # seconds of work after an observer came or went, before it is measured
MEASURED = 0.4  # seconds of work that is measured at once
MODULES = {"dispatcher": "gt.server", "worker": "gt.worker"}
PARTS = ("client", "dispatcher", "worker")
OBSERVER = """
import sys
from gt.watch.listen import Listener
for line in sys.stdin:
    level = int(line)
    listener = Listener(sys.argv[1], level)
    print("on", flush=True)
    while True:
        for watched in listener.take(0.05):
            pass
        import select
        if select.select([sys.stdin], [], [], 0)[0]:
            sys.stdin.readline()
            listener.close()
            print("off", flush=True)
            break
"""


@contextmanager
def observer() -> Iterator[Callable[[int], None]]:
    """A function that has another process watch at a level, or nobody (0)."""
    address = here().session.link.address  # type: ignore[attr-defined]
    process = subprocess.Popen(
        [sys.executable, "-c", OBSERVER, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    watching = False

    def watch(level: int) -> None:
        nonlocal watching
        for word in ([0] if watching else []) + ([level] if level else []):  # the first ends the last observation
            process.stdin.write(f"{word}\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            process.stdout.readline()  # type: ignore[union-attr]
        watching = level > 0
        gt.ones(2).numpy()

    try:
        yield watch
    finally:
        process.kill()
        process.wait()


def cpu() -> dict[str, float]:
    """Seconds of CPU time so far, of client, dispatcher and worker; not of whoever watches."""
    own = psutil.Process()
    parts = {"client": own.pid}
    for child in own.children():
        words = child.cmdline()
        parts |= {part: child.pid for part, module in MODULES.items() if module in words}
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
        for _ in range(400):
            loss = ((model(x) - target) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        loss.item()

    return work


def cases() -> Iterator[tuple[str, int, Callable[[], Any]]]:
    for name, make in (("chain", chain), ("mlp", mlp)):
        work = make()
        for _ in range(3):
            work()
        yield f"watch-{name}", 1, work  # as `gt top` does: SAMPLED
        yield f"watch-{name}-every", 2, work  # as `gt trace` does: EVERY


def measured(work: Callable[[], Any], times: int) -> dict[str, float]:
    """Seconds by the clock and of each process, for so many runs of the work."""
    before = cpu()
    wall = took(lambda: [work() for _ in range(times)])
    return {"": wall, **{part: now - before[part] for part, now in cpu().items()}}


def watch() -> Iterator[Result]:
    """Throughput of work that is watched, and of the same that is not; for each process its CPU time."""
    gt.ones(2).numpy()
    with observer() as look:
        for name, level, work in cases():
            seconds = min(took(work) for _ in range(3))
            settle, times = (math.ceil(length / seconds) for length in (SETTLE, MEASURED))
            rounds: dict[int, list[dict[str, float]]] = {level: [], 0: []}
            for i in range(ROUNDS):
                for at in (level, 0, 0, level) if i % 2 else (0, level, level, 0):
                    look(at)
                    measured(work, settle)
                    rounds[at].append(measured(work, times))
            yield compared(name, times, rounds[level], rounds[0], "runs/s", ("",))
            yield compared(f"{name}-cpu", times, rounds[level], rounds[0], "runs/CPU second", PARTS)
            for part in PARTS:
                yield compared(f"{name}-{part}", times, rounds[level], rounds[0], "runs/CPU second", (part,))


def compared(
    case: str, times: int, watched: list[dict[str, float]], alone: list[dict[str, float]], unit: str, parts: tuple[str, ...]
) -> Result:
    """The rates of both, and the median of their ratios in each round of two, with its 95% interval."""
    mine, theirs = ([sum(each[part] for part in parts) for each in taken] for taken in (watched, alone))
    ratios = sorted((theirs[i] + theirs[i + 1]) / (mine[i] + mine[i + 1]) for i in range(0, len(mine), 2))
    below = max(0, int((len(ratios) - 1.96 * math.sqrt(len(ratios))) / 2))  # order statistics: the median's interval
    found = rates(case, times / statistics.median(mine), times / statistics.median(theirs), unit)
    return {**found, "ratio": statistics.median(ratios), "low": ratios[below], "high": ratios[-1 - below]}


CASES = {"watch": watch}
