"""Tensors: created, computed, reshaped, indexed, read and printed as in PyTorch."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.spec import DTYPES, DType

pytestmark = pytest.mark.usefixtures("pool")
A = np.array([[1.5, -2.0, 3.0], [0.5, 4.0, -1.0]], "f4")
B = np.array([[2.0, 1.0, 0.5], [1.0, -3.0, 2.0]], "f4")


def torch_dtype(d: DType) -> torch.dtype:
    return getattr(torch, d.name)


def same(mine: gt.Tensor, theirs: torch.Tensor, tolerance: float = 1e-6) -> None:
    assert mine.shape == tuple(theirs.shape) and mine.dtype.name == str(theirs.dtype).removeprefix("torch.")
    wide = theirs.float() if theirs.dtype is torch.bfloat16 else theirs
    np.testing.assert_allclose(mine.numpy(), wide.numpy(), rtol=tolerance, atol=tolerance)


MAKERS: list[Callable[[Any], Any]] = [
    lambda x: x.tensor([[1, 2], [3, 4]]),
    lambda x: x.tensor([1.5, 2]),
    lambda x: x.tensor(3),
    lambda x: x.tensor(2.5),
    lambda x: x.tensor(True),
    lambda x: x.tensor([True, False]),
    lambda x: x.tensor([]),
    lambda x: x.tensor([[1, 2]], dtype=x.float64),
    lambda x: x.tensor([0.1, 300.7], dtype=x.bfloat16),
    lambda x: x.tensor(np.arange(3, dtype=np.int16)),
    lambda x: x.tensor(np.float64(2.5)),
    lambda x: x.from_numpy(np.ones((2, 3))),
    lambda x: x.from_numpy(np.asfortranarray(np.arange(6.0).reshape(2, 3))),
    lambda x: x.from_numpy(np.arange(10)[::2].copy()),
    lambda x: x.zeros(2, 3),
    lambda x: x.zeros((2, 3)),
    lambda x: x.zeros([2, 0]),
    lambda x: x.zeros(size=(2,)),
    lambda x: x.ones(()),
    lambda x: x.ones(2, dtype=x.int64),
    lambda x: x.full((2, 2), 7),
    lambda x: x.full((2,), 0.5, dtype=x.float16),
    lambda x: x.full((2,), True),
    lambda x: x.arange(5),
    lambda x: x.arange(2, 8, 3),
    lambda x: x.arange(0, 1, 0.3),
    lambda x: x.arange(5, 0, -2),
    lambda x: x.arange(3, dtype=x.float32),
    lambda x: x.eye(3),
    lambda x: x.eye(2, 4, dtype=x.int32),
]


@pytest.mark.parametrize("make", MAKERS)
def test_created_tensors_equal_pytorch_s(make: Callable) -> None:
    same(make(gt), make(torch))


def test_random_numbers_follow_their_distribution_and_their_seed() -> None:
    gt.manual_seed(3)
    u, n, i = gt.rand(200, 200), gt.randn(200, 200), gt.randint(-3, 4, (200, 200))
    u_, n_, i_ = u.numpy(), n.numpy(), i.numpy()
    assert u_.min() >= 0 and u_.max() < 1 and abs(u_.mean() - 0.5) < 0.01
    assert abs(n_.mean()) < 0.02 and abs(n_.std() - 1) < 0.02
    assert set(np.unique(i_)) == set(range(-3, 4)) and i.dtype is gt.int64
    gt.manual_seed(3)
    np.testing.assert_array_equal(gt.rand(200, 200).numpy(), u_)
    assert not np.array_equal(gt.rand(200, 200).numpy(), u_)
    assert gt.randint(5, (3,)).shape == (3,) and gt.randint(2, 5, size=(3,)).shape == (3,)


def test_every_engine_draws_the_same_numbers() -> None:
    with gt.testing.cluster(engine="numpy"):
        gt.manual_seed(11)
        mine = gt.randn(64).numpy(), gt.rand(7, 9).numpy(), gt.randint(0, 100, (33,)).numpy()
    with gt.testing.cluster(engine="pytorch"):
        gt.manual_seed(11)
        theirs = gt.randn(64).numpy(), gt.rand(7, 9).numpy(), gt.randint(0, 100, (33,)).numpy()
    for a, b in zip(mine, theirs):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-6)


ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow]
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


@pytest.mark.parametrize("f", [*ARITHMETIC, *COMPARISONS], ids=lambda f: f.__name__)
@pytest.mark.parametrize("other", ["tensor", "row", 2.0, 3, "array"])
def test_operators_are_pytorch_s(f: Callable, other: Any) -> None:
    left, right = np.abs(A), B
    mine: Any = {"tensor": gt.tensor(right), "row": gt.tensor(right[0]), "array": right}.get(other, other)
    theirs: Any = {"tensor": torch.tensor(right), "row": torch.tensor(right[0]), "array": torch.tensor(right)}.get(other, other)
    same(f(gt.tensor(left), mine), f(torch.tensor(left), theirs))


@pytest.mark.parametrize("f", ARITHMETIC, ids=lambda f: f.__name__)
@pytest.mark.parametrize("number", [2.0, 3])
def test_a_number_may_stand_on_the_left(f: Callable, number: float) -> None:
    same(f(number, gt.tensor(A)), f(number, torch.tensor(A)), 1e-5)


@pytest.mark.parametrize("f", [operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow])
def test_in_place_forms_change_the_variable_and_no_other(f: Callable) -> None:
    mine, theirs = gt.tensor(A), torch.tensor(A)
    before = mine.clone()
    once, twice = f(mine, 2.0), f(theirs, 2.0)
    assert once is mine
    same(mine, twice)
    same(before, torch.tensor(A))


def test_matmul_is_pytorch_s_for_all_ranks() -> None:
    for a, b in [((2, 3), (3, 4)), ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 2, 3), (5, 3, 4))]:
        x, y = np.random.default_rng(0).random(a, "f4"), np.random.default_rng(1).random(b, "f4")
        same(gt.tensor(x) @ gt.tensor(y), torch.tensor(x) @ torch.tensor(y), 1e-5)


UNARY = ["neg", "abs", "exp", "sqrt", "relu", "sigmoid", "tanh", "log"]


@pytest.mark.parametrize("name", UNARY)
def test_unary_ops_are_pytorch_s_as_methods_and_functions(name: str) -> None:
    data = np.abs(A) if name in ("log", "sqrt") else A
    want = getattr(torch, name)(torch.tensor(data))
    same(getattr(gt.tensor(data), name)(), want, 1e-6)
    same(getattr(gt, name)(gt.tensor(data)), want, 1e-6)


def test_minus_and_abs_of_python_work() -> None:
    same(-gt.tensor(A), -torch.tensor(A))
    same(abs(gt.tensor(A)), abs(torch.tensor(A)))


@pytest.mark.parametrize("name", ["sum", "mean", "amax", "amin"])
@pytest.mark.parametrize(
    "spelling", [{}, {"axis": 0}, {"dim": 1}, {"axis": (0, 1)}, {"dim": -1, "keepdim": True}, {"axis": 0, "keepdims": True}]
)
def test_reductions_accept_numpy_s_and_pytorch_s_spelling(name: str, spelling: dict) -> None:
    theirs = {{"axis": "dim", "keepdims": "keepdim"}.get(k, k): v for k, v in spelling.items()}
    same(getattr(gt.tensor(A), name)(**spelling), getattr(torch.tensor(A), name)(**theirs))


def test_max_and_min_give_values_and_indices_along_an_axis() -> None:
    mine, theirs = gt.tensor(A), torch.tensor(A)
    same(mine.max(), theirs.max())
    same(mine.min(), theirs.min())
    for name in ("max", "min"):
        values, indices = getattr(mine, name)(dim=1)
        want = getattr(theirs, name)(dim=1)
        same(values, want.values)
        same(indices, want.indices)
    same(mine.argmax(), theirs.argmax())
    same(mine.argmax(axis=1), theirs.argmax(1))


def test_sums_of_integers_and_booleans_are_int64() -> None:
    for dtype in ("bool", "uint8", "int32", "int64"):
        data = np.array([1, 0, 1]).astype(dtype)
        same(gt.tensor(data).sum(), torch.tensor(data).sum())


SHAPES: list[Callable[[Any], Any]] = [
    lambda x: x.reshape(3, 2),
    lambda x: x.reshape((6,)),
    lambda x: x.reshape(-1, 2),
    lambda x: x.view(1, 6),
    lambda x: x.T,
    lambda x: x.transpose(0, 1),
    lambda x: x.permute(1, 0),
    lambda x: x.permute((1, 0)),
    lambda x: x.unsqueeze(0),
    lambda x: x.unsqueeze(-1),
    lambda x: x.unsqueeze(0).squeeze(0),
    lambda x: x.unsqueeze(0).unsqueeze(0).squeeze(),
    lambda x: x.unsqueeze(1).expand(2, 4, 3),
    lambda x: x.unsqueeze(1).expand(-1, 4, -1),
    lambda x: x.detach(),
    lambda x: x.clone(),
]


@pytest.mark.parametrize("f", SHAPES)
def test_shapes_change_as_in_pytorch(f: Callable) -> None:
    same(f(gt.tensor(A)), f(torch.tensor(A)))


def test_cat_and_stack_accept_both_spellings() -> None:
    mine, theirs = [gt.tensor(A), gt.tensor(B)], [torch.tensor(A), torch.tensor(B)]
    for axis in (0, 1, -1):
        same(gt.cat(mine, axis=axis), torch.cat(theirs, dim=axis))
        same(gt.stack(mine, dim=axis), torch.stack(theirs, dim=axis))


INDICES = [
    0, -1, slice(None), slice(1, 3), slice(None, None, 2), slice(-2, None), slice(4, 1), ..., None, (0, 1), (slice(None), 2),
    (..., 0), (0, ...), (None, 1), (slice(1), None, slice(1, 2)), (1, None, ..., 2), (slice(None), slice(None), -1), (2, 1, 3),
    (..., slice(1, None, 2)), (slice(0, 0), 1),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indexing_by_ints_slices_ellipsis_and_none_is_pytorch_s(index: Any) -> None:
    data = np.arange(60, dtype="f4").reshape(3, 4, 5)
    same(gt.tensor(data)[index], torch.tensor(data)[index])


@pytest.mark.parametrize("a", DTYPES, ids=repr)
@pytest.mark.parametrize("b", DTYPES, ids=repr)
def test_two_dtypes_compute_as_in_pytorch(a: DType, b: DType) -> None:
    x, y = np.array([0, 1, 3, 2]), np.array([1, 1, 2, 0])
    mine = gt.tensor(x, dtype=a), gt.tensor(y, dtype=b)
    theirs = torch.tensor(x, dtype=torch_dtype(a)), torch.tensor(y, dtype=torch_dtype(b))
    for f in (operator.add, operator.mul):
        same(f(*mine), f(*theirs))
    if 3 in (a.rank, b.rank):  # complex numbers, which have no order, in PyTorch either
        for pair in (mine, theirs):
            with pytest.raises((RuntimeError, TypeError)):
                operator.lt(*pair)
    else:
        same(operator.lt(*mine), operator.lt(*theirs))
    same(mine[0] * 2, theirs[0] * 2)
    same(mine[0] * 0.5, theirs[0] * 0.5)
    if a is gt.float16 and b.rank == 3:  # complex32 in PyTorch, which GT does not have
        with pytest.raises(TypeError, match="complex32"):
            mine[0] + mine[1].sum()
    else:
        same(mine[0] + mine[1].sum(), theirs[0] + theirs[1].sum())


@pytest.mark.parametrize("a", DTYPES, ids=repr)
@pytest.mark.parametrize("b", DTYPES, ids=repr)
def test_casts_are_pytorch_s(a: DType, b: DType) -> None:
    x = np.array([0, 1, 2.75, 100])
    mine, theirs = gt.tensor(x, dtype=a), torch.tensor(x, dtype=torch_dtype(a))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, of imaginary parts that are dropped
        same(mine.to(b), theirs.to(torch_dtype(b)))


def test_casts_have_methods() -> None:
    x, y = gt.tensor(A), torch.tensor(A)
    for name in ("float", "double", "half", "bfloat16", "long", "int", "bool"):
        same(getattr(x, name)(), getattr(y, name)())
    same(x.to(dtype=gt.float64), y.double())
    same(x.to("cuda:0"), y)


def test_values_are_read_in_many_ways() -> None:
    x = gt.tensor(A)
    np.testing.assert_array_equal(x.numpy(), A)
    np.testing.assert_array_equal(x.data.numpy(), A)
    np.testing.assert_array_equal(np.asarray(x), A)
    np.testing.assert_array_equal(np.asarray(x.data, dtype="f8"), A.astype("f8"))
    assert x.data.shape == (2, 3) and x.data.dtype is gt.float32
    assert x.tolist() == A.tolist() and x[0, 0].item() == 1.5 and x.sum().tolist() == 6.0
    assert float(x[0, 0]) == 1.5 and int(gt.tensor(3)) == 3 and bool(gt.tensor(True)) and f"{x[0, 0]:.2f}" == "1.50"
    assert [10, 20, 30][gt.tensor(1)] == 20
    assert type(gt.tensor(3).item()) is int and type(gt.tensor(True).item()) is bool
    x.numpy()[:] = 0
    np.testing.assert_array_equal(x.numpy(), A)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("engine", ["numpy", "pytorch"])
def test_item_is_the_number_that_numpy_reads(dtype: DType, engine: str) -> None:
    """Of a whole tensor and of views, which a worker may hold with gaps between their elements."""
    with gt.testing.cluster(2, engine=engine):
        x = gt.tensor([[-3.5, 100.0, 0.0]]).to(dtype)
        for t in (x[:, :1].contiguous() + x[:, 2:], x.T[1], x[0, 2], x.sum().reshape(1, 1)):
            found, want = t.item(), t.numpy().item()
            assert type(found) is type(want) and found == want
            assert t.tolist() == t.numpy().tolist()


@pytest.mark.parametrize("engine", ["numpy", "pytorch"])
def test_reads_of_conjugates_and_negated_parts_are_their_values(engine: str) -> None:
    with gt.testing.cluster(1, engine=engine):
        x = gt.tensor([1.0 + 2.0j, 3.0 - 4.0j])
        assert x.conj().tolist() == [1.0 - 2.0j, 3.0 + 4.0j]
        assert x.conj().imag.tolist() == [-2.0, 4.0] and x.conj().imag[1].item() == 4.0


def test_values_go_to_other_libraries_by_dlpack() -> None:
    x = gt.tensor(A)
    np.testing.assert_array_equal(np.from_dlpack(x), A)
    assert torch.equal(torch.from_dlpack(x), torch.tensor(A))


def test_tensors_have_a_length_and_can_be_iterated() -> None:
    x = gt.tensor(A)
    assert len(x) == 2 and x.ndim == 2 and x.dim() == 2 and x.numel() == 6 and x.size() == (2, 3) and x.size(1) == 3
    assert [row.tolist() for row in x] == A.tolist()
    with pytest.raises(TypeError, match="0-d"):
        len(gt.tensor(1))
    with pytest.raises(TypeError, match="0-d"):
        iter(gt.tensor(1))


def test_zero_and_fill_and_copy_change_the_variable() -> None:
    x = gt.tensor(A)
    kept = x.clone()
    assert x.zero_() is x and x.tolist() == [[0, 0, 0]] * 2 and kept.tolist() == A.tolist()
    assert x.fill_(2).tolist() == [[2, 2, 2]] * 2
    assert x.copy_(gt.tensor(B)).tolist() == B.tolist()


PRINTED: list[Any] = [
    3, 2.5, True, [1, 2, 3], [1.0, 2.0], [1.5, -2.25], [[1, 20], [300, 4]], [True, False], [], [[1.0, 2.0], [3.0, 4.5]],
    [1e10, 1.0], [1e-6, 1.0], [0.1, 0.22, 0.333], [float("inf"), 1.0, float("nan")], [1000000.0, 2.0], [123456789.0, 1.5],
    [0.0, 0.0], [-0.0, 1.0], [1e5, 12.5], [[0.00012345, 1234.5]], np.arange(60).tolist(), np.linspace(0, 1, 40).tolist(),
    np.arange(24.0).reshape(2, 3, 4).tolist(), np.eye(3).tolist(), np.arange(2000).tolist(),
    np.arange(3000.0).reshape(30, 100).tolist(), np.zeros((40, 2, 40)).tolist(),
    np.zeros((1001, 1)).tolist(), np.random.default_rng(0).normal(size=(5, 30)).tolist(),
]  # fmt: skip


@pytest.mark.parametrize("data", PRINTED, ids=lambda d: str(d)[:30])
def test_tensors_print_as_pytorch_prints_them(data: Any) -> None:
    assert repr(gt.tensor(data)) == repr(torch.tensor(data))
    assert str(gt.tensor(data)) == str(torch.tensor(data))


@pytest.mark.parametrize("dtype", DTYPES, ids=repr)
def test_every_dtype_prints_as_in_pytorch(dtype: DType) -> None:
    mine, theirs = gt.tensor([0, 1, 2], dtype=dtype), torch.tensor([0, 1, 2], dtype=torch_dtype(dtype))
    assert repr(mine) == repr(theirs).replace("torch.", "gt.")
    assert repr(gt.zeros(0, 3, dtype=dtype)) == repr(torch.zeros(0, 3, dtype=torch_dtype(dtype))).replace("torch.", "gt.")


def test_a_tensor_that_requires_gradients_prints_requires_grad() -> None:
    x = gt.ones(2, requires_grad=True)
    assert repr(x) == repr(torch.ones(2, requires_grad=True))
    assert repr(x * 2).startswith("tensor([2., 2.], grad_fn=<")


def test_printing_a_large_tensor_fetches_only_its_corners(pool: Any) -> None:
    x = gt.zeros(1000, 1000)
    x[0, 0].item()
    seen = pool.hub.frames_seen.get("c0", 0)
    repr(x)
    assert pool.hub.frames_seen["c0"] - seen < 1000


def test_nothing_but_reading_waits(pool: Any) -> None:
    session = pool.sessions[0]
    waits: list[int] = []
    session.link.wait = lambda reply, timeout, wait=session.link.wait: (waits.append(1), wait(reply, timeout))
    x = gt.tensor(A)
    y = ((x + 1) @ x.T).relu().sum()
    for _ in range(500):
        y = y * 1.5
    assert not waits
    assert math.isfinite(y.item()) or waits
    assert len(waits) == 1
