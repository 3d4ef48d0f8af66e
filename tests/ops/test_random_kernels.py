"""Random numbers in C and in Triton equal those of NumPy's passes, bit for bit."""

from __future__ import annotations

import importlib.util
import zlib

import numpy as np
import pytest
import torch

from gt.worker.engine import philox
from gt.worker.engine.numpy import NumpyNamespace as NumPy
from gt.worker.engine.torch.namespace import TorchNamespace as Torch
from tests.ops.interpreted import assert_prints_right

SEEDS = [(5, 1), ((7 << 33) + 9, (3 << 32) + 2)]


@pytest.mark.skipif(philox.NATIVE is None, reason="built without a compiler, or GT_NATIVE=0")
def test_c_gives_the_same_bits_on_every_processor() -> None:
    """The digest is that of x86-64 with AVX-512 and of aarch64."""
    assert zlib.crc32(NumPy().normals(12345, 7, 3, 60_000).tobytes()) == 2456046964


@pytest.mark.skipif(philox.NATIVE is None, reason="built without a compiler, or GT_NATIVE=0")
@pytest.mark.parametrize("first, count", [(0, 1), (3, 2000), (4097, 5001), (2**34 - 1001, 5001), (5, 3 * philox.NATIVE_SHARE)])
def test_c_gives_the_bits_of_numpy(first: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(count)
    for seed, number in SEEDS:
        found = []
        for native in (philox.NATIVE, None):
            monkeypatch.setattr(philox, "NATIVE", native)
            monkeypatch.setattr(philox, "_threads", lambda: 2)
            found.append([
                philox.fractions(seed, number, first, count), philox.words(seed, number, first, count),
                philox.bernoulli(seed, number, first, count, 20_000),
                Torch(torch.device("cpu")).dropped(x, 0.3, seed, number, first).numpy(),
                NumPy().normals(seed, number, first, count),
            ])  # fmt: skip
            monkeypatch.undo()
        for a, b in zip(found[0][:-1], found[1][:-1]):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(found[0][-1], found[1][-1], rtol=1e-5, atol=1e-6)


INTERPRETED = """
import warnings
warnings.simplefilter("ignore")  # NumPy under the interpreter remarks on overflows
import numpy as np, torch
from gt.worker.engine import philox
from gt.worker.engine.numpy import NumpyNamespace
from gt.worker.engine.torch import random_kernels as kernels

cpu = torch.device("cpu")
for first, count in ((0, 5), (3, 2500)):
    for seed, number in ((5, 1), ((7 << 33) + 9, (3 << 32) + 2)):
        for s, n in ((seed, number), (torch.tensor(seed), torch.tensor(number))):
            want = philox.fractions(seed, number, first, count)
            np.testing.assert_array_equal(kernels.uniform(s, n, first, count, cpu), want)
            want = NumpyNamespace().normals(seed, number, first, count)
            np.testing.assert_allclose(kernels.normal(s, n, first, count, cpu), want, rtol=1e-5, atol=1e-6)
            a = torch.randn(count)
            kept = torch.from_numpy(philox.bernoulli(seed, number, first, count, round(0.3 * 65536)))
            want = torch.where(kept, a * (1 / 0.7), torch.zeros(()))
            assert torch.equal(kernels.dropout(a, 0.3, s, n, first), want)
            half = kernels.dropout(a.half(), 0.3, s, n, first)
            assert half.dtype is torch.float16 and torch.equal(half != 0, kept & (a.half() != 0))
assert (kernels.dropout(torch.ones(9), 1.0, 5, 1, 0) == 0).all()
print("right")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not there")
def test_triton_gives_the_bits_of_numpy() -> None:
    """On the CPU, by Triton's interpreter."""
    assert_prints_right(INTERPRETED)
