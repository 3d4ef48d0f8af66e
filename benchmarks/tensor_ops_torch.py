"""silu, both gelus and rms_norm of tensor_ops_cpp against torch: every dtype, with and without `out=`, one thread and all.

Both run alternately on the same torch tensors, in a process for each number of threads: the Arm Compute Library, which torch's
gelu (erf) is on 64-bit ARM, takes its number from OMP_NUM_THREADS alone. `ratio` is how many times as fast GT is, best of many.
A round goes through all comparisons, so that the tries of one lie seconds apart: another program that takes the memory or a
core's other thread for a second does not decide it. The lines "vs copy" give the part of a plain copy's speed.
`python benchmarks/run.py tensor_ops_torch`, or alone, with `--quick` for a third of the rounds, `python
benchmarks/tensor_ops_torch.py`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from gt.tensor_ops import calls, choice
from gt.tensor_ops.measure import alternately

SHAPE = (1024, 4096)
DTYPES = ("float32", "float16", "bfloat16")
ROUNDS = 9
# libgomp's threads spin for tens of milliseconds after a loop where the CPU's pause is long, and take the cores from whoever
# runs next.
PAUSE, BURST = 0.1, 10
EPS = 1e-6


def threads() -> list[int]:
    every = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return sorted({1, every})


def pairs(torch: Any, cpp: Any, dtype: str) -> Iterator[tuple[str, Callable, Callable]]:
    """Each way to call each op: its name, GT's call and torch's. torch's rms_norm has no `out`."""
    functional, aten = torch.nn.functional, torch.ops.aten
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    weight, out, other = x[0].clone(), torch.empty_like(x), torch.empty_like(x)
    yield "silu out=", lambda: calls.silu(cpp, x, out), lambda: aten.silu.out(x, out=other)
    yield "silu fresh", lambda: calls.silu(cpp, x), lambda: functional.silu(x)
    for form in ("tanh", "none"):
        gelu = lambda form=form: aten.gelu.out(x, approximate=form, out=other)
        yield f"gelu {form} out=", lambda form=form: calls.gelu(cpp, x, form, out), gelu
        fresh = lambda form=form: functional.gelu(x, approximate=form)
        yield f"gelu {form} fresh", lambda form=form: calls.gelu(cpp, x, form), fresh
    norm = lambda: functional.rms_norm(x, weight.shape, weight, EPS)
    yield "rms_norm out=", lambda: calls.rms_norm(cpp, x, weight, EPS, out), norm
    yield "rms_norm fresh", lambda: calls.rms_norm(cpp, x, weight, EPS), norm
    raw = [t.view(torch.int16).numpy() if dtype != "float32" else t.numpy() for t in (x, out)]
    yield "silu out= vs copy", lambda: calls.silu(cpp, x, out), lambda: cpp.copy(*raw)


def of_threads(count: int, rounds: int) -> Iterator[dict[str, Any]]:
    import torch

    cpp = choice.module("cpp")
    used = cpp.get_optimization_info()["instruction_set"]
    torch.set_num_threads(count)
    cpp.set_threads(count)
    compared = {f"{dtype} {name}": calls for dtype in DTYPES for name, *calls in pairs(torch, cpp, dtype)}
    best = {name: {"gt": float("inf"), "rival": float("inf")} for name in compared}
    for _ in range(rounds):
        for name, (mine, theirs) in compared.items():
            took = alternately({"gt": mine, "rival": theirs}, 1, pause=PAUSE, burst=BURST)
            best[name] = {who: min(best[name][who], took[who]) for who in took}
    for name, took in best.items():
        case = f"{used} {count} thread{'s' * (count > 1)} {name}"
        ratio = took["rival"] / took["gt"]
        yield {"case": case, "gt": took["gt"] * 1e3, "rival": took["rival"] * 1e3, "unit": "ms", "ratio": ratio}


def cases(rounds: int = ROUNDS) -> Iterator[dict[str, Any]]:
    """One dict a comparison: case, gt, rival, unit, ratio."""
    for count in threads():
        command = [sys.executable, __file__, "--threads", str(count), str(rounds)]
        environ = {**os.environ, "OMP_NUM_THREADS": str(count)}
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                yield json.loads(line)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")


CASES = {"tensor_ops_torch": cases}

if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["--threads"]:
        found = of_threads(*map(int, arguments[1:]))
    else:
        found = cases(ROUNDS // 3 if "--quick" in arguments else ROUNDS)
    for row in found:
        print(
            json.dumps({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}), flush=True
        )
