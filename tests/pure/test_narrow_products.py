"""Products of 16-bit floats are computed in float32 on CPUs without instructions for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gt.ops import TABLE
from gt.ops.table import infer
from gt.spec import Spec, bfloat16, float16, float32
from gt.worker.engine.torch import narrow_products
from gt.worker.engine.torch.engine import TorchEngine


@pytest.fixture(params=[bfloat16, float16], ids=["bfloat16", "float16"])
def slow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A dtype for which this CPU has no instructions."""
    monkeypatch.setattr(narrow_products, "slow_dtypes", lambda: frozenset({request.param}))
    return request.param


def _made(name: str, *operands: torch.Tensor, statics: tuple = (), dtypes: tuple) -> tuple[Any, Any]:
    """The result of a row's kernel, and the dtypes of the products in it."""
    specs = tuple(Spec(tuple(o.shape), d) for o, d in zip(operands, dtypes))
    seen: list[torch.dtype] = []
    run = TorchEngine("cpu")._as_given(infer(TABLE[name], specs, statics))

    def noted(*given: Any) -> Any:
        seen.extend(g.dtype for g in given)
        return run(*given)

    return narrow_products.in_float32(infer(TABLE[name], specs, statics), noted)(*operands), seen


@pytest.mark.parametrize("name", ["matmul", "linear"])
def test_a_product_is_rounded_once(slow: Any, name: str) -> None:
    dtype = getattr(torch, slow.name)
    a, b = (torch.randn(5, 5).to(dtype) for _ in range(2))
    made, seen = _made(name, a, b, dtypes=(slow, slow))
    assert made.dtype is dtype and set(seen) == {torch.float32}
    assert torch.equal(made, (a.float() @ (b.float() if name == "matmul" else b.float().t())).to(dtype))


def test_other_ops_and_other_dtypes_are_left_alone(slow: Any) -> None:
    x = torch.randn(4, 4)
    assert set(_made("matmul", x, x, dtypes=(float32, float32))[1]) == {torch.float32}
    narrow = x.to(getattr(torch, slow.name))
    assert set(_made("add", narrow, narrow, dtypes=(slow, slow))[1]) == {narrow.dtype}


def test_each_result_has_its_own_dtype(slow: Any) -> None:
    q = torch.randn(1, 2, 8, 4).to(getattr(torch, slow.name))
    kind = infer(TABLE["attention"], (*[Spec((1, 2, 8, 4), slow)] * 3, float), (False,))
    y, lse = TorchEngine("cpu").plain(kind)(q, q, q, 0.5)
    assert y.dtype is q.dtype and lse.dtype is torch.float32


def test_this_cpu_is_asked_what_it_has() -> None:
    narrow_products.slow_dtypes.cache_clear()
    slow = narrow_products.slow_dtypes()
    assert (bfloat16 in slow) is not narrow_products._has("_is_mkldnn_bf16_supported") and not narrow_products._has("_no_name")
