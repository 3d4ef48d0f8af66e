"""Every row's kernels: results have the shape rule's specs on both engines, and both engines give the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gt.ops import Row
from gt.worker.engine.choose import make as engine_for
from gt.worker.engine.numpy import numpy_dtype
from gt.worker.engine.torch import layers
from gt.worker.engine.torch.dtypes import TORCH
from tests.ops import samples
from tests.ops.samples import ROWS, Sample, assert_same, several

NUMPY, TORCH_ENGINE = engine_for("numpy"), engine_for("pytorch")


def run_numpy(sample: Sample) -> tuple:
    return several(NUMPY.kernel(sample.kind)(*samples.for_numpy(sample)))


def run_torch(sample: Sample) -> tuple:
    return several(TORCH_ENGINE.kernel(sample.kind)(*samples.for_torch(sample)))


def check(sample: Sample) -> None:
    kind = sample.kind
    first, second = run_numpy(sample), run_torch(sample)
    assert len(first) == len(second) == len(kind.outs), sample.id
    for a, b, spec in zip(first, second, kind.outs):
        assert isinstance(a, np.ndarray) and (a.shape, a.dtype) == (spec.shape, numpy_dtype(spec.dtype)), sample.id
        assert isinstance(b, torch.Tensor) and (tuple(b.shape), b.dtype) == (spec.shape, TORCH[spec.dtype]), sample.id
    assert_same(kind, first, second, sample.id)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_both_engines_give_the_specs_of_the_shape_rule_and_the_same_numbers(row: Row):
    assert row.tries, f"{row} has no sample inputs"
    for sample in samples.plain(row):
        check(sample)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_other_dtypes_shapes_and_strides_do_too(row: Row):
    for sample in samples.varied(row):
        check(sample)


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_kernels_leave_their_inputs_alone(row: Row):
    for sample in samples.plain(row):
        for engine, given in ((NUMPY, samples.for_numpy(sample)), (TORCH_ENGINE, samples.for_torch(sample))):
            before = [samples.as_numpy(o).copy() for o in given]
            engine.kernel(sample.kind)(*given)
            for old, new in zip(before, given):
                np.testing.assert_array_equal(old, samples.as_numpy(new), err_msg=sample.id)


@pytest.mark.parametrize("ndim", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_rms_norm_is_the_same_where_pytorch_has_no_fused_one(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, ndim: int):
    a = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    for weight in ((), (a[0] if ndim == 2 else a[0, 0],)):
        want = torch.nn.functional.rms_norm(a, a.shape[3 - ndim :], *weight, eps=1e-5)
        monkeypatch.setattr(layers, "FUSED_RMS_NORM", False)
        found, scale = layers.rms_norm(a, 1e-5, *weight, ndim=ndim)
        torch.testing.assert_close(found, want)
        monkeypatch.undo()
        torch.testing.assert_close(scale, layers.rms_norm(a, 1e-5, *weight, ndim=ndim)[1])
