"""Forms of the Triton rms_norm (and of silu's launch) side by side on 1 GiB inputs, beside the device copy.

    python benchmarks/gpu_rms_norm.py results.json
    TRITON_INTERPRET=1 python benchmarks/gpu_rms_norm.py --check      # all forms' numbers, on the CPU

Each run is queued behind a spinning kernel, so that the time of Python does not count; "alone" is the time of a call on an
idle GPU, where it does. `ratio` is the form's part of the copy's bandwidth, copy and form taking turns.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from gt.tensor_ops.cuda import kernels

GIB = 1 << 30
COLUMNS = 4096
ROUNDS = 12
SECONDS = 100  # forms still to come are left out after this, and named
EPS = 1e-6


@triton.jit
def checked(x, columns, root: tl.constexpr):
    """Rows and their scale: squares as they are, and only rows whose squares leave float32's range divided first."""
    sums = tl.sum(x * x, axis=1)
    mean = sums / columns + root * root
    odd = tl.where((mean > 1e-30) & (sums < 3e38), 0, 1)
    if tl.max(odd, axis=0) > 0:
        unit = tl.minimum(tl.maximum(tl.max(tl.abs(x), axis=1), root), 3.4028234663852886e38)
        x = x / unit[:, None]
        mean = tl.sum(x * x, axis=1) / columns + (root / unit) * (root / unit)
    return x, 1.0 / tl.sqrt(mean)


@triton.jit
def divided(x, columns, root: tl.constexpr):
    """Rows and their scale, each row divided by its largest magnitude."""
    unit = tl.minimum(tl.maximum(tl.max(tl.abs(x), axis=1), root), 3.4028234663852886e38)
    x = x / unit[:, None]
    mean = tl.sum(x * x, axis=1) / columns + (root / unit) * (root / unit)
    return x, 1.0 / tl.sqrt(mean)


@triton.jit
def tile(
    x_ptr, w_ptr, y_ptr, rows, columns,
    root: tl.constexpr, block: tl.constexpr, tall: tl.constexpr, form: tl.constexpr, long: tl.constexpr,
    x_keep: tl.constexpr, w_keep: tl.constexpr, y_keep: tl.constexpr, x_cache: tl.constexpr, y_cache: tl.constexpr,
):  # fmt: skip
    """`tall` rows a program."""
    row = tl.program_id(0) * tall + tl.arange(0, tall)
    if long:
        row = row.to(tl.int64)
    lane = tl.arange(0, block)
    at = row[:, None] * columns + lane[None, :]
    inside = (row[:, None] < rows) & (lane[None, :] < columns)
    x = tl.load(x_ptr + at, mask=inside, other=0.0, eviction_policy=x_keep, cache_modifier=x_cache).to(tl.float32)
    w = tl.load(w_ptr + lane, mask=lane < columns, other=0.0, eviction_policy=w_keep).to(tl.float32)
    x, scale = form(x, columns, root)
    y = (x * scale[:, None] * w[None, :]).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + at, y, mask=inside, eviction_policy=y_keep, cache_modifier=y_cache)


