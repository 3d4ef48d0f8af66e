"""`python benchmarks/versions.py BEFORE AFTER [CASE ...]`: two checkouts of GT with their extensions built, in turns.

A case of `TURNS` has a live process of either version, with a cluster of its own where it needs one, and they take turns of
some hundredths of a second in random order. Two processes of one version differ by some percent for as long as they live, so
several are started one after another, and each start counts once, by the median of its pairs' ratios. Any other case is one of
`run.py`, run by either version's own in turns. A ratio under 1 means that AFTER takes less time: the median, with its 95%
interval, the best of each, their ratio, and the seconds that the case took to measure. Both versions run the loops and models
of this folder.

Of `step-overhead` a third process times the kernels alone, in PyTorch, in turns with the two. The case of `run.py` is the time
over theirs: a small difference of two times, which may be negative, so that the ratio is that of the whole steps."""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain as chain_of
from pathlib import Path
from typing import Any

from measure import interval, took

STARTS, ROUNDS = 10, 40  # of a case's processes, and pairs of turns of a start
RUNS = 5  # pairs of another case
Make = Callable[[], Callable[[], Any]]
TURNS: dict[str, Callable[[], Callable[[], float]]] = {}  # by case: the maker of a turn, which returns microseconds
BESIDE = {"step-overhead": "kernels"}  # by case: another that takes turns with it in a third process
Times = tuple[float, ...]  # one of each process: of BEFORE, of AFTER, and perhaps of the third


def loop(steps: int) -> Callable[[Make], Make]:
    """Register a case by the maker of its step. A turn has so many steps and the read of the last one's result, if it returns
    one; of `issue` the issuing of ops behind a read is measured, the client thread's time alone."""

    def add(make: Make) -> Make:
        case = make.__name__.replace("_", "-")
        TURNS[case] = lambda: _turns_of(make(), steps, not case.startswith("issue"))
        return make

    return add


