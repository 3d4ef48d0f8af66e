"""A table's gradient on CPUs: PyTorch's bits, by one call for all rows."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import profile

from gt.worker.engine.torch.kernels import _embedding_grad

PYTORCH = torch.ops.aten.embedding_dense_backward


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(), (7,), (300,), (12, 5), (0,), (40, 0)])
def test_rows_are_added_in_pytorch_s_order(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    for wide in (16, 0):
        for padding in (-1, 3):
            index, g = torch.randint(0, 9, shape), torch.randn(*shape, wide).to(dtype)
            found = _embedding_grad(g, index, shape=(9, wide), padding=padding)
            assert torch.equal(found, PYTORCH(g, index, 9, padding, False))
            assert torch.equal(_embedding_grad(g, index.int(), shape=(9, wide), padding=padding), found)


def test_all_rows_are_added_by_one_call() -> None:
    with profile(acc_events=True) as profiler:  # without it PyTorch 2.11 warns that it keeps one cycle's events
        _embedding_grad(torch.ones(64, 6, 32), torch.randint(0, 50, (64, 6)), shape=(50, 32), padding=-1)
    counts = {event.key: event.count for event in profiler.key_averages()}
    assert counts["aten::index_add_"] == 1 and "aten::embedding_dense_backward" not in counts
