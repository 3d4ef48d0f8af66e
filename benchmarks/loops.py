"""`python benchmarks/loops.py [LOOP ...] [--size large] [--rivals eager,compile,reduce-overhead]`: training and other loops as
people write them, the same code for GT and PyTorch, a fresh batch from NumPy in every step.

A loop is a function of a `Setting`; it gives a function that takes n steps and returns the numbers it has read. All begin with
the same weights and draw the same batches, so those numbers are compared before anything is timed."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from client_time import Alone
from measure import interval

import gt as GT
from gt.client.here import here

Steps = Callable[[int], list[float]]
RIVALS = ("eager", "compile", "reduce-overhead")
BATCHES = 16  # different batches, made before any clock runs
SETTLED = 0.05  # seconds after which threads have stopped to spin for the next kernel of the one measured before
BURST = 0.1  # least seconds of a round


@dataclass
class Setting:
    """Where a loop runs: `lib` is `gt` or `torch`, `device` PyTorch's name of the device, `compiled` the wrapper of a
    function that PyTorch may compile."""

    lib: Any
    device: str
    large: bool
    compiled: Callable[[Any], Any] = lambda function: function
    kept: Callable[[Any], Any] = lambda tensor: tensor  # a copy of a CUDA graph's result, which its next call overwrites
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def put(self, array: np.ndarray) -> Any:
        """An array where the loop computes."""
        made = self.lib.from_numpy(array)
        return made if self.lib is GT else made.to(self.device)

    def model(self, make: Callable[[Any], Any]) -> Any:
        """`make(lib)`, with the weights that PyTorch draws from seed 0."""
        torch.manual_seed(0)
        first = make(torch)
        if self.lib is torch:
            return first.to(self.device)
        made = make(self.lib)
        made.load_state_dict(first.state_dict())
        return made

    def pick(self, large: Any, small: Any) -> Any:
        return large if self.large else small

    def batches(self, make: Callable[[np.random.Generator], Any]) -> Callable[[int], Any]:
        """The batch of step i: arrays of NumPy, which the loop brings over itself."""
        made = [make(self.rng) for _ in range(BATCHES)]
        return lambda i: made[i % BATCHES]


def classify(at: Setting, model: Any, optimizer: Any, shape: tuple[int, ...], size: int) -> Steps:
    """Batches of `size` inputs of this shape, cross-entropy over ten classes; the loss read every 5 steps."""
    F = at.lib.nn.functional
    data = at.batches(lambda rng: (rng.standard_normal((size, *shape), np.float32), rng.integers(0, 10, size)))
    forward = at.compiled(lambda x, y: F.cross_entropy(model(x), y))

    return training(at, data, forward, optimizer)


def training(at: Setting, data: Callable[[int], Any], loss: Callable[..., Any], optimizer: Any) -> Steps:
    """Steps of an optimizer on `loss` of each batch's arrays; the loss read every 5 steps."""

    def steps(n: int) -> list[float]:
        read = []
        for i in range(n):
            arrays = [at.put(a) for a in data(i)]
            optimizer.zero_grad()
            found = loss(*arrays)
            found.backward()
            optimizer.step()
            if i % 5 == 4:
                read.append(found.item())
        return read

    return steps


@dataclass(frozen=True)
class Loop:
    """`steps` a round; numbers read must agree to `tolerance` (relative, or absolute below 1), those of the first `compare`."""

    make: Callable[[Setting], Steps]
    steps: int = 10
    tolerance: float = 2e-3
    compare: int = 4
    reads: int = 0  # waits for a value in each step, if there are any
    of_eager: float = 1.0  # the least speed on a GPU that is asked for, as a multiple of eager's
    why_on_gpu: str = ""  # the measured reason where it falls short of a rival
    why_on_cpu: str = ""


def all_loops() -> dict[str, Loop]:
    import loops_control
    import loops_images
    import loops_language
    import loops_numeric
    import loops_untuned

    known = (loops_language, loops_images, loops_control, loops_numeric, loops_untuned)
    return {name: loop for module in known for name, loop in module.LOOPS.items()}


