"""`torch.optim.swa_utils`: the names of gt/nn/averaged.py, a layer above the optimizers, imported at their first use."""

from __future__ import annotations

import importlib
from typing import Any

from gt import missing_names

NAMES = (
    "AveragedModel",
    "SWALR",
    "get_ema_avg_fn",
    "get_ema_multi_avg_fn",
    "get_swa_avg_fn",
    "get_swa_multi_avg_fn",
    "update_bn",
)
__all__ = [*NAMES]


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise missing_names.error(__name__, name)
    return getattr(importlib.import_module("gt.nn.averaged"), name)


def __dir__() -> list[str]:
    return sorted(NAMES)
