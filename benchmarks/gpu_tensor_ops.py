"""Bandwidth of the Triton kernels on 1 GiB, next to a measured device copy of the same memory.

    python benchmarks/gpu_tensor_ops.py results.json

Both move each byte twice, once in and once out, and take turns. `ratio` is the kernel's part of the copy's bandwidth: each
is queued behind a spinning kernel, so that no time of Python's counts. `ratio_alone` is that of a call on an idle GPU, where
the checks and the launch of either side count too.
"""

import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

GIB = 1 << 30
COLUMNS = 4096
ROUNDS = 30


SPIN = 2_000_000  # clock cycles, about a millisecond


def milliseconds(torch: Any, run: Callable[[], Any], *, queued: bool) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    if queued:
        torch.cuda._sleep(SPIN)
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def measure() -> list[dict[str, Any]]:
    import torch

    from gt.tensor_ops import calls, choice

    if reason := choice.process.reason("cuda"):
        raise SystemExit(f"no CUDA backend: {reason}")
    cuda = choice.module("cuda")
    functional = torch.nn.functional
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(GIB // dtype.itemsize // COLUMNS, COLUMNS, device="cuda", dtype=dtype)
        weight, out = torch.ones(COLUMNS, device="cuda", dtype=dtype), torch.empty_like(x)
        runs: dict[str, Callable[[], Any]] = {
            "copy": lambda x=x, out=out: out.copy_(x),
            "silu": lambda x=x, out=out: calls.silu(cuda, x, out),
            "gelu": lambda x=x, out=out: calls.gelu(cuda, x, "tanh", out),
            "rms_norm": lambda x=x, w=weight, out=out: calls.rms_norm(cuda, x, w, 1e-6, out),
            "torch silu": lambda x=x: functional.silu(x),
            "torch gelu": lambda x=x: functional.gelu(x, approximate="tanh"),
            "torch rms_norm": lambda x=x, w=weight: functional.rms_norm(x, w.shape, w, 1e-6),
        }
        for run in runs.values():  # compile
            run()
        queued, alone = medians(torch, runs, queued=True), medians(torch, runs, queued=False)
        for name in ("silu", "gelu", "rms_norm"):
            results.append(row(name, str(dtype).removeprefix("torch."), queued, alone))
        del x, out, runs
    return results


def medians(torch: Any, runs: dict[str, Callable[[], Any]], *, queued: bool) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            times[name].append(milliseconds(torch, run, queued=queued))
    return {name: statistics.median(took) for name, took in times.items()}


def row(name: str, dtype: str, queued: dict[str, float], alone: dict[str, float]) -> dict[str, Any]:
    def speed(took: float) -> float:
        return 2 * GIB / took / 1e6

    return {
        "case": f"triton {name} 1 GiB {dtype} vs device copy",
        "gt": speed(queued[name]),
        "rival": speed(queued["copy"]),
        "unit": "GB/s",
        "ratio": queued["copy"] / queued[name],
        "ratio_to_torch": queued[f"torch {name}"] / queued[name],
        "ratio_alone": alone["copy"] / alone[name],
    }


def main() -> None:
    import torch
    import triton

    rows = measure()
    for result in rows:
        speeds = f"{result['gt']:8.0f} of {result['rival']:.0f} GB/s: {result['ratio']:.3f}"
        print(f"{result['case']:48} {speeds}, a call alone {result['ratio_alone']:.3f}")
    facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as file:
            json.dump(facts | {"results": rows}, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
