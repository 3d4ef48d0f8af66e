"""Samples of every row (`gt.testing.samples` makes them), for NumPy and for PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gt.spec import Spec, float32
from gt.testing import samples
from gt.testing.samples import (
    CLOSE,
    ROWS,
    SIGNED,
    Sample,
    Values,
    coarsest,
    draw,
    for_numpy,
    make,
    plain,
    refused,
    several,
    spec_of,
    varied,
    with_dtype,
)
from gt.worker.engine.torch.dtypes import TORCH

__all__ = ["CLOSE", "ROWS", "SIGNED", "Sample", "as_numpy", "assert_close", "assert_same", "coarsest", "draw", "for_numpy"]
__all__ += ["Values", "for_torch", "make", "plain", "refused", "several", "spec_of", "to_torch", "varied", "with_dtype"]


def to_torch(value: Any, spec: Any) -> Any:
    if not isinstance(spec, Spec):
        return value
    return torch.from_numpy(np.array(value, order="C")).to(TORCH[spec.dtype])


def for_torch(sample: Sample) -> list[Any]:
    found = []
    for o, s in zip(sample.operands, sample.kind.ins):
        t = to_torch(o, s)
        if sample.strided and isinstance(t, torch.Tensor) and t.ndim:
            room = torch.zeros(*t.shape[:-1], t.shape[-1] * 2, dtype=t.dtype)
            room[..., ::2] = t
            t = room[..., ::2]
        found.append(t)
    return found


def as_numpy(a: Any) -> np.ndarray:
    """A result of either engine, in float64 where it is a float."""
    if isinstance(a, torch.Tensor):
        a = a.to(torch.float64).numpy() if a.dtype.is_floating_point else a.numpy()
    return samples.as_numpy(a)


def assert_same(kind: Any, found: Any, want: Any, what: str = "", close: tuple[float, float] = (0.0, 0.0)) -> None:
    """The results of one call are alike in all that is defined of them, to the precision of its dtypes, or a coarser one."""
    pairs = [samples.defined(kind, [as_numpy(r) for r in results]) for results in (found, want)]
    for (f, spec), (w, _) in zip(*pairs, strict=True):
        assert_close(f, w, spec, what, max(close, coarsest(kind)))


def assert_close(found: Any, want: Any, spec: Spec, what: str = "", close: tuple[float, float] = CLOSE[float32]) -> None:
    samples.assert_close(as_numpy(found), as_numpy(want), spec, what, close)
