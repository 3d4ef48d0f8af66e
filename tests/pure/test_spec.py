from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gt.errors import ProtocolError
from gt.ops.rules import axes_of, axis_of, broadcast, promote
from gt.ops.table import spec_in, spec_out
from gt.spec import (
    DTYPES,
    DType,
    Layout,
    Mesh,
    Partial,
    Replicate,
    Shard,
    Spec,
    bfloat16,
    bool_,
    dtype_of,
    float16,
    float32,
    float64,
    int64,
    promote_types,
)  # fmt: skip

dtypes = st.sampled_from(DTYPES)
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


def torch_dtype(d: DType) -> torch.dtype:
    return getattr(torch, d.name)


@pytest.mark.parametrize("a", DTYPES, ids=repr)
@pytest.mark.parametrize("b", DTYPES, ids=repr)
def test_two_dtypes_promote_as_in_pytorch(a: DType, b: DType) -> None:
    assert torch_dtype(promote_types(a, b)) == torch.promote_types(torch_dtype(a), torch_dtype(b))


NUMBERS = [True, 3, 2.5]


@pytest.mark.parametrize("a", DTYPES, ids=repr)
@pytest.mark.parametrize("b", [*DTYPES, *NUMBERS], ids=repr)
@pytest.mark.parametrize("shapes", [((2,), (2,)), ((2,), ()), ((), (2,)), ((), ())], ids=str)
def test_operands_promote_as_in_pytorch(a: DType, b: DType | float, shapes: tuple) -> None:
    """Tensors with axes count before 0-d tensors, and those before numbers."""
    left = torch.ones(shapes[0], dtype=torch_dtype(a))
    if isinstance(b, DType):
        with_axes = [d for s, d in zip(shapes, (a, b)) if s]
        if with_axes == [float16] and (a.is_complex or b.is_complex):
            with pytest.raises(TypeError, match="complex32"):  # which GT does not have
                promote(Spec(shapes[0], a), Spec(shapes[1], b))
            return
        mine = promote(Spec(shapes[0], a), Spec(shapes[1], b))
        theirs = torch.result_type(left, torch.ones(shapes[1], dtype=torch_dtype(b)))
    else:
        mine, theirs = promote(Spec(shapes[0], a), type(b)), torch.result_type(left, b)
    assert torch_dtype(mine) == theirs


@given(st.lists(shapes, min_size=1, max_size=3))
def test_shapes_broadcast_as_in_numpy_or_raise_where_it_does(some: list[tuple[int, ...]]) -> None:
    try:
        want = np.broadcast_shapes(*some)
    except ValueError:
        with pytest.raises(ValueError, match="cannot broadcast"):
            broadcast(*some)
    else:
        assert broadcast(*some) == want


def test_equal_specs_are_the_same_object() -> None:
    assert Spec((2, 3), float32) is Spec((2, 3))
    assert Spec((2, 3), float64) is not Spec((2, 3))
    assert copy.deepcopy(Spec((2, 3))) is Spec((2, 3))
    assert pickle.loads(pickle.dumps(Spec((2, 3)))) is Spec((2, 3))


def test_a_spec_does_not_change() -> None:
    with pytest.raises(AttributeError, match="does not change"):
        Spec((2,)).shape = (3,)


def test_a_spec_knows_its_size() -> None:
    spec = Spec((2, 3, 4), bfloat16)
    assert (spec.ndim, spec.numel, spec.nbytes) == (3, 24, 48)
    assert Spec(()).numel == 1 and Spec((3, 0)).nbytes == 0


def test_values_print_as_they_are_written() -> None:
    assert repr(Shard(1)) == "Shard(1)" and repr(Replicate()) == "Replicate()" and repr(Partial("max")) == "Partial('max')"
    assert repr(Mesh((2, 2), (0, 1, 2, 3))) == "Mesh((2, 2), (0, 1, 2, 3))"
    assert repr(Spec((2,), int64)) == "Spec((2,), gt.int64)"
    assert eval(repr(Shard(1))) == Shard(1)


def test_layouts_are_interned_and_know_a_single_worker() -> None:
    assert Layout.on(3) is Layout.on(3) and Layout.on(3).solo == 3
    spread = Layout(Mesh((2,), (0, 1)), (Shard(0),))
    assert spread.solo is None and spread.workers == (0, 1) and repr(spread) == "Shard(0) on [0, 1]"


@pytest.mark.parametrize(
    "name", ["float32", "gt.float32", float32, np.float32, np.dtype("float32"), torch.float32, "float"], ids=repr
)
def test_a_dtype_has_many_spellings(name: object) -> None:
    assert dtype_of(name) is float32


def test_bool_int_and_float_of_python_are_dtypes() -> None:
    assert dtype_of(bool) is bool_ and dtype_of(int) is int64 and dtype_of(np.bool_) is bool_


def test_an_unknown_dtype_lists_the_known_ones() -> None:
    with pytest.raises(TypeError, match=r"no dtype 'complex32': known are bool, uint8.*complex128"):
        dtype_of("complex32")


@given(shapes, dtypes)
def test_a_spec_comes_back_from_the_wire_as_itself(shape: tuple[int, ...], dtype: DType) -> None:
    assert spec_in(spec_out(Spec(shape, dtype))) is Spec(shape, dtype)


@pytest.mark.parametrize("number", [bool, int, float])
def test_a_number_s_type_comes_back_from_the_wire(number: type) -> None:
    assert spec_in(spec_out(number)) is number


@pytest.mark.parametrize("wire", [(), (99,), (-4,), (0, -1), (0, 2, -3)], ids=str)
def test_a_false_spec_on_the_wire_is_refused(wire: tuple[int, ...]) -> None:
    with pytest.raises(ProtocolError, match="invalid spec"):
        spec_in(wire)


@pytest.mark.parametrize(("axis", "ndim", "want"), [(0, 2, 0), (-1, 2, 1), (0, 0, 0), (-1, 0, 0)])
def test_an_axis_counts_from_either_end(axis: int, ndim: int, want: int) -> None:
    assert axis_of(axis, ndim) == want


def test_the_error_of_a_wrong_axis_names_the_valid_ones() -> None:
    with pytest.raises(IndexError, match="no axis 2 in a tensor of 2 dimensions: expected -2 to 1"):
        axis_of(2, 2)
    with pytest.raises(TypeError, match="expected an integer, got 1.5"):
        axis_of(1.5, 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="different axes"):
        axes_of((0, -2), 2)


def test_python_s_types_are_the_dtypes_that_pytorch_takes_them_for() -> None:
    kinds = (float, int, bool, complex)
    assert [dtype_of(k).name for k in kinds] == [str(torch.empty(0, dtype=k).dtype).removeprefix("torch.") for k in kinds]