def _turns_of(step: Callable[[], Any], steps: int, read_inside: bool) -> Callable[[], float]:
    def burst(steps: int, read: bool) -> Any:
        for _ in range(steps):
            last = step()
        return last.detach().numpy() if read and last is not None else last

    def turn() -> float:
        burst(max(1, steps // 5), True)  # the other version had the caches
        return took(lambda: burst(steps, read_inside)) / steps * 1e6

    return turn


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


@loop(20)
def step_overhead() -> Callable[[], Any]:
    """Of 500 small ops and a read, as the case of this name."""
    import gt

    operands = gt.ones(16, 16), gt.full((16, 16), 0.999), gt.full((16, 16), 0.001)

    def step() -> None:
        _many_ops(*operands).numpy()

    return step


@loop(20)
def kernels() -> Callable[[], Any]:
    """The ops of `step_overhead` in PyTorch."""
    import torch

    operands = torch.ones(16, 16), torch.full((16, 16), 0.999), torch.full((16, 16), 0.001)

    def step() -> None:
        with torch.inference_mode():
            _many_ops(*operands)

    return step


def _many_ops(x: Any, a: Any, b: Any) -> Any:
    for _ in range(250):
        x = x * a + b
    return x


def trace_cost() -> Callable[[], float]:
    from replay import search_cost

    return lambda: search_cost(10_000)


def decide(workers: int) -> Callable[[], float]:
    from stream import deciding

    if workers > 32:  # each client sends one batch of a turn, and the start takes seconds
        core = deciding(workers)
        return lambda: core() * 1e6

    def turn() -> float:
        core = deciding(workers)
        return min(core() for _ in range(5)) * 1e6

    return turn


TURNS["trace-cost"] = trace_cost
TURNS |= {f"decide-{workers}": lambda workers=workers: decide(workers) for workers in (1, 8, 1024)}  # type: ignore[misc]


def client(case: str) -> None:
    """Takes one turn for each line of the input, and prints its microseconds."""
    turn = TURNS[case]()
    for _ in range(8):
        turn()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(turn(), flush=True)


def live(trees: list[Path], case: str, starts: int) -> dict[str, list[list[Times]]]:
    return {case: [_start(trees, case) for _ in range(starts)]}


def _start(trees: list[Path], case: str) -> list[Times]:
    with ExitStack() as stack:
        cases = [(trees[0], case), (trees[1], case)] + ([(trees[1], BESIDE[case])] if case in BESIDE else [])
        clients = [stack.enter_context(_python(tree, __file__, "--client", name, cwd=tree)) for tree, name in cases]
        for each in clients:
            stack.callback(each.kill)
            if each.stdout.readline() != "ready\n":
                raise SystemExit(f"{case}: the client of {cases[clients.index(each)][0]} did not start")
        found = [_in_turns(clients) for _ in range(ROUNDS)]
    print(f"{case}: {statistics.median(after / before for before, after, *_ in found):.3f}", file=sys.stderr, flush=True)
    return found


def _python(tree: Path, *command: str, cwd: Path) -> Any:
    path = os.pathsep.join(filter(None, (str(tree), os.environ.get("PYTHONPATH"))))
    env, pipe = os.environ | {"PYTHONPATH": path}, subprocess.PIPE
    return subprocess.Popen([sys.executable, *command], cwd=cwd, env=env, stdin=pipe, stdout=pipe, text=True, bufsize=1)


def _in_turns(clients: list[Any]) -> Times:
    found = [0.0] * len(clients)
    for at in random.sample(range(len(clients)), len(clients)):
        clients[at].stdin.write("\n")
        found[at] = float(clients[at].stdout.readline())
    return tuple(found)


def whole(trees: list[Path], case: str, runs: int) -> dict[str, list[list[Times]]]:
    """The results of `run.py CASE` that both versions have."""
    found: dict[str, list[list[Times]]] = {}
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


def over_kernels(start: list[Times]) -> tuple[float, float, float]:
    """The medians of the microseconds beyond those of the kernels, and the kernels' own."""
    return (
        statistics.median(before - alone for before, _, alone in start),
        statistics.median(after - alone for _, after, alone in start),
        statistics.median(alone for *_, alone in start),
    )


def lines(case: str, found: list[list[Times]], seconds: float) -> Iterator[str]:
    low, ratio, high = interval([statistics.median(after / before for before, after, *_ in start) for start in found])
    best = [min(each) for each in zip(*chain_of(*found))]
    yield (f"{case:<20} {ratio:.3f} [{low:.3f}, {high:.3f}]  best {best[0]:.4g} {best[1]:.4g} {best[1] / best[0]:.3f}"
           f"  {len(found)} starts, {seconds:.0f} s")  # fmt: skip
    if case in BESIDE:
        before, after, alone = (statistics.median(each) for each in zip(*map(over_kernels, found)))
        yield f"{'  over kernels':<20} {before:.0f} {after:.0f} us over {alone:.0f} us"


def expanded(cases: list[str]) -> Iterator[str]:
    """The cases of `TURNS` by any spelling; `decide` is three."""
    deciding = [name for name in TURNS if name.startswith("decide-")]
    for case in cases:
        spelled = case.replace("_", "-")
        yield from deciding if case == "decide" else [spelled if spelled in TURNS else case]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Two checkouts of GT in turns: under 1, AFTER takes less time.")
    parser.add_argument("trees", nargs=2, type=Path, metavar="TREE", help="checkouts with the extension built: BEFORE AFTER")
    known = f"{', '.join(TURNS)}, decide, or a case of run.py (chain, issue, mlp and gpt)"
    parser.add_argument("cases", nargs="*", metavar="CASE", default=["chain", "issue", "mlp", "gpt"], help=known)
    parser.add_argument(
        "--starts", type=int, help=f"of each case with live processes ({STARTS}), or runs of one of run.py ({RUNS})"
    )
    asked = parser.parse_args(argv)
    trees = [tree.resolve() for tree in asked.trees]
    for case in expanded(asked.cases):
        way, starts = (live, STARTS) if case in TURNS else (whole, RUNS)
        began = time.monotonic()
        for name, found in way(trees, case, asked.starts or starts).items():
            print("\n".join(lines(name, found, time.monotonic() - began)), flush=True)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        client(sys.argv[2])
    else:
        sys.exit(main())
