"""Kernels of CUDA graphs give PyTorch's results; here on the CPU, by Triton's interpreter."""

from __future__ import annotations

import pytest

from tests.ops.interpreted import assert_prints_right

INTERPRETED = """
import warnings
warnings.simplefilter("ignore")  # NumPy under the interpreter remarks on overflows
import torch
from gt.ops import infer, row
from gt.spec import Spec, float32
from gt.worker.engine.torch import graph_group_norm as groups_, graph_kernels as kernels, layers

torch.manual_seed(0)
close = {"rtol": 1e-4, "atol": 1e-4}
for shape, ndim in (((9, 33), 1), ((4, 3, 5), 2)):
    a, b, g = torch.randn(3, *shape)
    w, bias = torch.randn(2, *shape[len(shape) - ndim :])
    made = kernels.add_layer_norm(a, b, 1e-5, w, bias, ndim=ndim)
    for x, right in zip(made, layers.add_layer_norm(a, b, 1e-5, w, bias, ndim=ndim), strict=True):
        torch.testing.assert_close(x, right, **close)
    want = layers.layer_norm_grad(g, made[0], *made[2:], w, ndim=ndim, bias=True)
    for other in (None, b):
        found = kernels.add_layer_norm_grad(other, g, made[0], *made[2:], w, ndim=ndim, bias=True)
        for x, right in zip(found, (want[0] + (0 if other is None else other), *want[1:]), strict=True):
            torch.testing.assert_close(x, right, **close)
a = torch.randn(1500) * 4
a[:4] = torch.tensor([-torch.inf, torch.inf, torch.nan, -3e4])
want = torch.nn.functional.gelu(a.double().clamp(min=-1e4)).float()  # of float32, oneDNN on x86-64 gives nan for inf
torch.testing.assert_close(kernels.gelu(a, tanh=False), want, equal_nan=True, rtol=1e-5, atol=1e-6)
x = torch.randn(5, 7, 4, 3)
for image in (x, x.to(memory_format=torch.channels_last), x.transpose(2, 3)):
    for keepdims in (False, True):
        found = kernels.channel_sums(image, axis=(0, 2, 3), keepdims=keepdims)
        torch.testing.assert_close(found, image.sum((0, 2, 3), keepdim=keepdims), **close)
for rows, padding in ((3, -1), (9, 2)):
    index, g = torch.randint(0, rows, (5, 67)), torch.randn(5, 67, 33)
    want = torch.ops.aten.embedding_dense_backward(g, index, rows, padding, False)
    torch.testing.assert_close(kernels.embedding_grad(g, index, shape=(rows, 33), padding=padding), want, **close)
for shape, groups in (((3, 6, 5, 4), 2), ((2, 8, 7), 4), ((5, 12, 3, 3), 12)):
    x, g = 3 + torch.randn(2, *shape)
    w, bias = torch.randn(2, shape[1])
    made = groups_.group_norm(x, 1e-5, w, bias, groups=groups)
    for a, right in zip(made, layers.group_norm(x, 1e-5, w, bias, groups=groups), strict=True):
        torch.testing.assert_close(a, right, **close)
    found = groups_.group_norm_grad(g, x, *made[1:], w, groups=groups, bias=True)
    for a, right in zip(found, layers.group_norm_grad(g, x, *made[1:], w, groups=groups, bias=True), strict=True):
        torch.testing.assert_close(a, right, **close)
groups_.LEAST = 1
of, pair, channels = Spec((3, 6, 5, 4), float32), Spec((3, 2), float32), Spec((6,), float32)
for name, ins, statics in (("group_norm", (of, float, channels, channels), (2,)),
                           ("group_norm_grad", (of, of, pair, pair, channels), (2, True))):
    kind = infer(row(name), ins, statics)
    kernel = groups_.kernel(kind, lambda key, make: make())
    kernel.compile(torch.device("cpu"))
    operands = [torch.rand(s.shape) if type(s) is Spec else 1e-5 for s in ins]
    for a, right in zip(kernel(*operands), getattr(layers, name)(*operands, **kind.settings), strict=True):
        torch.testing.assert_close(a, right, **close)
assert groups_.kernel(infer(row("group_norm"), (of, float), (2,)), None) is None, "without weight and bias"
print("right")
"""


@pytest.mark.usefixtures("triton_loops")
def test_kernels_of_graphs_give_pytorch_s_results() -> None:
    assert_prints_right(INTERPRETED)
