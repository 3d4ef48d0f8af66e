"""What watching costs: the same work with an observer and without, in turns. The "rival" is the run that nobody watches: a
ratio of 0.97 means that watching costs 3% of the throughput. Where other programs keep the machine busy, the CPU seconds
of client, dispatcher and worker, and of all three (`-cpu`), say more. Medians of several rounds."""

from __future__ import annotations

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

ROUNDS = 9
MODULES = {"dispatcher": "gt.server", "worker": "gt.worker"}
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
        for word in ([0] if watching else []) + ([level] if level else []):  # the first ends what there was
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
        for _ in range(50):
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


def measured(work: Callable[[], Any]) -> dict[str, float]:
    """Seconds by the clock and of each process, for one run of the work."""
    before = cpu()
    wall = took(work)
    return {"": wall, **{part: now - before[part] for part, now in cpu().items()}}


def watch() -> Iterator[Result]:
    """Throughput of work that is watched, and of the same that is not; for each process its CPU time."""
    gt.ones(2).numpy()
    with observer() as look:
        for name, level, work in cases():
            times: dict[int, list[dict[str, float]]] = {level: [], 0: []}
            for i in range(ROUNDS):
                for at in sorted(times, reverse=bool(i % 2)):  # in turns, and neither always first
                    look(at)
                    work()
                    times[at].append(measured(work))
            mine, theirs = (medians(times[at]) for at in (level, 0))
            yield rates(name, 1 / mine[""], 1 / theirs[""], "runs/s")
            whole = [sum(seconds for part, seconds in each.items() if part) for each in (mine, theirs)]
            yield rates(f"{name}-cpu", 1 / whole[0], 1 / whole[1], "runs/CPU second")
            for part in ("client", "dispatcher", "worker"):
                yield rates(f"{name}-{part}", 1 / mine[part], 1 / theirs[part], "runs/CPU second")


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {part: statistics.median(each[part] for each in rounds) for part in rounds[0]}


CASES = {"watch": watch}
