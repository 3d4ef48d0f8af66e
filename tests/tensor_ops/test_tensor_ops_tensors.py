"""GT tensors in gt.tensor_ops are ops: the same numbers, with gradients, on a worker."""

import numpy as np
import pytest

import gt
from gt import tensor_ops


@pytest.fixture
def cluster():
    with gt.testing.cluster(1, "numpy") as made:
        yield made


def arrays():
    rng = np.random.default_rng(1)
    return rng.standard_normal((3, 5), dtype=np.float32), rng.standard_normal(5, dtype=np.float32)


def test_the_numbers_are_those_of_arrays(cluster):
    x, w = arrays()
    a, b = gt.tensor(x), gt.tensor(w)
    for got, want in (
        (tensor_ops.silu(a), tensor_ops.silu(x)),
        (tensor_ops.gelu(a), tensor_ops.gelu(x)),
        (tensor_ops.gelu(a, "none"), tensor_ops.gelu(x, "none")),
        (tensor_ops.rms_norm(a, b, 1e-3), tensor_ops.rms_norm(x, w, 1e-3)),
    ):
        assert isinstance(got, gt.Tensor) and got.shape == (3, 5)
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)


def test_they_have_gradients(cluster):
    x, w = arrays()
    a, b = gt.tensor(x, requires_grad=True), gt.tensor(w, requires_grad=True)
    tensor_ops.rms_norm(a, b).sum().backward()
    step = 1e-3

    def total(weight):
        return tensor_ops.rms_norm(x.astype(np.float64), weight).sum()

    for i in range(5):
        up, down = w.astype(np.float64), w.astype(np.float64)
        up[i] += step
        down[i] -= step
        assert b.grad.numpy()[i] == pytest.approx((total(up) - total(down)) / (2 * step), rel=1e-3)
    assert a.grad.shape == (3, 5)
    for op in (tensor_ops.silu, tensor_ops.gelu):
        t = gt.tensor(x, requires_grad=True)
        op(t).sum().backward()
        slope = (op(x.astype(np.float64) + step) - op(x.astype(np.float64) - step)) / (2 * step)
        np.testing.assert_allclose(t.grad.numpy(), slope, rtol=1e-3, atol=1e-4)


def test_they_run_where_the_worker_is(cluster):
    tensor_ops.silu(gt.ones(2)).numpy()
    assert cluster.workers[0].stats()["ops"]["silu"] == 1


def test_out_and_a_wrong_weight_are_refused(cluster):
    a = gt.ones(2, 3)
    with pytest.raises(TypeError, match="silu of a GT tensor takes no out"):
        tensor_ops.silu(a, out=a)
    with pytest.raises(ValueError, match=r"expected a weight tensor \(3,\), got \(2,\)"):
        tensor_ops.rms_norm(a, gt.ones(2))
    with pytest.raises(ValueError, match="got ndarray"):
        tensor_ops.rms_norm(a, np.ones(3, np.float32))
    with pytest.raises(ValueError, match="approximate"):
        tensor_ops.gelu(a, "sigmoid")


def test_gt_names_are_the_same_ops(cluster):
    x, w = arrays()
    a, b = gt.tensor(x), gt.tensor(w)
    np.testing.assert_array_equal(gt.silu(a).numpy(), tensor_ops.silu(a).numpy())
    np.testing.assert_array_equal(gt.gelu(a, approximate="tanh").numpy(), tensor_ops.gelu(a).numpy())
    np.testing.assert_array_equal(gt.rms_norm(a, (5,), b, 1e-6).numpy(), tensor_ops.rms_norm(a, b).numpy())
