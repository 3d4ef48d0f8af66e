"""`python benchmarks/op_times.py [NAME ...]`: the time of ops on a CPU next to the estimate (gt/ops/estimate.py), with one
thread and with all. `extra` is the part of one thread's time beyond reading and writing, in nanoseconds for each element of the
largest operand, as in gt/ops/op_times.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

import gt
from gt.client.here import here
from gt.nn import functional as F
from gt.ops.estimate import ELEMENT, INSTRUCTION, estimated_seconds
from gt.spec import Spec

TIMES = 12  # runs of a case, of which the median counts
POINTWISE = ["exp", "log", "sin", "cos", "tanh", "sigmoid", "erf", "expm1", "log1p", "lgamma", "isnan"]
ACTIVATIONS = ["relu", "gelu", "silu", "softplus", "elu"]
COMPARED = ["eq", "ne", "lt", "le", "gt", "ge"]
BY_ROWS = ["sum", "mean", "var", "std", "amax", "logsumexp", "any", "argmax", "cumsum", "cumprod", "logcumsumexp"]
WITH_PLACES = ["sort", "median", "max"]  # a pair: the values, and where they were


def cases() -> dict[str, Callable[[], Any]]:
    """Calls as users write them; each kernel of theirs is measured."""
    rng = np.random.default_rng(0)

    def tensor(*shape: int) -> gt.Tensor:
        return gt.from_numpy(rng.random(shape, np.float32) + 0.1).requires_grad_()

    x, images, triples = tensor(256, 512), tensor(16, 32, 16, 16), tensor(256, 256, 3)
    labels, places = gt.from_numpy(rng.integers(0, 512, 256)), gt.from_numpy(rng.integers(0, 256, 2048))
    along = gt.from_numpy(rng.integers(0, 512, (256, 512)))
    table, norms = gt.nn.Embedding(2048, 64), (gt.nn.BatchNorm2d(32), gt.nn.GroupNorm(4, 32))
    made: dict[str, Callable[[], Any]] = {name: lambda name=name: getattr(gt, name)(x) for name in POINTWISE}
    made |= {name: lambda name=name: getattr(F, name)(x) for name in ACTIVATIONS}
    made |= {name: lambda name=name: getattr(gt, name)(x, 0.5) for name in COMPARED}
    made |= {name: lambda name=name: getattr(gt, name)(x, 1) for name in BY_ROWS}
    made |= {name: lambda name=name: getattr(gt, name)(x, 1)[0] for name in WITH_PLACES}
    made |= {
        "pow": lambda: x**1.5, "remainder": lambda: along % 3, "atan2": lambda: gt.atan2(x, x),
        "cast": lambda: along.float(), "topk": lambda: x.topk(5, 1)[0],
        "searchsorted": lambda: gt.searchsorted(x[:, :64].detach(), x.detach()),
        "bincount": lambda: gt.bincount(along.reshape(-1)), "integers": lambda: gt.randint(0, 10, (256, 512)),
        "softmax of 3": lambda: gt.softmax(triples, -1), "max of 3": lambda: triples.max(-1)[0],
        "sum of 3": lambda: triples.sum(-1), "log_softmax": lambda: gt.log_softmax(x, 1),
        "cross_entropy": lambda: F.cross_entropy(x, labels), "max_pool": lambda: F.max_pool2d(images, 2),
        "avg_pool": lambda: F.avg_pool2d(images, 2), "adaptive_avg_pool": lambda: F.adaptive_avg_pool2d(images, 4),
        "adaptive_max_pool": lambda: F.adaptive_max_pool2d(images, 4), "batch_norm": lambda: norms[0](images),
        "group_norm": lambda: norms[1](images), "layer_norm": lambda: F.layer_norm(x, (512,)),
        "rms_norm": lambda: F.rms_norm(x, (512,)), "pad": lambda: F.pad(images, (1, 1)), "index": lambda: x[places],
        "index_select": lambda: x.index_select(1, places % 256), "gather": lambda: x.gather(1, along),
        "scatter_add": lambda: gt.zeros(256, 512).scatter_add(1, along, x), "embedding": lambda: table(places),
        "index_add": lambda: gt.zeros(256, 512).index_add(0, places[:256], x), "fft": lambda: gt.fft.fft(x).abs(),
        "rfft": lambda: gt.fft.irfft(gt.fft.rfft(x)),
    }  # fmt: skip
    return made


def with_gradient(case: Callable[[], Any]) -> None:
    y = case()
    if y.requires_grad:
        y.sum().backward()


def measured(names: list[str]) -> dict[str, tuple[float, float, int]]:
    """By row: seconds, the estimate, and elements of its largest operand or result, of its largest kind in any case."""
    found: dict[str, tuple[float, float, int]] = {}
    known = here().session.kinds.meaning
    for name, case in cases().items():
        if names and name not in names:
            continue
        before = set(known)
        with_gradient(case)
        with gt.debug.record() as timeline:
            for _ in range(TIMES):
                with_gradient(case)
        spans = defaultdict(list)
        for span in timeline.spans:
            spans[span.name].append(span.stop - span.start)
        for kind in [known[number] for number in set(known) - before]:
            row, elements = kind.row.name, max([s.numel for s in (*kind.ins, *kind.outs) if isinstance(s, Spec)], default=0)
            if len(spans[row]) == TIMES and elements >= found.get(row, (0, 0, 1 << 16))[2]:
                found[row] = sorted(spans[row])[TIMES // 2], estimated_seconds(kind) - INSTRUCTION, elements
    return found


def main(names: list[str]) -> int:
    if os.environ.get("GT_TRACE") == "0":
        print(json.dumps(measured(names)))
        return 0
    runs = []
    for threads in ("1", str(os.cpu_count())):
        environment = {**os.environ, "GT_TRACE": "0", "OMP_NUM_THREADS": threads}
        done = subprocess.run(
            [sys.executable, __file__, *names], env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    for row, (seconds, estimate, elements) in sorted(runs[0].items()):
        extra = seconds / elements * 1e9 - 2 * ELEMENT * 1e9
        both = runs[1].get(row, (seconds,))[0]
        estimated = f"estimate {estimate * 1e6:7.0f}  extra {extra:6.1f}"
        print(f"{row:24} {seconds * 1e6:9.0f} us  {estimated}  threads {seconds / both:5.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