@triton.jit
def walk(
    x_ptr, w_ptr, y_ptr, rows, columns,
    root: tl.constexpr, block: tl.constexpr, tall: tl.constexpr, form: tl.constexpr, stages: tl.constexpr,
    x_keep: tl.constexpr, y_keep: tl.constexpr, y_cache: tl.constexpr,
):  # fmt: skip
    """Persistent programs: the weight stays in registers. stages 0 reads the next rows by hand before these are computed."""
    lane = tl.arange(0, block)
    w = tl.load(w_ptr + lane, mask=lane < columns, other=0.0).to(tl.float32)
    step = tl.num_programs(0) * tall
    first = tl.program_id(0) * tall
    if stages > 0:
        for start in tl.range(first, rows, step, num_stages=stages):
            row = start + tl.arange(0, tall)
            at = row.to(tl.int64)[:, None] * columns + lane[None, :]
            inside = (row[:, None] < rows) & (lane[None, :] < columns)
            x = tl.load(x_ptr + at, mask=inside, other=0.0, eviction_policy=x_keep).to(tl.float32)
            x, scale = form(x, columns, root)
            y = (x * scale[:, None] * w[None, :]).to(y_ptr.dtype.element_ty)
            tl.store(y_ptr + at, y, mask=inside, eviction_policy=y_keep, cache_modifier=y_cache)
    else:
        row = first + tl.arange(0, tall)
        at = row.to(tl.int64)[:, None] * columns + lane[None, :]
        inside = (row[:, None] < rows) & (lane[None, :] < columns)
        coming = tl.load(x_ptr + at, mask=inside, other=0.0, eviction_policy=x_keep)
        for start in range(first, rows, step):
            row = start + tl.arange(0, tall)
            at = row.to(tl.int64)[:, None] * columns + lane[None, :]
            inside = (row[:, None] < rows) & (lane[None, :] < columns)
            x = coming.to(tl.float32)
            more = (row[:, None] + step < rows) & (lane[None, :] < columns)
            far = (row + step).to(tl.int64)[:, None] * columns + lane[None, :]
            coming = tl.load(x_ptr + far, mask=more, other=0.0, eviction_policy=x_keep)
            x, scale = form(x, columns, root)
            y = (x * scale[:, None] * w[None, :]).to(y_ptr.dtype.element_ty)
            tl.store(y_ptr + at, y, mask=inside, eviction_policy=y_keep, cache_modifier=y_cache)


@triton.jit
def near(x_ptr, y_ptr, count, of: tl.constexpr, block: tl.constexpr, keep: tl.constexpr, on_cpu: tl.constexpr):
    """An elementwise op whose 64-bit part of the address is one number a program."""
    base = tl.program_id(0).to(tl.int64) * block
    lane = tl.arange(0, block)
    inside = lane < count - base
    x = tl.load(x_ptr + base + lane, mask=inside, eviction_policy=keep).to(tl.float32)
    y = of(x, False, x_ptr.dtype.element_ty.primitive_bitwidth == 16, on_cpu)
    tl.store(y_ptr + base + lane, y.to(y_ptr.dtype.element_ty), mask=inside, eviction_policy=keep)


def tiles(
    tall: int, warps: int, form: Any = checked, *, long: bool = True, keeps: tuple = ("", "", ""), caches: tuple = ("", "")
) -> Any:
    def run(x: Any, w: Any, y: Any) -> None:
        rows, columns = x.shape
        block = triton.next_power_of_2(columns)
        args = (EPS**0.5, block, tall, form, long, *keeps, *caches)
        tile[(triton.cdiv(rows, tall),)](x, w, y, rows, columns, *args, num_warps=warps, **kernels.OPTIONS)

    return run


def walks(tall: int, warps: int, per_sm: int, stages: int, *, keeps: tuple = ("", ""), cache: str = "") -> Any:
    def run(x: Any, w: Any, y: Any) -> None:
        rows, columns = x.shape
        units = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 2
        block = triton.next_power_of_2(columns)
        args = (EPS**0.5, block, tall, checked, stages, *keeps, cache)
        walk[(units * per_sm,)](x, w, y, rows, columns, *args, num_warps=warps, **kernels.OPTIONS)

    return run


def nears(op: str, block: int, warps: int, keep: str = "") -> Any:
    def run(x: Any, w: Any, y: Any) -> None:
        grid = (triton.cdiv(x.numel(), block),)
        near[grid](x, y, x.numel(), kernels.OPS[op], block, keep, not x.is_cuda, num_warps=warps, **kernels.OPTIONS)

    return run


