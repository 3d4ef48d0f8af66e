"""The utilisation that `gt top` shows of a GPU: high while kernels run."""

from __future__ import annotations

import time

import pytest
import torch

from gt.worker.state import gpu_meter

pytestmark = pytest.mark.gpu


def test_products_without_a_pause_are_shown_as_high_use() -> None:
    meter, x, deadline, shown = gpu_meter("cuda:0"), torch.randn(8192, 8192, device="cuda"), time.monotonic() + 10, 0.0
    assert meter() >= 0.0, "NVML tells the use of a whole GPU"
    while shown < 0.9 and time.monotonic() < deadline:
        for _ in range(10):
            x @ x  # noqa: B018
        torch.cuda.synchronize()
        shown = meter()
    assert shown >= 0.9
