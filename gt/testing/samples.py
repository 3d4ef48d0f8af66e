"""Inputs for every row, made from its `tries`: unchanged, and in forms that often fail (other dtypes, 0-d, empty, broadcast,
strided, nan and inf). Specs that a row refuses give no sample."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gt.ops import TABLE, Kind, Row, Values, infer
from gt.spec import Spec, bfloat16, bool_, complex64, complex128, float16, float32, float64, int8, int32, uint8
from gt.worker.engine.numpy import numpy_dtype, round_bfloat16


def _qr(q: np.ndarray, r: np.ndarray) -> tuple:
    return q @ r, np.abs(r), _gram(q)


def _svd(u: np.ndarray, s: np.ndarray, vh: np.ndarray) -> tuple:
    n = s.shape[-1]
    return (u[..., :n] * s[..., None, :]) @ vh[..., :n, :], s, _gram(u), _gram(_turned(vh))


def _eigh(w: np.ndarray, v: np.ndarray) -> tuple:
    return (v * w[..., None, :]) @ _turned(v), w, _gram(v)


def _eig(w: np.ndarray, v: np.ndarray) -> tuple:
    return (v * w[..., None, :]) @ np.linalg.inv(v), np.sort(w, -1), np.linalg.norm(v, axis=-2)


def _lu(lu: np.ndarray, pivots: np.ndarray) -> tuple:
    """The product of the factors: libraries differ in which of two complex numbers is the larger pivot."""
    m, n = lu.shape[-2:]
    k = min(m, n)
    found = np.empty_like(lu)
    for at in np.ndindex(lu.shape[:-2]):
        rows = list(range(m))
        for i, p in enumerate(pivots[at]):
            rows[i], rows[p - 1] = rows[p - 1], rows[i]
        found[at][rows] = (np.tril(lu[at], -1)[:, :k] + np.eye(m, k)) @ np.triu(lu[at])[:k]
    return (found,)


def _gram(a: np.ndarray) -> np.ndarray:
    """The products of a matrix's columns: 0 and 1 if they are orthonormal."""
    return _turned(a) @ a


def _turned(a: np.ndarray) -> np.ndarray:
    """The conjugate transpose."""
    return np.conj(np.swapaxes(a, -1, -2))


# For results that are defined only up to the signs of vectors or up to rotations, which differ between LAPACKs: the defined
# part. Products of factors, orthonormality, and singular values and eigenvalues are compared.
SIGNED: dict[str, Callable[..., tuple]] = {"qr": _qr, "svd": _svd, "eigh": _eigh, "eig": _eig, "lu_factor": _lu}
NUMBERS = {float: 1.7, int: 2, bool: True}
ROWS = [r for r in TABLE.values() if r.kernel is not None]


@dataclass
class Sample:
    """One call of a row. `form` is the difference from its try."""

    kind: Kind
    operands: list[Any]
    form: str = ""
    strided: bool = False

    @property
    def id(self) -> str:
        return f"{self.kind}{' ' if self.form else ''}{self.form}"


def draw(operand: Any, rng: np.random.Generator, low: float = -2.0, high: float = 2.0) -> Any:
    """A value for an operand: an array in the NumPy engine's form, or a number."""
    positive = False
    if isinstance(operand, Values):
        low, high, positive, operand = operand.low, operand.high, operand.positive, operand.spec
    if isinstance(operand, type):
        return NUMBERS[operand]
    if not isinstance(operand, Spec):
        return operand
    shape, dtype = operand.shape, operand.dtype
    if dtype is bool_:
        return rng.random(shape) < 0.5
    if dtype.rank == 1:
        low, high = (-5, 6) if (low, high) == (-2.0, 2.0) else (math.ceil(low), math.ceil(high))
        if not dtype.is_signed:
            low = max(low, 0)
        return np.asarray(rng.integers(low, max(high, low + 1), shape), numpy_dtype(dtype))
    a = np.asarray(rng.uniform(low, high, shape))
    if dtype.is_complex:
        a = a + 1j * rng.uniform(low, high, shape)
    if positive:
        a = a @ np.swapaxes(a.conj(), -1, -2) + 2.0 * np.eye(shape[-1])
    a = a.astype(numpy_dtype(dtype))
    return round_bfloat16(a) if dtype is bfloat16 else a


def spec_of(operand: Any) -> Any:
    if isinstance(operand, Values):
        return operand.spec
    return operand if isinstance(operand, (Spec, type)) else type(operand)


def make(row: Row, operands: tuple, statics: dict, form: str = "", seed: int = 0) -> Sample:
    rng = np.random.default_rng(zlib.crc32(f"{row.name} {form} {seed}".encode()))
    settings = {**{n: row.defaults.get(n) for n in row.statics}, **statics}
    kind = infer(row, tuple(map(spec_of, operands)), tuple(settings[n] for n in row.statics))
    return Sample(kind, [draw(o, rng) for o in operands], form)


def plain(row: Row) -> Iterator[Sample]:
    for i, (operands, statics) in enumerate(row.tries):
        yield make(row, operands, statics, seed=i)