FIRST, LAST = "evict_first", "evict_last"
FORMS: dict[str, Any] = {
    "present kernel, weight in float32": lambda x, w, y: kernels.run_rms_norm(x, w.float(), y, EPS, False),
    "divided 1 row, 8 warps": tiles(1, 8, divided),
    "checked 1 row, 8 warps": tiles(1, 8),
    "checked 1 row, 8 warps, evict_first x y, evict_last w": tiles(1, 8, keeps=(FIRST, LAST, FIRST)),
    "walk 1 row, 8 warps, 4 a SM, by hand": walks(1, 8, 4, 0),
    "checked 1 row, 4 warps": tiles(1, 4),
    "checked 1 row, 16 warps": tiles(1, 16),
    "checked 1 row, 2 warps": tiles(1, 2),
    "checked 2 rows, 8 warps": tiles(2, 8),
    "checked 2 rows, 16 warps": tiles(2, 16),
    "checked 2 rows, 4 warps": tiles(2, 4),
    "checked 4 rows, 16 warps": tiles(4, 16),
    "checked 4 rows, 8 warps": tiles(4, 8),
    "checked 8 rows, 16 warps": tiles(8, 16),
    "checked 1 row, 8 warps, 32-bit offsets": tiles(1, 8, long=False),
    "checked 1 row, 8 warps, evict_first x": tiles(1, 8, keeps=(FIRST, "", "")),
    "checked 1 row, 8 warps, .cg x": tiles(1, 8, caches=(".cg", "")),
    "checked 1 row, 8 warps, .cs y": tiles(1, 8, caches=("", ".cs")),
    "checked 1 row, 8 warps, .cg x .cs y evict_last w": tiles(1, 8, keeps=("", LAST, ""), caches=(".cg", ".cs")),
    "checked 1 row, 4 warps, evict_first x y, evict_last w": tiles(1, 4, keeps=(FIRST, LAST, FIRST)),
    "walk 1 row, 8 warps, 2 a SM, by hand": walks(1, 8, 2, 0),
    "walk 1 row, 8 warps, 8 a SM, by hand": walks(1, 8, 8, 0),
    "walk 1 row, 4 warps, 8 a SM, by hand": walks(1, 4, 8, 0),
    "walk 1 row, 16 warps, 4 a SM, by hand": walks(1, 16, 4, 0),
    "walk 2 rows, 16 warps, 2 a SM, by hand": walks(2, 16, 2, 0),
    "walk 1 row, 8 warps, 8 a SM, no reading ahead": walks(1, 8, 8, 1),
    "walk 1 row, 8 warps, 4 a SM, 2 stages": walks(1, 8, 4, 2),
    "walk 1 row, 8 warps, 4 a SM, 3 stages": walks(1, 8, 4, 3),
    "walk 1 row, 8 warps, 2 a SM, 4 stages": walks(1, 8, 2, 4),
    "walk 1 row, 8 warps, 4 a SM, by hand, evict_first x y": walks(1, 8, 4, 0, keeps=(FIRST, FIRST)),
    "walk 1 row, 8 warps, 4 a SM, by hand, .cs y": walks(1, 8, 4, 0, cache=".cs"),
}
SILU_FORMS: dict[str, Any] = {
    "silu present kernel": lambda x, w, y: kernels.run_elementwise("silu", x, y, False),
    "silu 4096, 8 warps": nears("silu", 4096, 8),
    "silu 2048, 8 warps": nears("silu", 2048, 8),
    "silu 1024, 4 warps": nears("silu", 1024, 4),
    "silu 2048, 4 warps": nears("silu", 2048, 4),
    "silu 4096, 16 warps": nears("silu", 4096, 16),
    "silu 8192, 16 warps": nears("silu", 8192, 16),
    "silu 2048, 8 warps, evict_first": nears("silu", 2048, 8, FIRST),
    "gelu present kernel": lambda x, w, y: kernels.run_elementwise("gelu_tanh", x, y, False),
    "gelu 2048, 8 warps": nears("gelu_tanh", 2048, 8),
    "gelu 1024, 4 warps": nears("gelu_tanh", 1024, 4),
}


