"""Plain arithmetic on small tensors, which workers on PyTorch run by NumPy: the same bits as PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gt
from gt.small import NATIVE
from gt.testing import cluster
from gt.worker.engine.torch import engine as torch_engine
from gt.worker.engine.torch import numpy_traces

pytestmark = pytest.mark.default("GT_AUTO_COMPILE", "GT_TRACE", "GT_WORKER_BATCH_SIZE")  # a test of their effect

SHAPES = [(), (3,), (1,), (2, 3), (2, 1), (0, 3)]
ODD = [0.0, -0.0, 1.0, -1.5, 1e-40, 3e38, float("inf"), float("-inf"), float("nan"), 1e-3, 7.0]
TWO, ONE = ["add", "sub", "mul", "div"], ["neg", "abs", "square", "sqrt"]
STEP = st.one_of(
    st.tuples(st.sampled_from(TWO), st.integers(0, 4), st.integers(0, 4), st.integers(0, 4), st.just(0.0)),
    st.tuples(st.sampled_from(TWO), st.integers(0, 4), st.integers(0, 4), st.just(-1), st.sampled_from([0.1, 3, -2.5, 1e10])),
    st.tuples(st.sampled_from(TWO), st.integers(0, 4), st.just(-1), st.integers(0, 4), st.sampled_from([0.1, 3, -2.5])),
    st.tuples(st.sampled_from(ONE), st.integers(0, 4), st.integers(0, 4), st.just(0), st.just(0.0)),
    st.tuples(st.just("roll"), st.integers(0, 4), st.integers(0, 4), st.just(0), st.sampled_from([0.0, 1.0, -1.0, 5.0, -7.0])),
)


def run(lib: Any, start: list[np.ndarray], body: list, times: int) -> list[list[np.ndarray]]:
    """The values of the variables after each round; numbers change from round to round."""
    begin = [lib.tensor(a) for a in start]
    found = []
    for k in range(times):
        v = list(begin)
        for op, to, a, b, number in body:
            if op in ONE:
                v[to] = getattr(lib, op)(v[a])
                continue
            if op == "roll":
                axes = tuple(range(v[a].ndim))
                v[to] = lib.roll(v[a], [int(number)] * len(axes), axes) if axes else v[a] + number
                continue
            n = number + (k if isinstance(number, int) else 0)
            x, y = (n if i < 0 else v[i] for i in (a, b))
            v[to] = {"add": lambda: x + y, "sub": lambda: x - y, "mul": lambda: x * y, "div": lambda: x / y}[op]()  # noqa: B023
        found.append([t.numpy() for t in v])
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.lists(STEP, min_size=5, max_size=12), st.lists(st.sampled_from(SHAPES), min_size=5, max_size=5),
    st.sampled_from(["float32", "float64"]), st.randoms(use_true_random=False),
)  # fmt: skip
def test_it_gives_the_bits_of_pytorch(body: list, shapes: list, dtype: str, draw: Any) -> None:
    common = draw.choice([(2, 3), (3,), ()])  # shapes that go together
    shapes = [s if np.broadcast_shapes(s, common) == common or s == common else common for s in shapes if s != (0, 3)] or [
        common
    ]
    shapes = (shapes * 5)[:5]
    start = [np.array([draw.choice(ODD) for _ in range(int(np.prod(s)))], dtype).reshape(s) for s in shapes]
    with cluster(1, "pytorch"):
        mine = run(gt, start, body, 6)
    for ours, theirs in zip(mine, run(torch, start, body, 6)):
        for a, b in zip(ours, theirs):
            assert a.shape == b.shape and a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(np.signbit(a[~np.isnan(a)]), np.signbit(b[~np.isnan(b)]))


def test_it_runs_and_is_counted_and_larger_or_other_work_is_left_to_pytorch() -> None:
    def calls(body: Any, *shape: int, dtype: Any = gt.float64) -> float:
        with cluster(1, "pytorch") as c:
            x = gt.ones(*shape, dtype=dtype)
            for _ in range(8):
                body(x).numpy()
            traces = c.workers[0].stats()["traces"]
            assert traces["calls"] >= 4
            return traces.get("numpy_calls", 0)

    def plain(x: Any) -> Any:
        return ((x * 0.5 + x - 1.0) / 3.0).abs().sqrt()

    assert calls(plain, 16, 16) >= 4 and calls(plain, 3) >= 4
    assert NATIVE is None or calls(plain, 16, 16, dtype=gt.float32) == 0, "these run in C"
    assert calls(plain, 256, 256) == 0
    assert calls(plain, 4, 4, dtype=gt.bfloat16) == 0
    assert calls(lambda x: plain(x).exp(), 4, 4) == 0
    assert calls(heat, 16, 16) >= 4 and calls(lambda x: heat(x).flip(0), 16, 16) == 0


def heat(u: Any) -> Any:
    """One step of a stencil, of PyTorch's tensors or GT's."""
    lib = gt if isinstance(u, gt.Tensor) else torch
    return u + 0.1 * (lib.roll(u, 1, 0) + lib.roll(u, -1, 0) + lib.roll(u, 1, 1) + lib.roll(u, -1, 1) - 4 * u)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_stencil_gives_the_bits_of_pytorch_and_a_roll_by_changing_numbers_too(dtype: str) -> None:
    start = np.random.default_rng(0).standard_normal((16, 24)).astype(dtype)
    with cluster(1, "pytorch") as c:
        u, other = gt.tensor(start), torch.tensor(start)
        for _ in range(10):
            for _ in range(3):
                u, other = heat(u), heat(other)
            np.testing.assert_array_equal(u.numpy(), other.numpy())
        runs = dtype == "float32" and NATIVE is not None
        assert c.workers[0].stats()["traces"]["small_run_ops" if runs else "numpy_calls"] >= 4
        for k in range(10):
            u, other = (heat(lib.roll(x, k, 1) * 0.5) for lib, x in ((gt, u), (torch, other)))
            np.testing.assert_array_equal(u.numpy(), other.numpy())


def test_values_that_others_hold_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only values made in the call are written over, and no result shares memory with an input."""
    used: list[int] = []
    making = numpy_traces.NumpyTrace.run
    monkeypatch.setattr(numpy_traces.NumpyTrace, "run", lambda self, table, ins: used.append(1) or making(self, table, ins))
    with cluster(1, "pytorch") as c:
        assert isinstance(c.workers[0].engine, torch_engine.TorchEngine)
        x, y = gt.full((4,), 2.0, dtype=gt.float64), gt.full((4,), 3.0, dtype=gt.float64)
        kept = []
        for _ in range(8):
            z = ((x + y) * y - x) / y + x
            kept.append(z)
            x_before = x
            x = x + z * 0.0
            kept.append(x_before)
            z.numpy()
        assert used
        values = [t.numpy() for t in kept]
        for z_value, x_value in zip(values[::2], values[1::2]):
            np.testing.assert_array_equal(x_value, np.full(4, 2.0, np.float32))
            np.testing.assert_allclose(z_value, np.full(4, 13.0 / 3.0 + 2.0), rtol=1e-6)
        np.testing.assert_array_equal(y.numpy(), np.full(4, 3.0, np.float32))