def runner(loop: Loop, rival: str, device: str, large: bool) -> Steps:
    """The loop on GT, or on PyTorch as the rival has it."""
    if rival == "gt":
        return loop.make(Setting(GT, device, large))
    if rival == "eager":
        return loop.make(Setting(torch, device, large))
    mode = None if rival == "compile" else rival
    kept = torch.clone if mode and device == "cuda" else lambda tensor: tensor
    return loop.make(Setting(torch, device, large, lambda function: torch.compile(function, mode=mode), kept))


def check(name: str, loop: Loop, rival: str, ours: list[float], theirs: list[float]) -> None:
    """Numbers read in the first steps, side by side."""
    a, b = (np.array(x[: loop.compare], float) for x in (ours, theirs))
    if a.shape != b.shape or not np.allclose(a, b, rtol=loop.tolerance, atol=loop.tolerance):
        raise SystemExit(f"{name}: GT read {a.tolist()} where torch {rival} read {b.tolist()}")


def burst(run: Steps, steps: int) -> float:
    """Milliseconds a step. OpenMP's threads spin for milliseconds after a kernel, on cores that the next one measured needs:
    they are waited for, and steps that are not counted bring caches and threads back."""
    time.sleep(SETTLED)
    run(steps)
    began, n = time.perf_counter(), 0
    while not n or time.perf_counter() - began < BURST:
        run(steps)
        n += steps
    return (time.perf_counter() - began) / n * 1e3


@contextmanager
def measuring(lock: str) -> Iterator[None]:
    """Of several processes with this file, one measures at a time; the others may compile meanwhile."""
    if not lock:
        yield
        return
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def prepared(name: str, loop: Loop, rivals: tuple[str, ...], large: bool, device: str, warm: float) -> dict[str, Steps]:
    """The loop on GT and on each rival, compiled and warm; all have read the same numbers. A rival that cannot run it, as
    reduce-overhead cannot add up gradients in the results of its graphs, is left out with a line."""
    runs = {rival: runner(loop, rival, device, large) for rival in ("gt", *rivals)}
    read: dict[str, list[float]] = {}
    for rival, run in list(runs.items()):
        try:
            read[rival] = run(loop.steps)
        except RuntimeError as refused:
            if rival == "gt":
                raise
            print(f"{name}: {rival} cannot: {str(refused).splitlines()[0][:200]}", file=sys.stderr, flush=True)
            del runs[rival]
            continue
        until = time.perf_counter() + warm  # until the repeat is found, compiled, and the allocators are warm
        for _ in range(3):
            run(loop.steps)
        while time.perf_counter() < until:
            run(loop.steps)
    for rival in read.keys() - {"gt"}:
        check(name, loop, rival, read["gt"], read[rival])
    return runs


def measure(
    name: str, rivals: tuple[str, ...], large: bool, device: str, rounds: int, warm: float, lock: str = ""
) -> dict[str, Any]:
    """Milliseconds a step of GT and of each rival, in turns, the best of several rounds each; and the median of the rounds'
    ratios with its 95% interval, for the best rival."""
    loop = all_loops()[name]
    runs = prepared(name, loop, rivals, large, device, warm)
    times: dict[str, list[float]] = {rival: [] for rival in runs}
    with measuring(lock):
        for _ in range(rounds):
            for rival, run in runs.items():
                times[rival].append(burst(run, loop.steps))
    best = {rival: min(taken) for rival, taken in times.items() if rival != "gt"}
    first = min(best, key=lambda rival: best[rival])
    ours = min(times["gt"])
    low, median, high = interval([theirs / own for theirs, own in zip(times[first], times["gt"])])
    short = best[first] < ours or median < 1 or device == "cuda" and best.get("eager", np.inf) < loop.of_eager * ours
    return {
        "case": name, "gt": ours, "rival": best[first], "unit": "ms/step", "ratio": best[first] / ours, "rivals": best,
        "median": median, "low": low, "high": high,
        "why": why(loop, runs["gt"], device, client_ms(loop, device, large)) if short else "",
    }  # fmt: skip


