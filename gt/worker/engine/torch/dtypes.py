"""PyTorch's name of each dtype."""

from __future__ import annotations

import torch

from gt.spec import DTYPES, DType

TORCH: dict[DType, torch.dtype] = {d: getattr(torch, d.name) for d in DTYPES}
