"""GT against PyTorch eager on one GPU: `python benchmarks/gpu.py [CASE ...] [--out FILE]`. Each case runs both alternately and
prints the ratio (over 1: GT is faster)."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

import gt
from benchmarks.models import MLP, gpt, gpt_step, torch_mlp
from gt.nn import SGD

Step = Callable[[], Any]


def best(gt_run: Step, torch_run: Step, rounds: int = 7) -> tuple[float, float]:
    """Seconds of each, the better of several, taken in turn."""
    mine, theirs = [], []
    for _ in range(rounds):
        for run, times in ((gt_run, mine), (torch_run, theirs)):
            began = time.perf_counter()
            run()
            times.append(time.perf_counter() - began)
    return min(mine), min(theirs)


def row(case: str, mine: float, theirs: float, n: int) -> dict[str, Any]:
    return {"case": case, "gt": mine / n * 1e6, "rival": theirs / n * 1e6, "unit": "us", "ratio": theirs / mine}


def chain(n: int = 4000) -> Iterator[dict[str, Any]]:
    def loop(x: Any, a: Any, b: Any) -> Any:
        for _ in range(n // 2):
            x = x * a + b
        return x

    mine = [gt.full((16, 16), v) for v in (1.0, 0.999, 0.001)]
    theirs = [torch.full((16, 16), v, device="cuda") for v in (1.0, 0.999, 0.001)]
    runs = (lambda: loop(*mine).numpy()), (lambda: loop(*theirs).cpu())
    for run in runs:
        run()
    yield row("chain", *best(*runs), n)


def steps(model: Any, optimizer: Any, x: Any, y: Any, n: int) -> Any:
    for _ in range(n):
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def mlp() -> Iterator[dict[str, Any]]:
    for sizes, batch, n in (((784, 256, 10), 128, 500), ((1024, 4096, 4096, 1024), 256, 100)):
        mine, theirs = MLP(sizes), torch_mlp(sizes).cuda()
        x, y = gt.randn(batch, sizes[0]), gt.randn(batch, sizes[-1])
        tx, ty = torch.randn(batch, sizes[0], device="cuda"), torch.randn(batch, sizes[-1], device="cuda")
        opt, topt = SGD(mine.parameters(), lr=0.01), torch.optim.SGD(theirs.parameters(), lr=0.01)
        runs = (lambda: steps(mine, opt, x, y, n)), (lambda: steps(theirs, topt, tx, ty, n))  # noqa: B023
        for run in runs:
            run()
        yield row(f"mlp {'-'.join(map(str, sizes))} batch {batch}", *best(*runs), n)


def matmul(n: int = 100) -> Iterator[dict[str, Any]]:
    a, ta = gt.randn(8192, 8192).to(gt.bfloat16), torch.randn(8192, 8192, device="cuda").bfloat16()

    def mine() -> Any:
        for _ in range(n):
            c = a @ a
        return c[0, 0].item()

    def theirs() -> Any:
        for _ in range(n):
            c = ta @ ta
        return c[0, 0].item()

    mine(), theirs()
    yield row("matmul 8192 bf16", *best(mine, theirs), n)


def compiled_mlp(n: int = 500) -> Iterator[dict[str, Any]]:
    """The small MLP with `gt.compile`, against PyTorch eager."""
    sizes, batch = (784, 256, 10), 128
    mine, theirs = MLP(sizes), torch_mlp(sizes).cuda()
    x, y = gt.randn(batch, sizes[0]), gt.randn(batch, sizes[-1])
    tx, ty = torch.randn(batch, sizes[0], device="cuda"), torch.randn(batch, sizes[-1], device="cuda")
    opt, topt = SGD(mine.parameters(), lr=0.01), torch.optim.SGD(theirs.parameters(), lr=0.01)

    @gt.compile
    def step(x: Any, y: Any) -> Any:
        loss = ((mine(x) - y) ** 2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss.detach()

    def run() -> Any:
        for _ in range(n):
            loss = step(x, y)
        return loss.item()

    runs = run, (lambda: steps(theirs, topt, tx, ty, n))
    for r in runs:
        r()
    yield row("mlp 784-256-10 batch 128 gt.compile", *best(*runs), n)


def gpt_case() -> Iterator[dict[str, Any]]:
    """GPT of 6 layers, 384 wide, 256 tokens; PyTorch with its fused AdamW."""
    for batch, n in ((1, 50), (16, 20), (64, 8)):
        mine, theirs = gpt(gt), gpt(torch).cuda()
        opt = gt.optim.AdamW(mine.parameters(), lr=3e-4)
        topt = torch.optim.AdamW(theirs.parameters(), lr=3e-4, fused=True)
        ids, tids = gt.randint(0, 65, (batch, 256)), torch.randint(0, 65, (batch, 256), device="cuda")
        places, tplaces = gt.arange(256), torch.arange(256, device="cuda")

        def repeated(step: Any, *what: Any, n: int = n) -> Any:
            for _ in range(n):
                loss = step(*what)
            return loss.item()

        whole = gt.compile(lambda *given: gpt_step(*given).detach())
        runs = {
            "": lambda: repeated(gpt_step, gt, mine, opt, ids, ids, places),  # noqa: B023
            " gt.compile": lambda: repeated(whole, gt, mine, opt, ids, ids, places),  # noqa: B023
        }
        rival = lambda: repeated(gpt_step, torch, theirs, topt, tids, tids, tplaces)  # noqa: B023, E731
        for how, one in runs.items():
            one(), rival()
            yield row(f"gpt batch {batch}{how}", *best(one, rival), n)


CASES = {"chain": chain, "mlp": mlp, "compiled_mlp": compiled_mlp, "matmul": matmul, "gpt": gpt_case}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=[])
    parser.add_argument("--out")
    args = parser.parse_args()
    results = []
    for name in args.cases or CASES:
        for result in CASES[name]():
            results.append(result)
            print(
                "{case:36} gt {gt:10.1f} {unit}  torch {rival:10.1f}  ratio {ratio:.2f}".format(**result),
                flush=True,
            )
    from gt.client.here import here

    session = here().session
    stats = {"client": session.tracer.stats() if session.tracer else None, **session.ask("stats")}
    print(json.dumps(stats, indent=1, default=str))
    if args.out:
        about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "results": results, "stats": stats}
        with open(args.out, "w") as f:
            json.dump(about, f, indent=1, default=str)


if __name__ == "__main__":
    main()
