"""Products of graphs by tensor cores give PyTorch's results; here on the CPU, by Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest

from gt.ops import infer, row
from gt.spec import Spec, bfloat16, float32
from gt.worker.engine.torch.product_sizes import depth_parts, product_sizes
from tests.ops.interpreted import assert_prints_right

INTERPRETED = """
import torch
from gt.ops import infer, row
from gt.spec import Spec, float32
from gt.worker.engine.torch import product_sizes, split_products

product_sizes.LEAST, product_sizes.PROCESSORS = 1, 3
torch.manual_seed(0)

def split(a):  # the interpreter has no products of bfloat16
    return split_products.split(a).float()

CASES = {
    "linear": [((3, 32, 64), (80, 64), (80,)), ((96, 64), (48, 64)), ((16, 1024), (32, 1024), (32,))],
    "matmul": [((2, 48, 64), (64, 80)), ((96, 128), (128, 16))],
    "linear_weight_grad": [((2, 32, 48), (2, 32, 80)), ((1024, 16), (1024, 32))],
}
parts = set()
for name, cases in CASES.items():
    for shapes in cases:
        kind = infer(row(name), tuple(Spec(s, float32) for s in shapes), ())
        sizes = product_sizes.product_sizes(kind)
        run = split_products.SplitProduct(sizes, len(shapes) > 2, lambda key, make: make())
        parts.add(run.parts)
        for shift in (0, 1):  # aligned, and not
            a, b, *bias = (torch.randn(torch.Size(s).numel() + shift)[shift:].view(s) for s in shapes)
            found = run(split(a), split(b.mT.clone().mT), *bias)
            torch.testing.assert_close(found, kind.row.kernel(torch, a, b, *bias), rtol=1e-5, atol=1e-4)
assert len(parts) > 1, parts
a = torch.tensor([1.0, 3.4e38, -3.4028234e38, 1e-30, torch.inf, -torch.inf, torch.nan, 0.1] * 2)
pieces = split_products.split(a).double()
torch.testing.assert_close(pieces.sum(0), a.double(), rtol=1e-8, atol=0, equal_nan=True)
assert pieces[0].isfinite().equal(a.isfinite()) and pieces[1:].isfinite().all()
a, b = torch.randn(64, 64), torch.randn(64, 64)
a[3, 5], a[4, 7], b[8, 20] = torch.inf, torch.nan, -torch.inf
run = split_products.SplitProduct(product_sizes.product_sizes(infer(row("matmul"), (Spec((64, 64), float32),) * 2, ())), False,
                                  lambda key, make: make())
found, want = run(split(a), split(b)), a @ b
assert found.isnan().equal(want.isnan()) and found[want.isinf()].equal(want[want.isinf()])
print("right")
"""


@pytest.mark.usefixtures("triton_loops")
def test_split_products_give_pytorch_s_results() -> None:
    assert_prints_right(INTERPRETED)


def sizes(a: tuple, b: tuple, dtype: Any = float32, precision: str = "", name: str = "matmul") -> Any:
    return product_sizes(infer(row(name), (Spec(a, dtype), Spec(b, dtype)), (), precision=precision))


def test_products_that_are_small_lower_or_uneven_are_left_to_the_library() -> None:
    assert sizes((4, 512, 384), (384, 1152))[:3] == (2048, 1152, 384)
    assert sizes((4, 512, 384), (4, 512, 1152), name="linear_weight_grad")[:3] == (384, 1152, 2048)
    assert not sizes((16, 16), (16, 16)) and not sizes((2048, 384), (384, 1152), precision="high")
    assert not sizes((2048, 384), (384, 1152), bfloat16) and not sizes((2048, 384), (384, 1153))
    assert not sizes((2, 2048, 384), (2, 384, 1152)), "a batch of matrices"
    assert not sizes((1 << 16, 64), (64, 1 << 14)), "indices of more than 32 bits"


def test_the_depth_of_products_with_few_tiles_is_split() -> None:
    few, many = (sizes(a, a, name="linear_weight_grad") for a in ((2048, 384), (4096, 4096)))
    assert depth_parts(few) == 4 and depth_parts(many) == 1
