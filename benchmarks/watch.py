"""What watching costs: the same work with an observer and without, in turns. The "rival" is the run that nobody watches: a
ratio of 0.97 means that watching costs 3% of the throughput. Where other programs keep the machine busy, the CPU seconds
that client, dispatcher and worker take together (`-cpu`) say more."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
from measure import Result, rates, took

import gt
from gt.client.here import here

ROUNDS = 7
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
        if watching or level:
            process.stdin.write(f"{level}\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            process.stdout.readline()  # type: ignore[union-attr]
        watching = level > 0
        gt.ones(2).numpy()

    try:
        yield watch
    finally:
        process.kill()
        process.wait()


def cpu() -> float:
    """Seconds of CPU time of client, dispatcher and worker so far; not of whoever watches."""
    own = psutil.Process()
    parts = [own, *(p for p in own.children() if "gt." in " ".join(p.cmdline()) and "-c" not in p.cmdline())]
    return sum(sum(p.cpu_times()[:2]) for p in parts)


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


def watch() -> Iterator[Result]:
    """Throughput of work that is watched, and of the same that is not."""
    gt.ones(2).numpy()
    with observer() as look:
        for name, level, work in cases():
            times: dict[int, list[tuple[float, float]]] = {level: [], 0: []}
            for _ in range(ROUNDS):
                for at in times:
                    look(at)
                    work()
                    before = cpu()
                    wall = took(work)
                    times[at].append((wall, cpu() - before))
            for i, suffix in enumerate(("", "-cpu")):
                mine, theirs = (min(t[i] for t in times[at]) for at in (level, 0))
                yield rates(name + suffix, 1 / mine, 1 / theirs, "runs/s" if not i else "runs/CPU second")


CASES = {"watch": watch}
