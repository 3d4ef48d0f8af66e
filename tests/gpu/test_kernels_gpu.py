"""Every row's kernel on the GPU gives the NumPy engine's results; attention also at sizes that its fused kernels take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gt.ops import TABLE, Row, infer
from gt.spec import Spec, bfloat16, bool_, float16, float32, int64
from gt.worker.engine import philox
from gt.worker.engine.choose import make as engine_for
from gt.worker.engine.torch import layers, random_kernels, training
from gt.worker.engine.torch.dtypes import TORCH
from gt.worker.engine.torch.graph_function import graph_kernels
from tests.ops import samples
from tests.ops.samples import ROWS, Sample, assert_close, assert_same, several
from tests.ops.test_kernels import run_numpy

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

ENGINE = engine_for("pytorch")


@pytest.fixture(autouse=True)
def _full_precision(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def run_gpu(sample: Sample) -> tuple:
    operands: list[Any] = [o.to("cuda") if isinstance(o, torch.Tensor) else o for o in samples.for_torch(sample)]
    return tuple(t.cpu() for t in several(ENGINE.kernel(sample.kind)(*operands)))


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_the_gpu_gives_numpy_s_results(row: Row):
    for sample in (*samples.plain(row), *samples.varied(row)):
        rtol, atol = samples.coarsest(sample.kind)
        assert_same(sample.kind, run_gpu(sample), run_numpy(sample), sample.id, (rtol * 5, atol * 5))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("lengths", [(70, 70), (33, 64)])
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=lambda d: d.name)
def test_fused_attention_gives_numpy_s_results(dtype, lengths, heads, causal):
    q, k = Spec((2, 4, lengths[0], 32), dtype), Spec((2, heads, lengths[1], 32), dtype)
    forward = samples.make(TABLE["attention"], (q, k, k, 0.2), {"causal": causal})
    want = run_numpy(forward)
    for a, b, spec in zip(run_gpu(forward), want, forward.kind.outs):
        assert_close(a, b, spec, forward.id, (2e-2, 2e-2) if dtype.size == 2 else (1e-4, 1e-4))
    row = TABLE["attention_grad"]
    kind = infer(row, (q, q, k, k, q, forward.kind.outs[1], float), (causal,))
    g = samples.draw(q, np.random.default_rng(2))
    backward = Sample(kind, [g, *forward.operands[:3], *want, 0.2])
    for a, b, spec in zip(run_gpu(backward), run_numpy(backward), kind.outs):
        assert_close(a, b, spec, backward.id, (5e-2, 5e-2) if dtype.size == 2 else (1e-4, 1e-4))


MASKS = [(2, 1, 1, 64), (2, 4, 33, 64), (33, 64), (64,), (2, 1, 1, 61), (33, 1), (2, 4, 33, 61)]


@pytest.mark.parametrize("shape", MASKS, ids=str)
@pytest.mark.parametrize("of", [float32, float16, bfloat16, bool_], ids=lambda d: d.name)
def test_masked_attention_is_fused_and_gives_numpy_s_results(of, shape):
    """Queries whose keys are all masked give zeros."""
    dtype, rng = float32 if of is bool_ else of, np.random.default_rng(3)
    keys = 61 if shape[-1] == 61 else 64
    q, k, m = Spec((2, 4, 33, 32), dtype), Spec((2, 4, keys, 32), dtype), Spec(shape, of)
    forward = samples.make(TABLE["attention"], (q, k, k, 0.2, m), {"causal": False})
    kept = rng.random(shape) < 0.7
    kept[(0,) * (len(shape) - 1)] = len(shape) == 1  # the first row, or the first sample
    mask = kept if of is bool_ else np.where(kept, rng.standard_normal(shape), -np.inf).astype(forward.operands[4].dtype)
    forward = Sample(forward.kind, [*forward.operands[:4], mask])
    assert training._fused(*(torch.empty(s.shape, dtype=TORCH[dtype], device="cuda") for s in (q, k, k)), (mask,), False)
    want = run_numpy(forward)
    for a, b, spec in zip(run_gpu(forward), want, forward.kind.outs):
        assert_close(a, b, spec, forward.id, (2e-2, 2e-2) if dtype.size == 2 else (1e-4, 1e-4))
    kind = infer(TABLE["attention_grad"], (q, q, k, k, q, forward.kind.outs[1], float, m), (False,))
    backward = Sample(kind, [samples.draw(q, rng), *forward.operands[:3], *want, 0.2, mask])
    for a, b, spec in zip(run_gpu(backward), run_numpy(backward), kind.outs):
        assert_close(a, b, spec, backward.id, (5e-2, 5e-2) if dtype.size == 2 else (1e-4, 1e-4))


@pytest.mark.parametrize("shape", [(2048, 1536), (8, 256, 1152), (4160, 1024), (3, 7), (5000, 3), (64, 65, 256)], ids=str)
def test_the_gradient_of_a_bias_is_the_sum_over_rows(shape):
    g = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    kind = infer(TABLE["linear_bias_grad"], (Spec(shape, float32),), ())
    found = ENGINE.kernel(kind)(torch.from_numpy(g).cuda()).cpu().numpy()
    theirs = torch.from_numpy(g).cuda().flatten(0, -2).sum(0).cpu().numpy()
    want = g.reshape(-1, shape[-1]).sum(0, dtype=np.float64)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=max(1e-4, 4 * float(np.abs(theirs - want).max())))


NORMS = [((300, 384), 1), ((7, 33, 400), 1), ((64, 40, 33), 2), ((70000, 1), 1), ((17, 4096), 1)]


@pytest.mark.parametrize("shape, ndim", NORMS, ids=str)
@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=lambda d: d.name)
def test_graph_kernels_of_norms_give_pytorch_s_results(shape, ndim, dtype):
    a, b, g = torch.randn(3, *shape, dtype=TORCH[dtype], device="cuda")
    w, bias = torch.randn(2, *shape[len(shape) - ndim :], dtype=TORCH[dtype], device="cuda")
    narrow = dtype.size == 2
    close = {"rtol": 3e-2, "atol": 3e-2} if narrow else {"rtol": 1e-4, "atol": 1e-4}
    total, y, mean, rstd = layers.add_layer_norm(a, b, 1e-5, w, bias, ndim=ndim)
    if not narrow:
        kind = infer(TABLE["add_layer_norm"], (*[Spec(shape, dtype)] * 2, float, *[Spec(w.shape, dtype)] * 2), (ndim,))
        found = graph_kernels.kernel(kind)(a, b, 1e-5, w, bias)
        for x, right in zip(found, (total, y, mean, rstd), strict=True):
            torch.testing.assert_close(x, right, **close)
    want = layers.layer_norm_grad(*(x.double() for x in (g, total, mean, rstd, w)), ndim=ndim, bias=True)
    for other in (None, b):
        found = graph_kernels.add_layer_norm_grad(other, g, total, mean, rstd, w, ndim=ndim, bias=True)
        torch.testing.assert_close(found[0].double(), want[0] + (0 if other is None else other.double()), **close)
        for x, right in zip(found[1:], want[1:], strict=True):
            torch.testing.assert_close(x.double(), right, rtol=close["rtol"], atol=10 * close["atol"])


@pytest.mark.parametrize("shape", [(64, 64, 32, 32), (64, 128, 8, 8), (64, 3, 32, 32), (5, 33, 40, 41)], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_graph_kernels_of_channel_sums_are_sums(shape, layout):
    a = torch.randn(shape, device="cuda").to(memory_format=layout)
    run = graph_kernels.kernel(infer(TABLE["sum"], (Spec(shape, float32),), ((0, 2, 3), False)))
    assert getattr(run, "func", None) is graph_kernels.channel_sums
    torch.testing.assert_close(run(a).double(), a.double().sum((0, 2, 3)), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=lambda d: d.name)
def test_graph_kernels_of_gelu_give_pytorch_s_results(dtype):
    a = torch.randn(3001, dtype=TORCH[dtype], device="cuda") * 4
    a[:4] = torch.tensor([-torch.inf, torch.inf, torch.nan, -3e4])
    kind = infer(TABLE["gelu"], (Spec((3001,), dtype),), (False,))
    found, want = graph_kernels.kernel(kind)(a), torch.nn.functional.gelu(a.clamp(min=-1e4))
    close = {"rtol": 1e-2, "atol": 1e-2} if dtype.size == 2 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(found, want, equal_nan=True, **close)
    assert found[0] == 0


@pytest.mark.parametrize(("rows", "padding"), [(65, -1), (65, 3), (256, 0)])
@pytest.mark.parametrize("dtype", [float32, float16], ids=lambda d: d.name)
def test_graph_kernels_of_small_tables_give_pytorch_s_gradients(rows, padding, dtype):
    index = torch.randint(0, rows, (8, 256), device="cuda")
    g = torch.randn(8, 256, 100, device="cuda").to(TORCH[dtype])
    ins = Spec(tuple(g.shape), dtype), Spec(tuple(index.shape), int64)
    run = graph_kernels.kernel(infer(TABLE["embedding_grad"], ins, ((rows, 100), padding)))
    assert getattr(run, "func", None) is graph_kernels.embedding_grad
    want = torch.ops.aten.embedding_dense_backward(g.double(), index, rows, padding, False)
    close = {"rtol": 1e-2, "atol": 1e-2} if dtype.size == 2 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(run(g, index).double(), want, **close)


@pytest.mark.skipif(philox.NATIVE is None, reason="built without a compiler, or GT_NATIVE=0")
@pytest.mark.parametrize(("first", "count"), [(0, 100_000), (16, 1 << 20), (3, 70_001), (2**34 - 1001, 5001)])
def test_random_numbers_have_the_bits_of_the_cpu(first, count):
    for seed, number in ((5, 1), ((7 << 33) + 9, (3 << 32) + 2)):
        for s, n in ((seed, number), (torch.tensor(seed, device="cuda"), torch.tensor(number, device="cuda"))):
            for kernel, want in ((random_kernels.normal, philox.normals), (random_kernels.uniform, philox.fractions)):
                found = kernel(s, n, first, count, torch.device("cuda")).cpu().numpy()
                assert found.tobytes() == want(seed, number, first, count).tobytes()
