"""Where libraries differ at infinity, GT's engines do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gt
from gt import testing

ENGINES = ["numpy", "pytorch", "cpp", "mkldnn", "openmp"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("engine", ENGINES)
def test_gelu_of_infinity_is_infinity_and_large_numbers_stay(engine: str, dtype: str) -> None:
    if not gt.backends.is_backend_available(engine):
        pytest.skip(f"{engine} is not available here")
    big = 3e38 if dtype != "float16" else 6e4
    with testing.cluster(1, engine=engine):
        x = gt.tensor([np.inf, big, 2.0, -2.0, np.nan] + [0.5] * 20).to(getattr(gt, dtype))
        want = torch.nn.functional.gelu(torch.tensor(x.float().tolist(), dtype=torch.float64))
        for approximate in ("none", "tanh"):
            found = gt.nn.functional.gelu(x, approximate=approximate).float().numpy()
            np.testing.assert_allclose(found, want.numpy(), rtol=1e-2, atol=1e-3)


def test_many_half_precision_numbers_that_sum_past_its_range_are_not_touched() -> None:
    with testing.cluster(1, engine="pytorch"):
        x = gt.full((400,), 1000.0, dtype=gt.float16)
        assert gt.nn.functional.gelu(x).float().tolist() == [1000.0] * 400