def right(name: str, run: Any, dtype: Any, device: str) -> None:
    """Raises where the form's numbers are not those of float64; rows at both ends of the range are among them."""
    x = torch.randn(37, 200, device=device).to(dtype)
    x[3] *= 1e30
    x[5] *= 1e-30
    x[6] = 0.0
    x[7, 11] = float("nan")
    w = torch.randn(200, device=device).to(dtype)
    y = torch.empty_like(x)
    run(x, w, y)
    wide = x.double()
    if name.startswith("silu"):
        want = torch.nn.functional.silu(wide)
    elif name.startswith("gelu"):
        want = torch.nn.functional.gelu(wide, approximate="tanh")
    else:
        want = wide / (wide.square().mean(1, keepdim=True) + EPS).sqrt() * w.double()
    bound = 3e-6 if dtype is torch.float32 else 8e-3
    torch.testing.assert_close(y.double(), want, rtol=bound, atol=1e-6, equal_nan=True, msg=lambda text: f"{name}: {text}")


def milliseconds(run: Callable[[], Any], *, queued: bool) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    if queued:
        torch.cuda._sleep(2_000_000)  # about a millisecond
    begin.record()
    run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def against_copy(run: Callable[[], Any], copy: Callable[[], Any], *, queued: bool) -> dict[str, float]:
    run()
    torch.cuda.synchronize()
    pairs = [(milliseconds(copy, queued=queued), milliseconds(run, queued=queued)) for _ in range(ROUNDS)]
    copies, runs = (list(each) for each in zip(*pairs))
    middle, copied = statistics.median(runs), statistics.median(copies)
    return {"ms": middle, "copy_ms": copied, "ratio": copied / middle, "best_ratio": min(copies) / min(runs)}


def measure() -> list[dict[str, Any]]:
    from gt.tensor_ops import calls, choice

    began, cuda, results = time.perf_counter(), choice.module("cuda"), []
    for dtype, until in ((torch.bfloat16, SECONDS / 2), (torch.float32, SECONDS)):
        x = torch.randn(GIB // dtype.itemsize // COLUMNS, COLUMNS, device="cuda", dtype=dtype)
        w, y = torch.randn(COLUMNS, device="cuda", dtype=dtype), torch.empty_like(x)

        def calls_of(x: Any, w: Any, y: Any) -> dict[str, Callable[[], Any]]:
            return {
                "call rms_norm": lambda: calls.rms_norm(cuda, x, w, EPS, y),
                "call silu": lambda: calls.silu(cuda, x, y),
                "call gelu": lambda: calls.gelu(cuda, x, "tanh", y),
                "copy": lambda: y.copy_(x),
            }

        runs = calls_of(x, w, y)
        copy = runs["copy"]
        for name, run in runs.items():
            for queued in (True, False):
                how = name if queued else f"{name}, alone"
                results.append({"form": how, "dtype": str(dtype)} | against_copy(run, copy, queued=queued))
                show(results[-1])
        for name, form in (FORMS | SILU_FORMS).items():
            if time.perf_counter() - began > until:
                print(f"no time for {name}, {dtype}")
                continue
            try:
                right(name, form, dtype, "cuda")
                found = against_copy(lambda form=form, at=(x, w, y): form(*at), copy, queued=True)
            except Exception as error:  # a form that this GPU cannot hold must not end the others
                print(f"{name}: {type(error).__name__}: {error}")
                continue
            results.append({"form": name, "dtype": str(dtype)} | found)
            show(results[-1])
        del x, y, runs, copy
    return results


def show(row: dict[str, Any]) -> None:
    times = f"{row['ms'] * 1e3:6.0f} us, copy {row['copy_ms'] * 1e3:.0f} us"
    print(f"{row['dtype'][6:]:9}{row['form']:58}{times}: {row['ratio']:.3f} (best {row['best_ratio']:.3f})", flush=True)


def main() -> None:
    if "--check" in sys.argv:
        for name, form in (FORMS | SILU_FORMS).items():
            for dtype in (torch.float32, torch.bfloat16):
                right(name, form, dtype, "cpu")
            print("right:", name)
        return
    results = measure()
    print("\nbest first")
    for row in sorted(results, key=lambda row: -row["ratio"]):
        show(row)
    facts = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as file:
            json.dump(facts | {"results": results}, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
