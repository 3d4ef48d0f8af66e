"""Kernels of CUDA graphs give PyTorch's results; here on the CPU, by Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

INTERPRETED = """
import warnings
warnings.simplefilter("ignore")  # NumPy under the interpreter remarks on overflows
import torch
from gt.worker.engine.torch import graph_kernels as kernels, layers

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
want = torch.nn.functional.gelu(a.clamp(min=-1e4))
torch.testing.assert_close(kernels.gelu(a, tanh=False), want, equal_nan=True, rtol=1e-5, atol=1e-6)
x = torch.randn(5, 7, 4, 3)
for image in (x, x.to(memory_format=torch.channels_last), x.transpose(2, 3)):
    for keepdims in (False, True):
        found = kernels.channel_sums(image, axis=(0, 2, 3), keepdims=keepdims)
        torch.testing.assert_close(found, image.sum((0, 2, 3), keepdim=keepdims), **close)
print("right")
"""


@pytest.mark.usefixtures("triton_loops")
def test_kernels_of_graphs_give_pytorch_s_results() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", INTERPRETED], capture_output=True, text=True, env={**os.environ, "TRITON_INTERPRET": "1"}
    )
    assert ran.stdout.strip() == "right", ran.stderr[-2000:]
