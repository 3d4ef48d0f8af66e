"""The decomposition of a row gives the results of its kernel."""

from __future__ import annotations

import pytest

import gt
from gt.ops import Row
from gt.spec import Spec
from tests.ops import samples
from tests.ops.samples import ROWS, assert_close, several
from tests.ops.test_gradients import reads_saved
from tests.ops.test_kernels import run_numpy

LOWERED = [r for r in ROWS if r.lower is not None and not reads_saved(r)]


@pytest.fixture(scope="module", autouse=True)
def _cluster():
    with gt.testing.cluster(1, "numpy"):
        yield


@pytest.mark.parametrize("row", LOWERED, ids=lambda r: r.name)
def test_a_decomposition_gives_the_results_of_the_kernel(row: Row):
    for sample in samples.plain(row):
        operands = [gt.tensor(o, dtype=s.dtype) if isinstance(s, Spec) else o for o, s in zip(sample.operands, sample.kind.ins)]
        found = several(row.lower(*operands, **sample.kind.settings))  # type: ignore[misc]
        assert len(found) == len(sample.kind.outs)
        for a, b, spec in zip(found, run_numpy(sample), sample.kind.outs):
            assert a.dtype is spec.dtype, sample.id
            assert_close(a.numpy(), b, spec, sample.id, samples.coarsest(sample.kind))
