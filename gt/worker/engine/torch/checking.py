"""`GT_CHECK_COMPILED=1`: compares the results of a program's faster form with those of its straight-line function."""

from __future__ import annotations

import torch

from gt.environment import CHECK_COMPILED


def wanted() -> bool:
    return CHECK_COMPILED.value()


def alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two results are equal up to rounding errors, relative to the largest element."""
    if not b.is_floating_point():
        return torch.equal(a, b)
    close = 1e-3 if b.dtype.itemsize > 2 else 2e-2
    a, b = a.double(), b.double()
    known = b[torch.isfinite(b)]
    return torch.allclose(a, b, rtol=close, atol=close * float(known.abs().max()) if known.numel() else 0.0, equal_nan=True)
