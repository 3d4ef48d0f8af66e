"""Random numbers: the same for a seed on every engine, and distributed as their names say."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import gt

LINES = """
gt.rand(3, 5); gt.randn(4, 3); gt.randint(-3, 9, (4, 4)); gt.randperm(20); gt.normal(1.0, 2.0, (3, 3))
gt.bernoulli(gt.full((5, 5), 0.3)); gt.multinomial(gt.tensor([0.1, 0.0, 0.5, 0.4]), 3)
gt.multinomial(gt.tensor([[0.1, 0.9], [0.5, 0.5]]), 7, replacement=True); gt.nn.functional.dropout(gt.ones(6, 7), 0.4)
gt.rand_like(gt.ones(3)); gt.randn_like(gt.ones(2, 2, dtype=gt.float64)); gt.zeros(4).uniform_(1, 2)
gt.zeros(4).normal_(1, 2); gt.zeros(9).bernoulli_(0.3); gt.zeros(5).exponential_(); gt.zeros(4).cauchy_()
gt.zeros(4).geometric_(0.5); gt.zeros(4).log_normal_(); gt.zeros(4).random_(5); gt.randint_like(gt.zeros(3), 2, 9)
"""
CALLS = [c.strip() for c in LINES.replace("\n", ";").split(";") if c.strip()]


def drawn(line: str, engine: str) -> np.ndarray:
    with gt.testing.cluster(1, engine):
        gt.manual_seed(5)
        return eval(line).numpy()


@pytest.mark.parametrize("line", CALLS)
def test_a_seed_gives_the_same_numbers_on_every_engine(line):
    first = drawn(line, "numpy")
    np.testing.assert_array_equal(first, drawn(line, "numpy"))
    np.testing.assert_allclose(first, drawn(line, "pytorch"), rtol=1e-5, atol=1e-6)


@pytest.fixture(params=["numpy", "pytorch"])
def _cluster(request):
    with gt.testing.cluster(1, request.param):
        gt.manual_seed(1)
        yield


N = 40_000


@pytest.mark.usefixtures("_cluster")
class TestDistributions:
    def test_means_and_deviations(self):
        for draw, mean, std in (
            (gt.rand(N), 0.5, 12**-0.5), (gt.randn(N), 0, 1), (gt.normal(2.0, 3.0, (N,)), 2, 3),
            (gt.bernoulli(gt.full((N,), 0.3)), 0.3, 0.21**0.5), (gt.zeros(N).exponential_(2.0), 0.5, 0.5),
            (gt.randint(0, 10, (N,)).float(), 4.5, 8.25**0.5), (gt.zeros(N).geometric_(0.25), 4, 12**0.5),
        ):  # fmt: skip
            assert abs(draw.mean().item() - mean) < 5 * std / N**0.5
            assert abs(draw.std().item() - std) < 0.03 * std

    def test_a_permutation_has_every_number_once(self):
        found = gt.randperm(1000).numpy()
        assert sorted(found) == list(range(1000)) and list(found) != list(range(1000))

    def test_multinomial_draws_by_weight_and_never_a_weight_of_zero(self):
        weights = gt.tensor([1.0, 0.0, 3.0])
        found = np.bincount(gt.multinomial(weights, N, replacement=True).numpy(), minlength=3) / N
        np.testing.assert_allclose(found, [0.25, 0.0, 0.75], atol=0.02)
        for _ in range(20):
            assert sorted(gt.multinomial(weights, 2).numpy()) == [0, 2]

    def test_dropout_keeps_a_share_and_its_gradient_drops_the_same(self):
        x = gt.ones(200, 201, requires_grad=True)
        y = gt.nn.functional.dropout(x, 0.25)
        y.sum().backward()
        kept = y.numpy()
        np.testing.assert_allclose(np.unique(kept), [0, 4 / 3], rtol=1e-6)
        assert abs((kept > 0).mean() - 0.75) < 0.02
        np.testing.assert_array_equal(x.grad.numpy(), kept)
        assert not np.array_equal(kept, gt.nn.functional.dropout(x, 0.25).numpy())


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_finfo_is_pytorchs(name):
    ours, theirs = gt.finfo(getattr(gt, name)), torch.finfo(getattr(torch, name))
    for what in ("bits", "eps", "max", "min", "tiny", "smallest_normal", "resolution"):
        assert getattr(ours, what) == getattr(theirs, what), what


@pytest.mark.parametrize("name", ["uint8", "int8", "int16", "int32", "int64"])
def test_iinfo_is_pytorchs(name):
    ours, theirs = gt.iinfo(getattr(gt, name)), torch.iinfo(getattr(torch, name))
    for what in ("bits", "max", "min"):
        assert getattr(ours, what) == getattr(theirs, what), what


def test_numbers_are_philoxs_on_every_engine_and_in_any_piece() -> None:
    from gt.ops import random
    from gt.worker.engine import philox
    from gt.worker.engine.torch.engine import TorchEngine

    # the known answer for zeros that is published with the generator (Random123)
    words = random.philox(torch, torch.tensor([0]), 0, 0)
    assert " ".join(f"{int(w):08x}" for w in words) == "6627e8d5 e169c58d bc57ac4c 9b00dbd8"
    xp = TorchEngine("cpu").xp
    for seed, number, first, count in ((7, 1, 0, 40), (2**62 - 3, 2**40 + 5, 13, 5001), (5, 5, 1 << 35, 600_000)):
        found = philox.words(seed, number, first, count)
        some = min(count, 4000)
        by_torch = random.lanes(xp, seed, torch.tensor(number), first, some, 32)  # as in a graph, where numbers are tensors
        np.testing.assert_array_equal(by_torch.numpy(), found[:some])
        np.testing.assert_array_equal(philox.words(seed, number, first + count - 9, 9), found[-9:])
        kept = philox.bernoulli(seed, number, first, some, 9000)
        np.testing.assert_array_equal(kept, random.bernoulli(xp, seed, torch.tensor(number), first, some, 9000).numpy())


@pytest.mark.parametrize("engine", ["numpy", "pytorch"])
def test_the_two_normal_numbers_of_a_pair_are_independent(engine: str) -> None:
    with gt.testing.cluster(1, engine):
        gt.manual_seed(3)
        even, odd = gt.randn(200_000, 2).numpy().astype(np.float64).T
    for a, b in ((even, odd), (even**2, odd**2), (abs(even), abs(odd)), (even, odd**2), (even[1:], odd[:-1])):
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / len(a) ** 0.5
    edges = [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0]
    table, *_ = np.histogram2d(even, odd, [[-np.inf, *edges, np.inf]] * 2)
    share = np.diff([0.0, *(0.5 * (1 + math.erf(e / 2**0.5)) for e in edges), 1.0])
    want = np.outer(share, share) * len(even)
    assert ((table - want) ** 2 / want).sum() < 63 + 5 * 126**0.5  # chi-square with 63 degrees of freedom, five deviations


@pytest.mark.parametrize("first, count", [(0, 1), (1, 1), (1, 2), (2, 7), (5, 6), (1001, 998)])
def test_a_piece_has_the_normal_numbers_of_the_whole(first: int, count: int) -> None:
    from gt.ops import random
    from gt.worker.engine.numpy import NumpyNamespace
    from gt.worker.engine.torch.engine import TorchEngine

    for draw in (NumpyNamespace().normals, TorchEngine("cpu").xp.normals):
        np.testing.assert_array_equal(np.asarray(draw(7, 1, first, count)), np.asarray(draw(7, 1, 0, 2000))[first:][:count])
    for xp in (NumpyNamespace(), TorchEngine("cpu").xp):
        whole = np.asarray(random.normals(xp, 7, 1, 0, 2000))
        np.testing.assert_allclose(np.asarray(random.normals(xp, 7, 1, first, count)), whole[first:][:count], rtol=1e-6)
