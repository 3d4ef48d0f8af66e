"""`gt.testing.assert_close` and `make_tensor`, as PyTorch's: for the tests of users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gt.client.autograd import Tensor
from gt.client.functions.create import tensor, zeros
from gt.client.functions.random import rand, randint
from gt.spec import dtype_of

# By dtype: relative and absolute
TOLERANCES = {
    "float16": (1e-3, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7),
    "complex64": (1.3e-6, 1e-5), "complex128": (1e-7, 1e-7),
}  # fmt: skip


def assert_close(
    actual: Any, expected: Any, *, allow_subclasses: bool = True, rtol: float | None = None, atol: float | None = None,
    equal_nan: bool = False, check_device: bool = True, check_dtype: bool = True, check_layout: bool = True,
    check_stride: bool = False, msg: Any = None,
) -> None:  # fmt: skip
    """Raise AssertionError unless both are close: tensors, arrays, numbers, and sequences and mappings of them.

    >>> gt.testing.assert_close(gt.tensor([1.0, 2.0]), gt.tensor([1.0, 2.0 + 1e-7]))
    """
    if (rtol is None) is not (atol is None):
        raise ValueError(f"give both of rtol and atol or none, not {rtol=} and {atol=}")
    wrong = _difference(actual, expected, "", (rtol, atol), equal_nan, check_dtype)
    if wrong:
        raise AssertionError(msg(wrong) if callable(msg) else msg or wrong)


def _difference(
    actual: Any, expected: Any, where: str, tolerance: tuple[float | None, float | None], equal_nan: bool, check_dtype: bool
) -> str:
    """A description of the difference, or ""."""
    rest = (tolerance, equal_nan, check_dtype)
    if isinstance(actual, Mapping) and isinstance(expected, Mapping):
        if actual.keys() != expected.keys():
            return f"The keys of the mappings do not match{where}: {sorted(map(str, actual.keys() ^ expected.keys()))}"
        parts = [(actual[k], expected[k], k) for k in actual]
    elif _is_row(actual) and _is_row(expected):
        if len(actual) != len(expected):
            return f"The length of the sequences mismatch{where}: {len(actual)} != {len(expected)}"
        parts = [(a, e, i) for i, (a, e) in enumerate(zip(actual, expected))]
    elif actual is None or expected is None:
        return "" if actual is expected else f"None mismatch{where}: {actual} is not {expected}"
    else:
        return _of_values(actual, expected, where, *rest)
    found = (_difference(a, e, f"{where or ' at item '}[{k!r}]", *rest) for a, e, k in parts)
    return next((text for text in found if text), "")


def _is_row(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _of_values(
    actual: Any, expected: Any, where: str, tolerance: tuple[float | None, float | None], equal_nan: bool, check_dtype: bool
) -> str:
    numbers = not isinstance(actual, (Tensor, np.ndarray)) and not isinstance(expected, (Tensor, np.ndarray))
    if not numbers and type(actual) is not type(expected) and not (isinstance(actual, Tensor) and isinstance(expected, Tensor)):
        raise TypeError(f"no comparison of {type(actual).__name__} and {type(expected).__name__}{where}")
    a, e = (value if isinstance(value, Tensor) else tensor(value) for value in (actual, expected))
    if a.shape != e.shape:
        return f"The values for attribute 'shape' do not match{where}: {tuple(a.shape)} != {tuple(e.shape)}."
    if check_dtype and not numbers and a.dtype is not e.dtype:
        return f"The values for attribute 'dtype' do not match{where}: {a.dtype} != {e.dtype}."
    limits = [TOLERANCES.get(dtype.name, (0.0, 0.0)) for dtype in (a.dtype, e.dtype)]
    relative, absolute = (max(limit[i] for limit in limits) if given is None else given for i, given in enumerate(tolerance))
    return _of_arrays(a.detach().numpy(), e.detach().numpy(), where, relative, absolute, equal_nan)


def _of_arrays(a: np.ndarray, e: np.ndarray, where: str, relative: float, absolute: float, equal_nan: bool) -> str:
    wide = np.complex128 if np.iscomplexobj(a) or np.iscomplexobj(e) else np.float64
    exact = a.dtype.kind in "iub" and e.dtype.kind in "iub" and not relative and not absolute
    a, e = (a, e) if exact else (a.astype(wide), e.astype(wide))
    right = a == e if exact else np.isclose(a, e, rtol=relative, atol=absolute, equal_nan=equal_nan)
    if right.all():
        return ""
    with np.errstate(all="ignore"):
        apart = np.where(right, 0.0, np.abs(a.astype(wide) - e.astype(wide)))
        shares = np.where(right, 0.0, apart / np.abs(e.astype(wide)))
    count, bad = right.size, int((~right).sum())
    verdict = "not equal" if exact else "not close"
    if not right.ndim:
        return (f"Scalars are {verdict}{where}!\n\nExpected {e} but got {a}.\nAbsolute difference: {apart} (up to {absolute} "
                f"allowed)\nRelative difference: {shares} (up to {relative} allowed)")  # fmt: skip
    worst = [np.unravel_index(int(np.argmax(part)), part.shape) for part in (apart, shares)]
    at = [tuple(int(i) for i in index) for index in worst]
    return (f"Tensor-likes are {verdict}{where}!\n\nMismatched elements: {bad} / {count} ({100 * bad / count:.1f}%)\n"
            f"Greatest absolute difference: {apart[worst[0]]} at index {at[0]} (up to {absolute} allowed)\n"
            f"Greatest relative difference: {shares[worst[1]]} at index {at[1]} (up to {relative} allowed)")  # fmt: skip


def make_tensor(
    *shape: Any, dtype: Any, device: Any = None, low: float | None = None, high: float | None = None,
    requires_grad: bool = False, noncontiguous: bool = False, exclude_zero: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    """Random values of a dtype, from `low` to `high`: by default -9 to 9, 0 to 9 for uint8, 0 or 1 for bool."""
    size = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
    dtype = dtype_of(dtype)
    if dtype.name == "bool":
        return randint(0, 2, size).to(dtype)
    begin = low if low is not None else 0 if dtype.name == "uint8" else -9
    end = high if high is not None else 10 if dtype.rank == 1 else 9
    if begin >= end:
        raise ValueError(f"expected low below high, got {begin} and {end}")
    if dtype.rank == 1:
        made = randint(int(np.ceil(begin)), int(np.ceil(end)), size).to(dtype)
    elif 0 in size:
        made = zeros(size, dtype=dtype)
    else:
        span = rand(size, dtype=dtype if dtype.rank == 3 or dtype.name in ("float32", "float64") else "float32")
        made = (span * (end - begin) + (begin * (1 + 1j) if dtype.rank == 3 else begin)).to(dtype)
    if exclude_zero:
        made = made.masked_fill(made == 0, 1 if dtype.rank == 1 else float(np.finfo(np.float16).tiny))
    return made.detach().requires_grad_(requires_grad)
