"""Where libraries differ at infinity, GT's engines do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import gt
from gt import testing
from gt.ops import TABLE, infer
from gt.spec import Spec
from gt.worker.engine.choose import make
from gt.worker.engine.torch.kernels import gelu_of_clamped

ENGINES = ["numpy", "pytorch", "cpp", "mkldnn", "mkl", "openmp", "opencl"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("engine", ENGINES)
def test_gelu_has_its_limits_at_infinities_and_large_numbers_stay(engine: str, dtype: str) -> None:
    if not gt.backends.is_backend_available(engine):
        pytest.skip(f"{engine} is not available here")
    big = 3e38 if dtype != "float16" else 6e4
    with testing.cluster(1, engine=engine):
        x = gt.tensor([np.inf, big, 2.0, -2.0, np.nan, -big] + [0.5] * 20).to(getattr(gt, dtype))
        want = torch.nn.functional.gelu(torch.tensor(x.float().tolist(), dtype=torch.float64))
        below = gt.tensor([-np.inf] * 20 + [1.0]).to(getattr(gt, dtype))
        for approximate in ("none", "tanh"):
            found = gt.nn.functional.gelu(x, approximate=approximate).float().numpy()
            np.testing.assert_allclose(found, want.numpy(), rtol=1e-2, atol=1e-3)
            found = gt.nn.functional.gelu(below, approximate=approximate).float().numpy()
            assert (found[:20] == 0).all() and 0.83 < found[20] < 0.85, found


@pytest.mark.parametrize("tanh", [False, True])
def test_the_form_traced_for_a_compiler_is_zero_at_minus_infinity_too(tanh: bool) -> None:
    kind = infer(TABLE["gelu"], (Spec((5,), gt.float32),), (tanh,))
    x = torch.tensor([-np.inf, -np.inf, np.nan, -30.0, 1.0])  # (the compiler's formula decides the value at infinity)
    traced = make_fx(make("pytorch").kernel(kind))(torch.ones(5))
    found = traced(x).tolist()
    assert found[:2] == [0, 0] and np.isnan(found[2]) and found[3] == 0


@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_gelu_as_gpus_compute_it_is_zero_at_minus_infinity_and_pytorch_s_elsewhere(dtype: torch.dtype, tanh: bool) -> None:
    x = torch.linspace(-30.0, 30.0, 997).to(dtype)
    form = "tanh" if tanh else "none"
    torch.testing.assert_close(gelu_of_clamped(x, tanh=tanh), torch.nn.functional.gelu(x, approximate=form))
    edges = gelu_of_clamped(torch.tensor([-np.inf, -6e4, np.nan] * 16, dtype=dtype), tanh=tanh)
    assert (edges[0::3] == 0).all() and (edges[1::3] == 0).all() and edges[2::3].isnan().all()


def test_many_half_precision_numbers_that_sum_past_its_range_are_not_touched() -> None:
    with testing.cluster(1, engine="pytorch"):
        x = gt.full((400,), 1000.0, dtype=gt.float16)
        assert gt.nn.functional.gelu(x).float().tolist() == [1000.0] * 400
