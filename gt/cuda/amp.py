"""`gt.amp` as scripts written for `torch.cuda.amp` call it: the device goes without saying."""

from __future__ import annotations

from typing import Any

from gt import amp
from gt.import_paths import add_files
from gt.spec import float16

GradScaler, custom_fwd, custom_bwd = amp.GradScaler, amp.custom_fwd, amp.custom_bwd


class autocast(amp.autocast):
    """`with gt.cuda.amp.autocast():` in float16, as there."""

    def __init__(self, enabled: bool = True, dtype: Any = float16, cache_enabled: bool = True) -> None:
        super().__init__("cuda", dtype, enabled, cache_enabled)


__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]
add_files(globals(), {"autocast_mode": "autocast custom_bwd custom_fwd", "grad_scaler": "GradScaler"})
