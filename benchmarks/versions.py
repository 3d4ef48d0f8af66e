"""`python benchmarks/versions.py BEFORE AFTER [CASE ...]`: two checkouts of GT with their extensions built, in turns.

A case of `BURSTS` has a live client of either version with a cluster of its own, and they take turns of some hundredths of a
second in random order. Two clusters of one version differ by some percent for as long as they live, so several are started one
after another, and each start counts once, by the median of its pairs' ratios. Any other case is one of `run.py`, run by either
version's own in turns. A ratio under 1 means that AFTER takes less time: the median, with its 95% interval, and the ratio of
the best of each. Both versions run the loops and models of this folder."""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain as chain_of
from pathlib import Path
from typing import Any

from measure import interval, took

STARTS, ROUNDS = 10, 40  # of a loop's clients, and pairs of turns of a start
RUNS = 5  # pairs of another case
BURSTS: dict[str, tuple[int, Callable[[], Callable[[], Any]]]] = {}  # steps of a turn, and the maker of a step
Pair = tuple[float, float]


def loop(steps: int) -> Callable[[Callable[[], Callable[[], Any]]], Callable[[], Callable[[], Any]]]:
    def add(make: Callable[[], Callable[[], Any]]) -> Callable[[], Callable[[], Any]]:
        BURSTS[make.__name__.replace("_", "-")] = steps, make
        return make

    return add


@loop(3000)
def chain() -> Callable[[], Any]:
    import gt

    value = gt.ones(16, 16)

    def step() -> Any:
        nonlocal value
        value = value + 1.0
        return value

    return step


@loop(200)
def issue() -> Callable[[], Any]:
    import gt

    return _dropped_products(gt.ones(16, 16), gt.full((16, 16), 0.999))


@loop(200)
def issue_tape() -> Callable[[], Any]:
    import gt

    return _dropped_products(gt.ones(16, 16, requires_grad=True), gt.full((16, 16), 0.999))


def _dropped_products(x: Any, a: Any) -> Callable[[], Any]:
    """As the case `issue` of run.py: an op whose result is dropped; the value to read is one that is there. A call with a
    result to read would be sent early, and the worker would compete with the client."""

    def step() -> Any:
        x * a  # noqa: B018
        return x

    return step


def _mlp(*sizes: int, batch: int) -> Callable[[], Any]:
    from models import MLP

    import gt

    model = MLP(sizes)
    optimizer = gt.optim.SGD(model.parameters(), lr=0.01)
    x, y = gt.randn(batch, sizes[0]), gt.randn(batch, sizes[-1])

    def step() -> Any:
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


@loop(50)
def mlp() -> Callable[[], Any]:
    return _mlp(784, 256, 10, batch=128)


@loop(2)
def mlp_large() -> Callable[[], Any]:
    return _mlp(1024, 4096, 4096, 1024, batch=256)


@loop(3)
def gpt() -> Callable[[], Any]:
    from models import gpt as model_of
    from models import gpt_step

    import gt

    model, ids, places = model_of(gt), gt.randint(0, 65, (1, 256)), gt.arange(256)
    optimizer = gt.optim.AdamW(model.parameters(), lr=3e-4)
    return lambda: gpt_step(gt, model, optimizer, ids, ids, places)


@loop(5)
def step_overhead() -> Callable[[], Any]:
    """Of 500 small ops and a read, as the case of this name."""
    import gt

    first, a, b = gt.ones(16, 16), gt.full((16, 16), 0.999), gt.full((16, 16), 0.001)

    def step() -> Any:
        x = first
        for _ in range(250):
            x = x * a + b
        x.numpy()
        return x

    return step


