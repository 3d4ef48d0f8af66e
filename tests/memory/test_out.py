"""`out=`: results written into existing tensors, as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.functions.out import NAMES

pytestmark = pytest.mark.usefixtures("pool")
A = np.arange(1, 7, dtype="f4").reshape(2, 3)

CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda m, x, out: m.add(x, 2, out=out),
    "add scaled": lambda m, x, out: m.add(x, x, alpha=2, out=out),
    "exp": lambda m, x, out: m.exp(x, out=out),
    "sum": lambda m, x, out: m.sum(x, 0, out=out),
    "matmul": lambda m, x, out: m.matmul(x, x.t(), out=out),
    "cat": lambda m, x, out: m.cat([x, x], 1, out=out),
    "stack": lambda m, x, out: m.stack([x, x], out=out),
    "clamp": lambda m, x, out: m.clamp(x, 2, 4, out=out),
    "zeros": lambda m, x, out: m.zeros(2, 3, out=out),
    "arange": lambda m, x, out: m.arange(6, out=out),
    "where": lambda m, x, out: m.where(x > 2, x, -x, out=out),
    "index_select": lambda m, x, out: m.index_select(x, 0, m.tensor([1, 0]), out=out),
    "tril": lambda m, x, out: m.tril(x, out=out),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_result_goes_into_an_empty_tensor_and_into_a_view(name: str) -> None:
    found = []
    for m in (gt, torch):
        empty = m.empty(0)
        assert CALLS[name](m, m.tensor(A), empty) is empty
        base = m.zeros(2, *empty.shape)
        view = base[1]
        assert CALLS[name](m, m.tensor(A), view) is view
        found.append([empty.numpy(), base.numpy(), view.numpy()])
    for mine, theirs in zip(*found):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_several_results_go_into_several_tensors() -> None:
    for m in (gt, torch):
        values, places = m.empty(0), m.empty(0, dtype=m.int64)
        found = m.max(m.tensor(A), 0, out=(values, places))
        assert found.values is values and found.indices is places
        assert values.tolist() == [4, 5, 6] and places.tolist() == [1, 1, 1]


def test_functions_that_return_nothing_with_out_do_so() -> None:
    for m in (gt, torch):
        rows = [m.zeros(3), m.zeros(3)]
        assert m.unbind_copy(m.tensor(A), out=rows) is None
        assert rows[1].tolist() == [4, 5, 6]
        columns = [m.zeros(2, 1), m.zeros(2, 2)]
        assert m.split_with_sizes_copy(m.tensor(A), [1, 2], 1, out=columns) is None
        assert columns[1].tolist() == [[2, 3], [5, 6]]


def test_nonzero_writes_into_one_tensor_only() -> None:
    for m in (gt, torch):
        with pytest.raises(TypeError, match="argument 'out' must be Tensor, not tuple"):
            m.nonzero(m.tensor(A), as_tuple=True, out=(m.zeros(0), m.zeros(0)))


def test_a_tensor_of_another_shape_is_resized_with_a_warning() -> None:
    for m in (gt, torch):
        out = m.zeros(5)
        with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
            m.add(m.tensor(A), 1, out=out)
        assert tuple(out.shape) == (2, 3)


def test_a_result_is_cast_only_to_a_kind_that_holds_it() -> None:
    for m in (gt, torch):
        wide = m.empty(0, dtype=m.float64)
        assert m.add(m.tensor(A), 1, out=wide).dtype is m.float64
        with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
            m.add(m.tensor(A), 1, out=m.empty(0, dtype=m.int64))


def test_gradients_and_out_do_not_go_together() -> None:
    for m in (gt, torch):
        with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
            m.add(m.ones(2, requires_grad=True), 1, out=m.zeros(2))
        with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
            m.add(m.ones(2), 1, out=m.zeros(2, requires_grad=True))
        with m.no_grad():
            assert m.add(m.ones(2, requires_grad=True), 1, out=m.zeros(2)).tolist() == [2, 2]


@pytest.mark.filterwarnings("ignore")  # of packages that torch.testing imports where they are
def test_every_function_that_takes_out_in_pytorch_s_samples_takes_it_here() -> None:
    pytest.importorskip("expecttest")
    from torch.testing._internal.common_methods_invocations import op_db

    theirs = {n for op in op_db if op.supports_out for n in (op.name, *[a.name for a in op.aliases])}
    lack = {n for n in theirs if hasattr(torch, n) and hasattr(gt, n)} - set(NAMES)
    assert lack <= {"det", "equal", "histogramdd", "native_batch_norm"}, (
        lack
    )  # whose functions in torch's namespace do not take it
