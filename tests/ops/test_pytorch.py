"""Forward results and dtypes are PyTorch's, in every form PyTorch takes; and where it refuses operands, so do the rows."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.ops import TABLE, Row, infer
from gt.ops.rules import broadcast, promote
from gt.spec import DTYPES, Spec, bool_, complex64, complex128, float16, float32, promote_types
from gt.worker.engine.torch.dtypes import TORCH
from tests.ops import samples
from tests.ops.oracle import ALONE, oracle
from tests.ops.samples import ROWS, assert_close, assert_same, several
from tests.ops.test_kernels import run_numpy, run_torch

COMPLEX_NUMBERS = (Spec((), complex64), Spec((), complex128))
HELD = [r for r in ROWS if oracle(r) is not None]


def only_tensors(row: Row) -> bool:
    """One or two tensors and no settings: every pair of dtypes can be tried."""
    operands, statics = row.tries[0]
    return len(operands) <= 2 and not statics and all(isinstance(samples.spec_of(o), Spec) for o in operands)


POINTWISE = [r for r in HELD if r.pointwise and not r.name.endswith("_grad") and only_tensors(r)]


def test_every_row_has_an_oracle_or_is_a_gradient_or_pytorch_has_no_such_thing():
    lacking = {r.name for r in ROWS if oracle(r) is None and not r.name.endswith("_grad")}
    assert lacking == ALONE


def wanted(sample: samples.Sample) -> tuple | None:
    """PyTorch's result for a sample; None where it has no kernel for it."""
    operands = samples.for_torch(sample)
    if sample.kind.row.name == "searchsorted":  # PyTorch warns of strides
        operands = [o.contiguous() for o in operands]
    if not isinstance(sample.kind.ins[0], Spec) and sample.kind.row.name != "pow":
        return None
    try:
        with torch.enable_grad():
            found = oracle(sample.kind.row)(*operands, **sample.kind.settings)  # type: ignore[misc]
    except NotImplementedError:
        return None
    return tuple(t.detach() for t in several(found))


@pytest.mark.parametrize("row", HELD, ids=lambda r: r.name)
def test_forward_is_pytorchs(row: Row):
    for sample in (*samples.plain(row), *samples.varied(row)):
        want = wanted(sample)
        if want is None:
            continue
        for found in (run_numpy(sample), run_torch(sample)):
            for b, spec in zip(want, sample.kind.outs):
                assert b.dtype == TORCH[spec.dtype], f"{sample.id}: PyTorch gives {b.dtype}"
            assert_same(sample.kind, found[: len(want)], want, sample.id)  # further results are for the gradient


@pytest.mark.parametrize("row", POINTWISE, ids=lambda r: r.name)
def test_dtypes_of_pointwise_ops_and_their_refusals_are_pytorchs(row: Row):
    """Every pair of dtypes, a 0-d tensor among them, and Python's numbers."""
    choices: list = [Spec((2,), d) for d in DTYPES]
    if len(row.tries[0][0]) == 2:
        others = [Spec((), d) for d in DTYPES] + ([bool, int, float] if _takes_numbers(row) else [])
        cases = [(a, b) for a, b in itertools.product(choices, choices + others)]
    else:
        cases = [(a,) for a in choices]
    wrong = []
    for case in cases:
        if case[0].dtype is float16 and len(case) > 1 and isinstance(case[1], Spec) and case[1] in COMPLEX_NUMBERS:
            continue  # complex32, which GT does not have
        rng = np.random.default_rng(3)
        drawn = [
            np.ones(s.shape, bool)
            if isinstance(s, Spec) and s.dtype is bool_
            else samples.draw(samples.Values(s, 1, 3) if isinstance(s, Spec) else s, rng)
            for s in case
        ]
        tensors = [samples.to_torch(o, s) for o, s in zip(drawn, case)]
        try:
            want = str(oracle(row)(*tensors).dtype)  # type: ignore[misc]
        except (RuntimeError, TypeError):
            want = "refused"
        try:
            found = str(TORCH[infer(row, case, ()).outs[0].dtype])
        except TypeError:
            found = "refused"
        if found != want:
            wrong.append(f"{row.name}{case}: {found}, PyTorch {want}")
    assert not wrong, "\n".join(wrong)


def _takes_numbers(row: Row) -> bool:
    try:
        oracle(row)(torch.ones(2, dtype=torch.int64), 1)  # type: ignore[misc]
    except TypeError:
        return False
    return True


dtypes = st.sampled_from(DTYPES)
shapes = st.lists(st.integers(0, 3), max_size=4).map(tuple)


@given(dtypes, dtypes)
def test_promotion_is_pytorchs(a, b):
    assert TORCH[promote_types(a, b)] == torch.promote_types(TORCH[a], TORCH[b])


@given(st.lists(st.tuples(st.booleans(), dtypes), min_size=1, max_size=2), st.sampled_from([None, bool, int, float]))
def test_promotion_with_0d_tensors_and_numbers_is_pytorchs(tensors, number):
    specs = [Spec(() if zero else (2,), d) for zero, d in tensors]
    values = [torch.ones(s.shape, dtype=TORCH[s.dtype]) for s in specs]
    if number is not None:
        specs, values = specs[:1], values[:1]
        specs.append(number)
        values.append(number(1))
    dims = [d for zero, d in tensors if not zero]
    if float16 in dims and all(d is float16 for d in dims) and any(d.is_complex for _, d in tensors):
        return  # complex32, which GT does not have
    if len(values) == 1:
        assert promote(*specs) is specs[0].dtype
    else:
        assert TORCH[promote(*specs)] == torch.result_type(*values)


@given(st.lists(shapes, min_size=1, max_size=3))
@settings(max_examples=300)
def test_broadcasting_is_pytorchs(several_shapes):
    try:
        want = tuple(torch.broadcast_shapes(*several_shapes))
    except RuntimeError:
        with pytest.raises(ValueError):
            broadcast(*several_shapes)
    else:
        assert broadcast(*several_shapes) == want


@given(shapes, shapes)
@settings(max_examples=300)
def test_matmul_of_any_ranks_is_pytorchs(left, right):
    row = TABLE["matmul"]
    a, b = torch.ones(left), torch.ones(right)
    try:
        want = tuple((a @ b).shape)
    except RuntimeError:
        with pytest.raises(ValueError):
            infer(row, (Spec(left, float32), Spec(right, float32)), ())
    else:
        assert infer(row, (Spec(left, float32), Spec(right, float32)), ()).outs[0].shape == want


def test_lion_steps_by_the_sign_of_the_blend():
    sample = next(samples.plain(TABLE["lion"]))
    p, g, m, lr, b1, b2, decay = sample.operands
    want = p * (1 - lr * decay) - lr * np.sign(b1 * m + (1 - b1) * g), b2 * m + (1 - b2) * g
    for found in (run_numpy(sample), run_torch(sample)):
        for a, b, spec in zip(found, want, sample.kind.outs):
            assert_close(a, b, spec)


def test_booleans_stay_booleans():
    assert infer(TABLE["add"], (Spec((2,), bool_), Spec((2,), bool_)), ()).outs[0].dtype is bool_