def client(case: str) -> None:
    """Takes one turn for each line of the input, and prints its microseconds a step. Of `issue` the issuing of 200 ops behind a
    read is measured, the client thread's time alone, of others also the read of the last result."""
    steps, make = BURSTS[case]
    step, read_inside = make(), not case.startswith("issue")

    def burst(steps: int, read: bool) -> Any:
        for _ in range(steps):
            last = step()
        return last.detach().numpy() if read else last

    for _ in range(8):
        burst(steps, True)
    print("ready", flush=True)
    for _ in sys.stdin:
        burst(max(1, steps // 5), True)  # the other version had the caches
        print(took(lambda: burst(steps, read_inside)) / steps * 1e6, flush=True)


def live(trees: list[Path], case: str, starts: int) -> dict[str, list[list[Pair]]]:
    return {case: [_start(trees, case) for _ in range(starts)]}


def _start(trees: list[Path], case: str) -> list[Pair]:
    with ExitStack() as stack:
        clients = [stack.enter_context(_python(tree, __file__, "--client", case, cwd=tree)) for tree in trees]
        for each in clients:
            stack.callback(each.kill)
            if each.stdout.readline() != "ready\n":
                raise SystemExit(f"{case}: the client of {trees[clients.index(each)]} did not start")
        return [_pair(clients) for _ in range(ROUNDS)]


def _python(tree: Path, *command: str, cwd: Path) -> Any:
    path = os.pathsep.join(filter(None, (str(tree), os.environ.get("PYTHONPATH"))))
    env, pipe = os.environ | {"PYTHONPATH": path}, subprocess.PIPE
    return subprocess.Popen([sys.executable, *command], cwd=cwd, env=env, stdin=pipe, stdout=pipe, text=True, bufsize=1)


def _pair(clients: list[Any]) -> Pair:
    found = [0.0, 0.0]
    for at in random.sample((0, 1), 2):
        clients[at].stdin.write("\n")
        found[at] = float(clients[at].stdout.readline())
    return found[0], found[1]


def whole(trees: list[Path], case: str, runs: int) -> dict[str, list[list[Pair]]]:
    """The results of `run.py CASE` that both versions have."""
    found: dict[str, list[list[Pair]]] = {}
    for i in range(runs):
        figures = {at: dict(_figures(trees[at], case)) for at in ((0, 1) if i % 2 else (1, 0))}
        for name in figures[0].keys() & figures[1].keys():
            found.setdefault(name, []).append([(figures[0][name], figures[1][name])])
    return found


def _figures(tree: Path, case: str) -> Iterator[tuple[str, float]]:
    """Of each result its time: of a rate, that of one."""
    with _python(tree, "benchmarks/run.py", case, "--json", cwd=tree) as process:
        lines = process.stdout.read().splitlines()
    if process.returncode:
        raise SystemExit(f"{tree}: run.py {case} ended with {process.returncode}")
    for result in (json.loads(line) for line in lines if line.startswith("{")):
        is_rate = result["unit"].split("/")[-1] in ("s", "CPU second")
        yield result["case"], 1 / result["gt"] if is_rate else result["gt"]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Two checkouts of GT in turns: under 1, AFTER takes less time.")
    parser.add_argument("trees", nargs=2, type=Path, metavar="TREE", help="checkouts with the extension built: BEFORE AFTER")
    known = f"{', '.join(BURSTS)}, or a case of run.py (chain, issue, mlp and gpt)"
    parser.add_argument("cases", nargs="*", metavar="CASE", default=["chain", "issue", "mlp", "gpt"], help=known)
    parser.add_argument("--starts", type=int, help=f"of each loop ({STARTS}), or runs of a case of run.py ({RUNS})")
    asked = parser.parse_args(argv)
    trees = [tree.resolve() for tree in asked.trees]
    for case in asked.cases:
        way, starts = (live, STARTS) if case in BURSTS else (whole, RUNS)
        for name, found in way(trees, case, asked.starts or starts).items():
            medians = [statistics.median(after / before for before, after in pairs) for pairs in found]
            low, ratio, high = interval(medians)
            best = [min(each) for each in zip(*chain_of(*found))]
            print(f"{name:<20} {ratio:.3f} [{low:.3f}, {high:.3f}]  best {best[0]:.4g} {best[1]:.4g} {best[1] / best[0]:.3f}",
                  flush=True)  # fmt: skip
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        client(sys.argv[2])
    else:
        sys.exit(main())
