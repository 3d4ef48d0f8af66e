"""The cost of replay, and its gain where traces are compiled: `GT_AUTO_COMPILE=1`, in a process of its own, measured once
all is compiled."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from measure import Result, best, times, took

import gt

DEADLINE = 400.0  # seconds to wait for the compiler


def compiled() -> bool:
    """Whether a compiled form has run and none is still to come."""
    found = [w["replay"] for w in gt.debug.get_worker_stats().values()]
    for r in found:
        if r["fallbacks"]:
            raise RuntimeError(f"not compiled: {r['fallbacks']}")
    return any(r["compiled_executions"] for r in found) and not any(r["compiling"] for r in found)


def warm(run: Callable[[], Any]) -> None:
    """Run until all is compiled."""
    end = time.monotonic() + DEADLINE
    for _ in range(6):
        run()
    while not compiled():
        if time.monotonic() > end:
            raise RuntimeError(f"nothing was compiled within {DEADLINE:g} s")
        time.sleep(1.0)  # the compiler wants the cores
        run()


def chain_ratio() -> Iterator[Result]:
    from stream import chains

    ours, theirs = chains()
    warm(ours)
    yield times("chain_compiled", *best(ours, theirs, 9), "us/op")


def mlp_ratio() -> Iterator[Result]:
    from compute import steps
    from models import MLP, torch_mlp

    sizes, n = (784, 256, 10), 50
    model, other = MLP(sizes), torch_mlp(sizes)
    mine = (model, gt.optim.SGD(model.parameters(), lr=0.01), gt.randn(128, 784), gt.randn(128, 10), n)
    theirs = (other, torch.optim.SGD(other.parameters(), lr=0.01), torch.randn(128, 784), torch.randn(128, 10), n)
    warm(lambda: steps(*mine))
    steps(*theirs)
    yield times("mlp_compiled", *best(lambda: steps(*mine), lambda: steps(*theirs), 8), "us/step")


def gpt_ratio() -> Iterator[Result]:
    from models import gpt, gpt_step

    def stepper(lib: Any) -> Callable[[], float]:
        model = gpt(lib)
        optimizer = lib.optim.AdamW(model.parameters(), lr=3e-4)
        ids, targets = (lib.randint(0, 65, (1, 256)) for _ in range(2))
        places = lib.arange(256)

        def run(n: int = 2) -> float:
            def work() -> None:
                for _ in range(n):
                    loss = gpt_step(lib, model, optimizer, ids, targets, places)
                loss.item()

            return took(work) / n * 1e3

        return run

    ours, theirs = stepper(gt), stepper(torch)
    warm(ours)
    theirs()
    yield times("gpt_compiled", *best(ours, theirs, 4), "ms/step")


INSIDE = {"chain_compiled": chain_ratio, "mlp_compiled": mlp_ratio, "gpt_compiled": gpt_ratio}


def apart(name: str) -> Callable[[], Iterator[Result]]:
    """A case of INSIDE in a process of its own, where traces are compiled."""

    def case() -> Iterator[Result]:
        env = {**os.environ, "GT_AUTO_COMPILE": "1"}
        done = subprocess.run([sys.executable, __file__, name], env=env, stdout=subprocess.PIPE, text=True, check=True)
        yield from map(json.loads, done.stdout.splitlines())

    case.__doc__ = f"{name.removesuffix('_compiled')}, with its traces compiled."
    return case


def overhead() -> Iterator[Result]:
    """A step of 500 small ops: microseconds a step beyond those of its kernels, against the bound (the rival)."""
    a, b = gt.full((16, 16), 0.999), gt.full((16, 16), 0.001)

    def step(x: Any, a: Any = a, b: Any = b) -> Any:
        for _ in range(250):
            x = x * a + b
        return x

    def kernels() -> float:
        with torch.inference_mode():
            x, ta, tb = torch.ones(16, 16), torch.full((16, 16), 0.999), torch.full((16, 16), 0.001)
            return min(took(lambda: step(x, ta, tb)) for _ in range(5)) * 1e6

    def read_each() -> float:
        x = gt.ones(16, 16)

        def work() -> None:
            for _ in range(20):
                step(x).numpy()

        return took(work) / 20 * 1e6

    run = gt.compile(step)

    def captured() -> float:
        x = gt.ones(16, 16)

        def work() -> None:
            for _ in range(20):
                y = run(x)
            y.numpy()

        return took(work) / 20 * 1e6

    for case, mine, most in (("step_overhead", read_each, 400.0), ("step_overhead_compile", captured, 60.0)):
        mine(), mine()
        whole, alone = best(mine, kernels, 12)
        yield times(case, max(whole - alone, 1e-3), most, "us/step over")


def search_cost(n: int) -> float:
    """Microseconds of the client's thread for each of `n` ops in which nothing repeats."""
    from gt.client.tracer import Tracer
    from gt.ops.table import TABLE, infer
    from gt.spec import Spec, float32

    draw, per_batch = random.Random(0), 200
    kinds = {k: infer(TABLE["mul"], (Spec((k,), float32),) * 2, ()) for k in range(1, 65)}
    tracer = Tracer(iter(range(1000, 10**9)).__next__, kinds)
    batches = []
    for first in range(1, n, per_batch):
        ids = range(first, first + per_batch)
        batches.append([i for id in ids for i in ((draw.randint(1, 64), id, id - 1, max(1, id - 3)), (0, id - 4))])
    before = time.thread_time()  # of this thread alone: others may want the core
    for batch in batches:
        tracer.fold(batch, False, True)
    seconds = time.thread_time() - before
    assert tracer.hits == 0
    return seconds / n * 1e6


def cost() -> Iterator[Result]:
    """The client's cost an op of the search for repeats where nothing repeats, against the bound (the rival)."""
    yield times("trace_cost", min(search_cost(40_000) for _ in range(5)), 0.5, "us/op")


CASES = {name: apart(name) for name in INSIDE} | {"step_overhead": overhead, "trace_cost": cost}

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    for result in INSIDE[sys.argv[1]]():
        print(json.dumps(result), flush=True)
