"""Operands that only a faulty or hostile client sends: a kernel refuses them, before a library reads or writes outside of its
arrays, or iterates for ever."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gt.errors import LinAlgError
from gt.ops import TABLE, infer
from gt.spec import DTYPES, Spec, float32, int64
from gt.testing import samples
from gt.worker.engine.choose import make
from gt.worker.engine.torch.kernels import OWN

NUMPY, PYTORCH = make("numpy"), make("cpu")
FAR = (1 << 63) - 1


@pytest.fixture(params=(NUMPY, PYTORCH), ids=lambda engine: engine.name)
def engine(request):
    return request.param


def loaded(engine, value):
    array = np.ascontiguousarray(value).reshape(np.shape(value))
    spec = Spec(array.shape, next(d for d in DTYPES if d.name == array.dtype.name))
    if not array.size:
        return torch.from_numpy(array) if engine is PYTORCH else array
    return engine.load(memoryview(array.reshape(-1).view(np.uint8)), spec, True)


def run(engine, name, *operands, **statics):
    row = TABLE[name]
    ins = tuple(samples.spec_of(Spec(o.shape, next(d for d in DTYPES if d.name == o.dtype.name))
                                if isinstance(o, np.ndarray) else o) for o in operands)  # fmt: skip
    kind = infer(row, ins, tuple(statics[n] for n in row.statics))
    return engine.kernel(kind)(*(loaded(engine, o) if isinstance(o, np.ndarray) else o for o in operands))


@pytest.mark.parametrize("value", (-1, 5, 1 << 33, FAR, -FAR - 1))
def test_counts_are_of_numbers_within_the_result(engine, value):
    """NumPy writes before its array for 2 ** 63 - 1, and makes one of 64 GB for 2 ** 33."""
    with pytest.raises(IndexError, match="expected values from 0 to 4"):
        run(engine, "bincount", np.array([2, value, 0], np.int64), size=5)
    assert list(run(engine, "bincount", np.array([2, 4, 2], np.int64), size=5)) == [0, 0, 2, 0, 1]


@pytest.mark.parametrize("bad", (np.inf, -np.inf, np.nan))
@pytest.mark.parametrize("name, statics", (("svd", {"full": False}), ("eigh", {}), ("eig", {})))
def test_matrices_of_iterations_are_finite(engine, name, statics, bad):
    """With an infinity NumPy's svd never returns."""
    matrix = np.eye(4, dtype=np.float32)
    matrix[1, 2] = matrix[2, 1] = bad
    with pytest.raises(LinAlgError, match="not finite"):
        run(engine, name, matrix, **statics)


def test_pseudo_inverses_are_of_finite_matrices(engine):
    for hermitian in (False, True):
        with pytest.raises(LinAlgError, match="not finite"):
            run(engine, "pinv", np.full((3, 3), np.inf, np.float32), 0.0, 1e-6, hermitian=hermitian)


@pytest.mark.parametrize("name", ("adam", "adamax", "nadam", "radam", "adafactor"))
def test_numbers_of_updates_are_powers_of_floats(name):
    """A power of integers of 62 bits takes for ever."""
    sample = next(samples.plain(TABLE[name]))
    numbers = [1 << 62 if type(o) in (int, float) else o for o in sample.operands]
    with pytest.raises(OverflowError):
        NUMPY.kernel(sample.kind)(*numbers)


@pytest.mark.parametrize("name", [n for n in OWN if "_polynomial_" in n])
def test_degrees_are_bounded(engine, name):
    x = np.linspace(-0.9, 0.9, 4, dtype=np.float32)
    with pytest.raises(ValueError, match="a degree of at most"):
        run(engine, name, x, 1 << 40)
    with pytest.raises(ValueError, match="a degree of at most"):
        run(engine, name, x, np.array([1, 2, 3, 1 << 40], np.int64))


def test_an_order_of_polygamma_has_no_long_factorial(engine):
    assert np.isinf(np.asarray(run(engine, "polygamma", np.full(2, 0.5, np.float32), n=1 << 47))).all()


@pytest.mark.parametrize(
    "pivots", ([1, 2, 3, -4], [0, 1, 2, 3], [5, 1, 1, 1], [-1, 2, -3, -3], [1, -2, -2, -2], [-(1 << 31), 1, 1, 1])
)
def test_pivots_are_those_of_a_factorisation(pivots):
    """LAPACK exchanges the rows that they name, without a check."""
    a, b = np.eye(4, dtype=np.float32), np.ones((4, 2), np.float32)
    with pytest.raises(IndexError, match="expected pivots of ldl_factor"):
        run(PYTORCH, "ldl_solve", a, np.array(pivots, np.int32), b, hermitian=False)


def test_pivots_of_a_factorisation_are_taken():
    torch.manual_seed(0)
    blocks = 0
    for _ in range(20):
        a, b = torch.randn(3, 6, 6), torch.randn(3, 6, 2)
        factors, pivots = torch.linalg.ldl_factor(a + a.mT)
        blocks += int((pivots < 0).sum())
        want = torch.linalg.ldl_solve(factors, pivots, b)
        found = run(PYTORCH, "ldl_solve", factors.numpy(), pivots.numpy(), b.numpy(), hermitian=False)
        torch.testing.assert_close(found, want)
    assert blocks


@pytest.mark.parametrize("target", (-1, 3, 1 << 40, -FAR - 1))
@pytest.mark.parametrize("g", (np.float32(1.0), np.ones(4, np.float32)))
def test_class_numbers_of_a_gradient_are_in_range(target, g):
    """PyTorch's gradient writes where they point."""
    logp, g = np.log(np.full((4, 3), 1 / 3, np.float32)), np.asarray(g)
    with pytest.raises(IndexError, match="out of range for 3 classes"):
        run(PYTORCH, "cross_entropy_grad", g, logp, np.array([0, target, 2, -100], np.int64), 0.0, ignore=-100)
    run(PYTORCH, "cross_entropy_grad", g, logp, np.array([0, 1, 2, -100], np.int64), 0.0, ignore=-100)


