"""Products of 16-bit floats on CPUs without instructions for them: in float32, rounded once at the end. (One core of a
Neoverse N1, 256x64 by 64x64: bfloat16 16 ms by PyTorch's own kernel and 0.15 this way, float16 0.6 to 1.0 and 0.28.) On ARM
PyTorch 2.13 also gives some products of bfloat16 to oneDNN, and when that refuses them turns oneDNN off for every dtype."""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from gt.ops import Kind
from gt.spec import Spec, bfloat16, float16
from gt.worker.engine.torch.dtypes import TORCH

ARM = platform.machine() in ("aarch64", "arm64")


@cache
def slow_dtypes() -> frozenset[Any]:
    """The dtypes whose products take longer than float32's on this CPU. On ARM PyTorch's products of float16 do, even where it
    counts the CPU among those with instructions for them."""
    slow = set() if _has("_is_mkldnn_bf16_supported") else {bfloat16}
    return frozenset(slow if _has("_is_mkldnn_fp16_supported") and not ARM else slow | {float16})


def is_slow(dtype: str) -> bool:
    """Whether products of a dtype of this name take longer than float32's on this CPU."""
    return dtype in {d.name for d in slow_dtypes()}


def _has(question: str) -> bool:
    ask = getattr(torch.ops.mkldnn, question, None)
    return ask is not None and bool(ask())


def in_float32(kind: Kind, run: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel of a product on this CPU: `run`, or `run` on wider operands."""
    narrow = {spec.dtype for spec in kind.ins if isinstance(spec, Spec)} & slow_dtypes()
    if not narrow or kind.row.compute_seconds is None:
        return run
    return partial(_widened, run, frozenset(TORCH[d] for d in narrow), tuple(TORCH[spec.dtype] for spec in kind.outs))


def _widened(run: Callable[..., Any], narrow: frozenset, dtypes: tuple, *operands: Any) -> Any:
    made = run(*[o.float() if isinstance(o, torch.Tensor) and o.dtype in narrow else o for o in operands])
    return made.to(dtypes[0]) if isinstance(made, torch.Tensor) else tuple(t.to(d) for t, d in zip(made, dtypes))