def with_dtype(operand: Any, dtype: Any) -> Any:
    if isinstance(operand, Values):
        return replace(operand, spec=with_dtype(operand.spec, dtype))
    if isinstance(operand, Spec) and operand.dtype is float32:
        return Spec(operand.shape, dtype)
    if isinstance(operand, Spec) and operand.dtype is complex64 and dtype in (float64, complex128):
        return Spec(operand.shape, complex128)
    return operand


def refused(row: Row, operands: tuple, statics: dict, form: str) -> Sample | None:
    """A sample, or None if the row refuses these Specs."""
    try:
        return make(row, operands, statics, form)
    except (TypeError, ValueError, IndexError):
        return None


def varied(row: Row) -> Iterator[Sample]:
    """The tries in other forms."""
    for i, (operands, statics) in enumerate(row.tries):
        others = ((int32, int8, uint8, bool_) if row.pointwise else ()) + ((complex64,) if row.complex and i < 2 else ())
        for dtype in (float64, float16, bfloat16, *others):
            changed = tuple(with_dtype(o, dtype) for o in operands)
            if changed != operands and (s := refused(row, changed, statics, f"try {i} {dtype.name}")):
                yield s
        strided = make(row, operands, statics, f"try {i} strided")
        yield replace(strided, strided=True)
        if row.pointwise and not row.is_gradient:
            yield from _shapes(row, operands, statics, i)
    if row.pointwise:
        operands, statics = row.tries[0]
        odd = make(row, operands, statics, "nan and inf")
        values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e30, -1e30, 1e-30])
        for o in odd.operands:
            if isinstance(o, np.ndarray) and o.dtype.kind == "f":
                o[...] = np.resize(values, o.shape)
        yield odd


def _shapes(row: Row, operands: tuple, statics: dict, i: int) -> Iterator[Sample]:
    for form, shape in (("0-d", ()), ("empty", (0,)), ("thin", (1, 0, 3))):
        changed = tuple(_with_shape(o, shape) for o in operands)
        if s := refused(row, changed, statics, f"try {i} {form}"):
            yield s


def _with_shape(operand: Any, shape: tuple) -> Any:
    if isinstance(operand, Values):
        return replace(operand, spec=Spec(shape, operand.spec.dtype))
    return Spec(shape, operand.dtype) if isinstance(operand, Spec) else operand


def strided(a: np.ndarray) -> np.ndarray:
    """The same values with every second element of memory, reversed if an axis allows."""
    if a.ndim == 0:
        return a
    room = np.zeros((*a.shape[:-1], a.shape[-1] * 2), a.dtype)
    room[..., ::2] = a
    return room[..., ::2]


def for_numpy(sample: Sample) -> list[Any]:
    return [(strided(o) if sample.strided else o.copy()) if isinstance(o, np.ndarray) else o for o in sample.operands]


def several(found: Any) -> tuple:
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


def as_numpy(a: Any) -> np.ndarray:
    """A result, in float64 if it is a float."""
    a = np.asarray(a)
    return a.astype(np.float64) if a.dtype.kind == "f" else a.astype(np.complex128) if a.dtype.kind == "c" else a


# Tolerances by the dtype of the result. 16-bit results are rounded once or more on each side.
CLOSE = {float64: (1e-10, 1e-10), float32: (2e-5, 2e-5), float16: (4e-3, 4e-3), bfloat16: (3e-2, 3e-2)}
CLOSE |= {complex128: CLOSE[float64], complex64: CLOSE[float32]}


def coarsest(kind: Kind) -> tuple[float, float]:
    """The precision of a comparison: that of the least precise float among operands and results."""
    floats = [s.dtype for s in (*kind.ins, *kind.outs) if isinstance(s, Spec) and s.dtype.rank >= 2]
    return max((CLOSE[d] for d in floats), default=CLOSE[float32])


def defined(kind: Kind, results: Sequence[Any]) -> list[tuple[np.ndarray, Spec]]:
    """The defined part of a call's results, as NumPy arrays, and the Spec of each."""
    arrays = [as_numpy(r) for r in results]
    if kind.row.name not in SIGNED:
        return list(zip(arrays, kind.outs))
    for a, spec in zip(arrays, kind.outs):
        assert a.shape == spec.shape, f"{kind}: a result of shape {a.shape}, want {spec.shape}"
    return [(a, Spec(a.shape, kind.outs[0].dtype)) for a in SIGNED[kind.row.name](*arrays)]


def assert_close(found: Any, want: Any, spec: Spec, what: str = "", close: tuple[float, float] = CLOSE[float32]) -> None:
    found, want = as_numpy(found), as_numpy(want)
    assert found.shape == want.shape == spec.shape, f"{what}: {found.shape}, {want.shape}, want {spec.shape}"
    if spec.dtype.rank < 2:
        np.testing.assert_array_equal(found, want, err_msg=what)
        return
    rtol, atol = close
    np.testing.assert_allclose(found, want, rtol=rtol, atol=atol, equal_nan=True, err_msg=what)
