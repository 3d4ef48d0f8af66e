"""The estimated time of a kind: of every row, and the sizes that it grows with."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gt.ops import TABLE, Kind, Values, infer, row
from gt.ops.estimate import ELEMENT, INSTRUCTION, PRODUCT, estimated_seconds, parallel_seconds
from gt.ops.op_times import NANOSECONDS, ONE_THREAD, SHORT_ROWS
from gt.spec import Spec, int64

A = Spec((512, 512))


def kind_of(op: str, *operands: Any, **statics: Any) -> Kind:
    specs = [o.spec if isinstance(o, Values) else o if isinstance(o, (Spec, type)) else type(o) for o in operands]
    named = {**row(op).defaults, **statics}
    return infer(row(op), tuple(specs), tuple(named[name] for name in row(op).statics))


@pytest.mark.parametrize("op", sorted(name for name, row in TABLE.items() if row.tries))
def test_every_row_has_a_finite_estimate(op: str) -> None:
    for operands, statics in TABLE[op].tries:
        kind = kind_of(op, *operands, **statics)
        assert INSTRUCTION <= estimated_seconds(kind) < math.inf
        assert 0 <= parallel_seconds(kind) <= estimated_seconds(kind)


def test_elements_are_counted_that_are_read_and_written() -> None:
    assert estimated_seconds(kind_of("add", A, float)) == pytest.approx(INSTRUCTION + 2 * A.numel * ELEMENT)
    assert estimated_seconds(kind_of("add", A, A)) == pytest.approx(INSTRUCTION + 3 * A.numel * ELEMENT)


def test_products_take_longer_than_sums() -> None:
    product = estimated_seconds(kind_of("matmul", A, A))
    assert product == pytest.approx(estimated_seconds(kind_of("add", A, A)) + PRODUCT * 512**3)
    assert estimated_seconds(kind_of("einsum", A, A, equation="ij,jk->ik")) == pytest.approx(product)


def test_factorisations_of_many_small_matrices_are_counted_one_by_one() -> None:
    many, one = (estimated_seconds(kind_of("cholesky", Spec((n, 16, 16)))) for n in (1000, 1))
    assert many - INSTRUCTION == pytest.approx(1000 * (one - INSTRUCTION))
    assert estimated_seconds(kind_of("eigh", A)) > 10 * estimated_seconds(kind_of("cholesky", A))


def test_measured_times_are_of_rows_and_count_by_the_largest_operand() -> None:
    assert {*NANOSECONDS, *SHORT_ROWS, *ONE_THREAD} <= set(TABLE)
    sort, add = (estimated_seconds(kind) for kind in (kind_of("sort", A, axis=1, descending=False), kind_of("add", A, A)))
    assert sort - add == pytest.approx(NANOSECONDS["sort"] * 1e-9 * A.numel)


def test_short_rows_count_where_a_tensor_is_broadcast_or_reduced() -> None:
    long, short = Spec((64, 512)), Spec((8192, 4))
    row_sums = [estimated_seconds(kind_of("sum", spec, axis=(1,), keepdims=True)) for spec in (long, short)]
    assert row_sums[1] > 3 * row_sums[0]
    assert estimated_seconds(kind_of("add", short, short)) == estimated_seconds(kind_of("add", long, long))


def test_kernels_that_are_slower_with_several_threads_take_one() -> None:
    places = Spec((100_000,), int64)
    gradient = kind_of("index_grad", Spec((100_000, 8)), places, shape=(500, 8), axes=(0,))
    assert estimated_seconds(gradient) > 1e-4
    assert not parallel_seconds(gradient)


def test_threads_share_one_step_of_a_recurrent_layer_at_a_time() -> None:
    def lstm(length: int) -> Kind:
        weights = (Spec((128, 32)), Spec((128, 32)))
        statics = {"mode": "LSTM", "layers": 1, "ways": 1, "bias": False, "sizes": (), "saves": False}
        state = Spec((1, 8, 32))
        return kind_of("recurrent", Spec((length, 8, 32)), state, state, *weights, **statics)

    short, long = lstm(100), lstm(1000)
    assert estimated_seconds(long) > 9 * estimated_seconds(short)
    assert parallel_seconds(long) == pytest.approx(parallel_seconds(short), rel=0.1)
