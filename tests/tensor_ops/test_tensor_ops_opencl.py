"""The OpenCL backend's own matters: results in lent memory, and calls from many threads."""

import threading

import numpy as np
import pytest
import tensor_ops_oracle as oracle

from gt.tensor_ops import calls
from gt.tensor_ops.opencl import backend as opencl

pytestmark = pytest.mark.skipif(opencl.reason_unavailable() is not None, reason="no OpenCL device")


@pytest.mark.parametrize("in_place", [False, True])
def test_results_lie_in_out_with_and_without_mapping(in_place, monkeypatch):
    on = opencl.device()
    if in_place and not on.in_place:
        pytest.skip("this device keeps results to itself until they are mapped")
    monkeypatch.setitem(on.__dict__, "in_place", in_place)
    x = np.random.default_rng(0).standard_normal((65, 1031)).astype(np.float32)
    weight, out = np.linspace(1, 2, 1031, dtype=np.float32), np.zeros_like(x)
    for size in (1, 17, 65):
        calls.silu(opencl, x[:size], out[:size])
        assert oracle.ulps(out[:size], oracle.silu(x[:size]), "float32") <= 8
        calls.rms_norm(opencl, x[:size], weight, 1e-6, out[:size])
        assert oracle.ulps(out[:size], oracle.rms_norm(x[:size], weight, 1e-6), "float32") <= 8


def test_many_callers_at_once_all_get_right_answers():
    wrong = []

    def call(value):
        x = np.full((16, 512), value, np.float32)
        for _ in range(20):
            y = calls.silu(opencl, x)
            if not np.all(y == y[0, 0]) or abs(y[0, 0] - oracle.silu(value)) > 1e-5:
                wrong.append(value)

    threads = [threading.Thread(target=call, args=(i / 4,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_rows_of_one_group_do_not_mix(monkeypatch):
    on = opencl.device()
    if on.row_items != 1:
        pytest.skip("this device gives each row a group")
    monkeypatch.setattr(on, "row_groups", 4)
    x = np.random.default_rng(1).standard_normal((30, 1031)).astype(np.float32)
    x *= np.linspace(0.1, 30, 30, dtype=np.float32)[:, None]
    x[3], x[8], x[15] = x[3] * np.float32(1e30), x[8] * np.float32(1e-30), 0
    weight, rstd = np.linspace(1, 2, 1031, dtype=np.float32), np.zeros(30, np.float32)
    out = x.copy()
    opencl.rms_norm(out, weight, out, 1e-6, "float32", rstd)
    assert oracle.ulps(out, oracle.rms_norm(x, weight, 1e-6), "float32") <= 8
    assert np.allclose(rstd, 1 / np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=1) + 1e-6), rtol=1e-5)