CHECKED = ("attention_grad", "batch_norm_grad", "group_norm_grad", "layer_norm_grad", "rms_norm_grad", "conv_weight_grad",
           "cross_entropy_grad", "ctc_grad", "embedding_grad", "gather_grad", "index_grad", "index_select_grad",
           "linear_weight_grad", "diagonal_grad", "pow_grad", "spread", "dropout", "conv_transpose")  # fmt: skip


@pytest.mark.parametrize("name", CHECKED)
def test_operands_of_gradients_have_the_shapes_of_the_forward_pass(name):
    """Libraries read the saved results of a forward pass, and write gradients of parameters, without a check."""
    for operands, settings in TABLE[name].tries:
        ins = tuple(map(samples.spec_of, operands))
        statics = tuple(settings[n] for n in TABLE[name].statics)
        infer(TABLE[name], ins, statics)
        for i, spec in enumerate(ins):
            if isinstance(spec, Spec) and spec.shape:
                other = Spec(tuple(d + 1 for d in spec.shape), spec.dtype)
                with pytest.raises((ValueError, TypeError)):
                    infer(TABLE[name], (*ins[:i], other, *ins[i + 1 :]), statics)


def test_weights_of_counts_are_as_many(engine):
    with pytest.raises(ValueError, match="as many weights"):
        run(engine, "bincount", np.zeros(7, np.int64), np.ones(6, np.float32), size=4)


@pytest.mark.parametrize("shape", ((0, 5), (2, 0, 5, 1), (0,)))
def test_no_indices_gather_nothing_and_add_nothing(engine, shape):
    """They need not have the tensor's axes, in PyTorch either."""
    a, none = np.ones((4, 3, 5), np.float32), np.zeros(shape, np.int64)
    assert (
        tuple(run(engine, "gather", a, none, axis=0).shape)
        == shape
        == tuple(torch.ones(4, 3, 5).gather(0, torch.tensor(none)).shape)
    )
    gradient = run(engine, "gather_grad", np.zeros(shape, np.float32), none, shape=(4, 3, 5), axis=0)
    assert tuple(gradient.shape) == (4, 3, 5) and not np.asarray(gradient).any()


def test_an_index_has_an_array_for_each_of_its_axes():
    a, picks = Spec((4, 3, 5), float32), Spec((2,), int64)
    for axes in ((3,), (0, 0), (2, 0), (0, 1)):
        with pytest.raises(IndexError):
            infer(TABLE["index"], (a, *[picks] * (1 if axes == (0, 1) else len(axes))), (axes,))


def test_a_recurrent_gradient_ignores_what_a_call_on_other_shapes_saved():
    statics = ("GRU", 1, 1, True, (), True)

    def specs(features):
        shapes = ((2, 3, features), (1, 3, 4), (12, features), (12, 4), (12,), (12,))
        return tuple(Spec(s, float32) for s in shapes)

    def arrays(ins):
        return [torch.randn(s.shape) for s in ins]

    narrow, wide = specs(2), specs(5)
    *_, saved = PYTORCH.kernel(infer(TABLE["recurrent"], narrow, statics))(*arrays(narrow))
    made = infer(TABLE["recurrent"], wide, statics)
    kind = infer(TABLE["recurrent_grad"], (*made.outs, *wide), statics)
    found = PYTORCH.kernel(kind)(*arrays(made.outs[:-1]), saved, *arrays(wide))
    assert [tuple(f.shape) for f in found] == [s.shape for s in kind.outs]


@pytest.mark.parametrize("dtype", (np.int8, np.int16, np.int32, np.int64))
def test_multiples_of_the_least_integer_overflow(engine, dtype):
    """PyTorch divides it by -1 for any odd number, which ends the process."""
    least, others = np.iinfo(dtype).min, np.array([3, -1, 0, 2, 6, 5, 7], dtype)
    want = np.where(others == 0, 0, least).tolist()
    assert run(engine, "lcm", np.full(7, least, dtype), others).tolist() == want
    assert run(engine, "lcm", others, np.full(7, least, dtype)).tolist() == want
    assert run(engine, "lcm", others, np.full(7, 4, dtype)).tolist() == [12, 4, 0, 4, 12, 20, 28]
    scalar = run(engine, "lcm", np.array(least, dtype), np.array(3, dtype))
    assert scalar.tolist() == least and str(scalar.dtype).removeprefix("torch.") == dtype.__name__


@pytest.mark.parametrize("size, kernel", (((0,), (3,)), ((3, 4, 0), (2, 2, 3)), ((0, 4), (2, 2))))
def test_windows_of_adaptive_pooling_are_of_images_that_are_not_empty(size, kernel):
    """PyTorch writes each window's gradient into the image, also if that is empty."""
    with pytest.raises(ValueError, match="expected images that are not empty"):
        infer(TABLE["adaptive_avg_pool_grad"], (Spec((2, 3, *kernel), float32),), (size, kernel))
    for name in ("adaptive_avg_pool", "adaptive_max_pool"):
        with pytest.raises(ValueError, match="expected images that are not empty"):
            infer(TABLE[name], (Spec((2, 3, *size), float32),), (kernel,))


def test_sizes_of_packed_rows_are_a_tuple():
    ins, statics = TABLE["recurrent"].tries[0]
    with pytest.raises(ValueError, match="sizes of packed rows"):
        infer(TABLE["recurrent"], ins, tuple(0 if name == "sizes" else statics[name] for name in TABLE["recurrent"].statics))