def why(loop: Loop, run: Steps, device: str, client: float, seconds: float = 0.5) -> str:
    """Where GT's time goes in a loop that falls short: measured here (the client's milliseconds a step before), and by earlier
    profiles."""
    there, steps = device_seconds(), 0
    until = time.perf_counter() + seconds
    while not steps or time.perf_counter() < until:
        run(loop.steps)
        steps += loop.steps
    there = device_seconds() - there
    known = loop.why_on_cpu if device == "cpu" else loop.why_on_gpu
    parts = f"client {client:.2f}, worker {there / steps * 1e3:.2f} ms a step"
    waits = f", {loop.reads} x {way_round():.2f} ms of waiting for a read" if loop.reads else ""
    return f"{parts}{waits}: {known or 'not looked into'}"


def client_ms(loop: Loop, device: str, large: bool, seconds: float = 0.2) -> float:
    """Milliseconds of the client's thread for a step, if reads are answered at once, by zeros: the time in which it spins for
    an answer would count as its own."""
    with Alone():
        run = runner(loop, "gt", device, large)
        for _ in range(8):  # until the repeat is found
            run(loop.steps)
        began, steps = time.thread_time(), 0
        while time.thread_time() - began < seconds:
            run(loop.steps)
            steps += loop.steps
        return (time.thread_time() - began) / steps * 1e3


def way_round() -> float:
    """Milliseconds of one op on a number and its read from a worker, the median of many."""
    x, times, local = GT.ones(()), [], here().session.local
    local.on, before = False, local.on
    for _ in range(300):
        began = time.perf_counter()
        (x + 1).item()
        times.append(time.perf_counter() - began)
    local.on = before
    return sorted(times)[150] * 1e3


def device_seconds() -> float:
    """Seconds of the device that this process has used."""
    return sum(row["seconds"] for row in GT.debug.clients() if row["process"].split(":")[-1] == str(os.getpid()))


def loops(
    names: tuple[str, ...] = (), rivals: tuple[str, ...] = RIVALS, size: str = "", rounds: int = 5, warm: float = 2.0,
    lock: str = "",
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Every loop, of the size for this machine's device where none is given."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    large = (size or ("large" if device == "cuda" else "small")) == "large"
    for name in names or all_loops():
        torch._dynamo.reset() if {"compile", "reduce-overhead"} & set(rivals) else None
        yield measure(name, rivals, large, device, rounds, warm, lock)


def line(result: dict[str, Any]) -> str:
    """One loop: milliseconds of each, the ratio of each rival's to GT's, and why, where it falls short."""
    times = "  ".join(f"{rival} {ms:9.3f}" for rival, ms in result["rivals"].items())
    ratios = "  ".join(f"{ms / result['gt']:5.2f}" for ms in result["rivals"].values())
    pairs = "  median {median:.2f} [{low:.2f}, {high:.2f}]".format(**result) if "median" in result else ""
    why = f"  ({result['why']})" if result["why"] else ""
    return f"{result['case']:<18} gt {result['gt']:9.3f}  {times}  {result['unit']}  ratio {ratios}{pairs}{why}"


CASES = {"loops": loops}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Loops as people write them: GT, PyTorch eager and compiled.")
    parser.add_argument("loops", nargs="*", metavar="LOOP", help=f"which loops (all): {', '.join(all_loops())}")
    parser.add_argument("--size", choices=("small", "large"), default="", help="small on a CPU, large on a GPU")
    parser.add_argument("--rivals", default=",".join(RIVALS), help="which of eager,compile,reduce-overhead (all)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=float, default=2.0, help="seconds of each before the clock runs")
    parser.add_argument("--lock", default="", metavar="FILE", help="several at once: one measures while the others compile")
    parser.add_argument("--json", action="store_true", help="one object a line")
    args = parser.parse_args(argv)
    unknown = [name for name in args.loops if name not in all_loops()]
    if unknown:
        raise SystemExit(f"no loop {unknown[0]!r}: known are {', '.join(all_loops())}")
    rivals = tuple(args.rivals.split(","))
    for result in loops(tuple(args.loops), rivals, args.size, args.rounds, args.warm, args.lock):
        print(json.dumps(result) if args.json else line(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.modules["loops"] = sys.modules["__main__"]
    sys.exit(main())
