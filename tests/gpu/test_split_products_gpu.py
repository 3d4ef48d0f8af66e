"""Float32 products of CUDA graphs by tensor cores are as exact as cuBLAS's in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.ops import infer, row
from gt.spec import Spec, float32
from gt.worker.engine.torch import product_sizes, split_products
from tests.gpu.training import Begun, trained

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)
if torch.cuda.get_device_capability()[0] != 9:
    pytest.skip("split products are for compute capability 9", allow_module_level=True)

SHAPES = {
    "linear": [((2048, 384), (1152, 384), (1152,)), ((8, 256, 384), (384, 384)), ((2048, 1536), (384, 1536), (384,))],
    "matmul": [((2048, 1152), (1152, 384)), ((2, 1024, 384), (384, 1536)), ((1024, 4096), (4096, 1024))],
    "linear_weight_grad": [((2048, 1152), (2048, 384)), ((8, 256, 384), (8, 256, 384)), ((16384, 256), (16384, 256))],
}


def split(name: str, shapes: tuple) -> tuple[Any, Any]:
    kind = infer(row(name), tuple(Spec(s, float32) for s in shapes), ())
    sizes = product_sizes.product_sizes(kind)
    assert sizes is not None

    product = split_products.SplitProduct(sizes, len(shapes) > 2, lambda key, make: make())

    def run(a: Any, b: Any, *bias: Any) -> Any:
        return product(split_products.split(a), split_products.split(b), *bias)

    return run, lambda *operands: kind.row.kernel(torch, *operands)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(("name", "shapes"), [(name, shapes) for name, cases in SHAPES.items() for shapes in cases])
def test_a_split_product_errs_no_more_than_cublas(name: str, shapes: tuple, scaled: bool) -> None:
    torch.manual_seed(0)
    run, plain = split(name, shapes)
    operands = [torch.randn(s, device="cuda") for s in shapes]
    most = 1.0
    if scaled:  # of many sizes, and all of one sign: few terms are the sum, and the bits that tensor cores cut off add up
        most = 4.0
        operands = [a.abs() * torch.randn(a.shape, device="cuda").mul(3).exp() for a in operands]
    want = plain(*[a.double() for a in operands])
    found, theirs = run(*operands), plain(*operands)
    assert found.shape == want.shape
    ours, others = ((a.double() - want).pow(2).mean().sqrt().item() for a in (found, theirs))
    assert ours <= most * others, ours / others


def test_infinities_and_nans_come_out_as_of_cublas() -> None:
    run, plain = split("matmul", ((1024, 512), (512, 1024)))
    a, b = torch.randn(1024, 512, device="cuda"), torch.randn(512, 1024, device="cuda")
    a[3, 5], a[4, 7], a[9, 9], b[8, 20], b[9, 30] = torch.inf, torch.nan, 1e-40, -torch.inf, 1e37
    found, want = run(a, b), plain(a, b)
    assert torch.equal(found.isnan(), want.isnan()) and torch.equal(found.isinf(), want.isinf())
    assert torch.equal(found[found.isinf()], want[want.isinf()])


def begun() -> Begun:
    rng = np.random.default_rng(0)
    a, b = (gt.nn.Parameter(gt.tensor(rng.standard_normal((512, 512), np.float32) / 23)) for _ in range(2))
    x, y = (gt.tensor(array) for array in rng.standard_normal((2, 1024, 512), np.float32))
    linear = gt.nn.functional.linear
    return [a, b], lambda: ((linear(linear(x, a).relu(), b) - y) ** 2).mean()


def test_training_with_split_products_gives_the_losses_of_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, stats = trained(begun)
    monkeypatch.setenv("GT_SPLIT_PRODUCTS", "0")
    want, plain = trained(begun)
    assert stats["split_products"] >= 5 and not stats["chains_failed"], stats
    assert plain["split_products"] == 0 and plain["compiled_calls"], plain
    np.testing.assert_allclose(mine, want, rtol=1e-4)
