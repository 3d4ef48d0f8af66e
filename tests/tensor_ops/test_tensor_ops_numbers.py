"""Right numbers: every backend within the errors that docs/tensor_ops.md states, over the whole range of its input."""

import re
from pathlib import Path

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import tensor_ops_oracle as oracle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gt.tensor_ops import calls
from gt.tensor_ops.arrays import narrow, widen

DOCS = Path(__file__).parents[2] / "docs" / "tensor_ops.md"
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=40)
OPS = {
    "silu": (lambda b, x: calls.silu(b, x), oracle.silu, -np.inf),
    "gelu from -1": (lambda b, x: calls.gelu(b, x), oracle.gelu_tanh, -1.0),
    "gelu": (lambda b, x: calls.gelu(b, x), oracle.gelu_tanh, -np.inf),
    "gelu none": (lambda b, x: calls.gelu(b, x, "none"), oracle.gelu_erf, -np.inf),
}


def stated(op, dtype, backend):
    """The error that the documentation states, from its table."""
    rows = re.findall(r"^\| ([\w ,`-]+) \| (\w+) \| ([\d]+) \| ([\d]+) \| ([\d]+) \| ([\d]+) \|$", DOCS.read_text(), re.M)
    table = {(row[0], row[1]): dict(zip(("python", "cpp", "opencl", "cuda"), map(int, row[2:]))) for row in rows}
    return table[op, dtype][backend.name]


def grid(dtype):
    """Values over the whole range: dense where the functions bend, then every power of two."""
    powers = np.exp2(np.arange(-150.0, 128.0))
    x = np.concatenate([np.linspace(-100, 30, 20001), np.linspace(-12, 3, 20001), powers, -powers])
    with np.errstate(over="ignore"):
        return narrow(x.astype(np.float32), "bfloat16") if dtype == "bfloat16" else x.astype(dtype)


def run(backend, function, x, dtype):
    """Through the public way for NumPy's dtypes, by the backend itself for bfloat16, which NumPy lacks."""
    if dtype != "bfloat16":
        return function(backend, x)
    ml_dtypes = pytest.importorskip("ml_dtypes")
    return widen(function(backend, x.view(ml_dtypes.bfloat16)).view(np.uint16), dtype)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_errors_stay_within_the_documented_bounds(backend, op, dtype):
    function, right, lowest = OPS[op]
    x = grid(dtype)
    values = widen(x, dtype).astype(np.float64)
    x, values = x[values >= lowest], values[values >= lowest]
    assert oracle.ulps(run(backend, function, x, dtype), right(values), dtype) <= stated(op, dtype, backend)


@pytest.mark.parametrize("op", OPS)
def test_float64_errors_stay_within_the_documented_bounds(backend, op):
    mpmath = pytest.importorskip("mpmath")
    mpmath.mp.prec = 200
    function, _, lowest = OPS[op]
    x = np.concatenate([np.linspace(-705, 40, 150), np.linspace(-20, 3, 150), np.exp2(np.arange(-1000.0, 1000, 40))])
    x = x[x >= max(lowest, -20 if op == "gelu" else -36 if "none" in op else -705)]

    def right(v):
        v = mpmath.mpf(float(v))
        if op == "gelu none":
            return v / 2 * mpmath.erfc(-v / mpmath.sqrt(2))
        a = v if op == "silu" else 2 * mpmath.sqrt(2 / mpmath.pi) * (v + mpmath.mpf("0.044715") * v**3)
        return v / (1 + mpmath.exp(-a))

    got, worst = function(backend, x), 0.0
    for y, want in zip(got, map(right, x)):
        unit = mpmath.mpf(2) ** (max(mpmath.frexp(want)[1] - 1, -1022) - 52)
        worst = max(worst, float(abs(mpmath.mpf(float(y)) - want) / unit))
    assert worst <= stated(op, "float64", backend)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("columns", [1, 15, 16, 17, 1000, 4096, 20000])
def test_rms_norm_errors_stay_within_the_documented_bounds(backend, dtype, columns):
    rng = np.random.default_rng(columns)
    x = (rng.standard_normal((5, columns)) * [[1e-3], [1], [30], [0.1], [5]]).astype(dtype)
    weight = rng.standard_normal(columns).astype(dtype)
    got = calls.rms_norm(backend, x, weight)
    assert oracle.ulps(got, oracle.rms_norm(x, weight, 1e-6), dtype) <= stated("rms_norm", dtype, backend)


@pytest.mark.parametrize("dtype,scale", [("float32", 1e30), ("float32", 1e-30), ("float64", 1e250), ("float64", 1e-250)])
def test_rms_norm_of_squares_out_of_range_is_right(backend, dtype, scale):
    x = (np.random.default_rng(0).standard_normal((3, 300)) * scale).astype(dtype)
    weight = np.ones(300, dtype)
    got = calls.rms_norm(backend, x, weight, 0.0)
    assert oracle.ulps(got, oracle.rms_norm(x, weight, 0.0), dtype) <= stated("rms_norm", dtype, backend)


def test_rms_norm_of_infinity_nan_and_zero_follows_arithmetic(backend):
    x = np.ones((4, 20), np.float32)
    x[0, 3], x[1, 3], x[2] = np.inf, np.nan, 0
    got = calls.rms_norm(backend, x, np.ones(20, np.float32))
    assert np.isnan(got[0, 3]) and np.all(np.delete(got[0], 3) == 0)
    assert np.all(np.isnan(got[1]))
    assert np.all(got[2] == 0)
    assert np.all(np.isnan(calls.rms_norm(backend, x[2:3], np.ones(20, np.float32), 0.0)))


@QUICK
@given(data=st.data())
def test_any_floats_give_the_right_answer(backend, data):
    dtype = data.draw(st.sampled_from([np.float16, np.float32, np.float64]))
    x = data.draw(hnp.arrays(dtype, SHAPES, elements=st.floats(width=np.dtype(dtype).itemsize * 8)))
    for function, right, _ in OPS.values():
        got = function(backend, x)
        assert got.shape == x.shape and got.dtype == x.dtype
        # Far down gelu's tail the relative error grows; here the absolute one is held.
        want = right(x)
        with np.errstate(over="ignore"):
            np.testing.assert_allclose(got, want.astype(dtype), rtol=200 * np.finfo(dtype).eps, atol=1e-30)


@QUICK
@given(data=st.data())
def test_rms_norm_of_any_finite_floats_is_right(backend, data):
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    floats = st.floats(-(2.0**50), 2.0**50, width=32)
    x = data.draw(hnp.arrays(dtype, SHAPES, elements=floats))
    weight = data.draw(hnp.arrays(dtype, x.shape[-1:], elements=st.floats(-100, 100, width=32)))
    eps = data.draw(st.floats(1e-12, 1.0))
    got = calls.rms_norm(backend, x, weight, eps)
    want = oracle.rms_norm(x, weight, eps)
    np.testing.assert_allclose(got, want.astype(dtype), rtol=8 * np.finfo(dtype).eps, atol=1e-37)


def test_the_limits_are_taken_at_infinity(backend):
    x = np.array([np.inf, -np.inf, np.nan, -1e4, -3e38, 3e38, 0.0, -0.0], np.float32)
    for function in (calls.silu, calls.gelu, lambda b, v: calls.gelu(b, v, "none")):
        got = function(backend, x)
        assert got[0] == np.inf and np.isnan(got[2]) and got[5] == x[5]
        assert np.all(got[[1, 3, 4, 6, 7]] == 0)
        assert np.signbit(got[7])
