"""GT does as PyTorch by PyTorch's own samples, or `opinfo_exceptions` has the reason. Exceptions only become fewer: one that is
right fails here until it is taken off the list."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

pytest.importorskip("expecttest", reason="PyTorch's op_db needs it")
from gt.testing import cluster  # noqa: E402
from tests.ops.opinfo_exceptions import EXCEPTIONS, MOST, NAMES, VERSION  # noqa: E402

if not torch.__version__.startswith(VERSION):
    pytest.skip(f"the exceptions are for PyTorch {VERSION}", allow_module_level=True)

from tests.ops.opinfo import ENTRIES, FLOAT_NAMES, GT, Outcome, compare, full_name, only_defined  # noqa: E402
from tests.ops.opinfo_forms import FORMS  # noqa: E402

BY_NAME = {full_name(op): op for op in ENTRIES}


def differences(op: Any, form: str, engine: str, workers: int, count: int) -> list[str]:
    with warnings.catch_warnings(), cluster(workers, engine=engine) as made:
        warnings.simplefilter("ignore")
        try:
            return [wrong for wrong in FORMS[form](op, GT(made), count) if wrong]
        except AttributeError as missing:  # GT has no function of this name
            return [str(missing)]


def check(op: Any, form: str, engine: str = "pytorch", workers: int = 1, count: int = 1) -> None:
    found = differences(op, form, engine, workers, count)
    reason = EXCEPTIONS[form].get(full_name(op))
    if reason is None:
        assert not found, f"{full_name(op)} ({form}): " + "\n".join(dict.fromkeys(found))


def applies(op: Any, form: str) -> bool:
    return {
        "plain": True, "dtypes": True, "refused": op.error_inputs_func is not None, "in_place": op.inplace_variant is not None,
        "out": op.supports_out, "writes": op.supports_autograd,
    }[form]  # fmt: skip


def entries(form: str) -> Any:
    return pytest.mark.parametrize("op", [op for op in ENTRIES if applies(op, form)], ids=full_name)


@entries("plain")
def test_results_and_gradients_are_pytorchs(op):
    check(op, "plain")


@entries("refused")
def test_a_call_that_pytorch_refuses_raises_its_type(op):
    check(op, "refused")


@entries("in_place")
def test_forms_in_place_are_pytorchs(op):
    check(op, "in_place")


@pytest.mark.parametrize("op", [op for op in ENTRIES if applies(op, "writes")][::16], ids=full_name)
def test_gradients_after_a_write_are_refused_where_pytorch_refuses_some_of_them(op):
    check(op, "writes")


@pytest.mark.parametrize("form", EXCEPTIONS)
def test_exceptions_are_entries_with_a_reason(form):
    for name, reason in EXCEPTIONS[form].items():
        assert name in BY_NAME, f"PyTorch {VERSION} has no entry {name}"
        assert applies(BY_NAME[name], form), f"{name} has no form {form}"
        assert len(reason) > 10


@pytest.mark.parametrize("form", EXCEPTIONS)
def test_the_list_only_becomes_shorter(form):
    found = len(EXCEPTIONS[form])
    assert found <= MOST[form], f"{found} exceptions of {form}, {MOST[form]} before: mend what is new"
    assert found == MOST[form], f"write {found} into MOST[{form!r}]: the list became shorter"


QUICK = [(form, name) for form in EXCEPTIONS if form not in ("dtypes", "writes") for name in EXCEPTIONS[form]]


@pytest.mark.parametrize("form, name", QUICK, ids=lambda v: v)
def test_an_exception_that_is_right_is_taken_off_the_list(form, name):
    assert differences(BY_NAME[name], form, "pytorch", 1, 4), f"take {name} off EXCEPTIONS[{form!r}]: it is right"


def test_of_the_names_for_floats_at_least_560_of_591_are_right():
    wrong = {BY_NAME[name].name for name in EXCEPTIONS["plain"]} & set(FLOAT_NAMES)
    assert len(FLOAT_NAMES) == NAMES
    assert NAMES - len(wrong) >= 560


LAYOUTS = [("pytorch", 1), ("numpy", 1), ("pytorch", 3), ("numpy", 3)]


@pytest.mark.slow
@pytest.mark.parametrize("engine, workers", LAYOUTS, ids=lambda v: str(v))
@entries("plain")
def test_more_samples_on_every_engine_and_three_workers(op, engine, workers):
    check(op, "plain", engine, workers, 4)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["pytorch", "numpy"])
@entries("dtypes")
def test_every_dtype_is_pytorchs(op, engine):
    check(op, "dtypes", engine)


@pytest.mark.slow
@entries("refused")
def test_a_call_that_pytorch_refuses_raises_its_type_on_numpy_too(op):
    check(op, "refused", "numpy")


@pytest.mark.slow
@entries("in_place")
def test_forms_in_place_of_every_sample_are_pytorchs(op):
    check(op, "in_place", count=30)


@pytest.mark.slow
@entries("out")
def test_results_written_into_out_are_pytorchs(op):
    check(op, "out", count=4)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["pytorch", "numpy"])
@entries("writes")
def test_gradients_after_a_write_are_refused_where_pytorch_refuses_them(op, engine):
    check(op, "writes", engine, count=4)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["pytorch", "numpy"])
@pytest.mark.parametrize("name", EXCEPTIONS["writes"])
def test_an_exception_of_writes_that_is_right_is_taken_off_the_list(name, engine):
    assert differences(BY_NAME[name], "writes", engine, 1, 4), f"take {name} off EXCEPTIONS['writes']: it is right"


@pytest.mark.slow
@pytest.mark.parametrize("name", EXCEPTIONS["dtypes"])
def test_an_exception_of_dtypes_that_is_right_is_taken_off_the_list(name):
    found = [w for engine in ("pytorch", "numpy") for w in differences(BY_NAME[name], "dtypes", engine, 1, 4)]
    assert found, f"take {name} off EXCEPTIONS['dtypes']: it is right"


def test_a_cast_of_numbers_beyond_its_dtype_is_compared_with_nothing() -> None:
    """One processor wraps, another saturates."""
    given = torch.tensor([3.7, -3.0, 1e30, float("nan"), 255.9])
    wraps, saturates, wrong = (
        Outcome([torch.tensor(values, dtype=torch.uint8)], [False])
        for values in ([3, 253, 0, 0, 255], [3, 0, 255, 7, 255], [4, 253, 0, 0, 255])
    )
    assert compare(wraps, saturates)
    assert not compare(only_defined(given, wraps), only_defined(given, saturates))
    assert compare(only_defined(given, wraps), only_defined(given, wrong))
