"""The NumPy engine: the reference. 16-bit floats are computed in float32 and rounded after every op, as in PyTorch; bfloat16,
which NumPy lacks, is stored in float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import psutil

from gt.ops import Kind, random
from gt.ops.rules import promote
from gt.spec import DTYPES, DType, Spec, bfloat16, bool_, float16, float32
from gt.worker.engine import OWN, philox
from gt.worker.engine.host_copy import NumPyCopy
from gt.worker.engine.host_device import HostDevice
from gt.worker.engine.numpy import bessel, special


def round_bfloat16(a: np.ndarray) -> np.ndarray:
    """Round to the nearest bfloat16, ties to even, in float32."""
    a = np.ascontiguousarray(a, np.float32).reshape(np.shape(a))
    bits = a.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(a), a, rounded)


def numpy_dtype(dtype: DType) -> np.dtype:
    return np.dtype("float32" if dtype is bfloat16 else dtype.name)


def _divides(function: Callable) -> Any:
    """A division that refuses integers divided by zero, of which NumPy makes 0."""

    def divide(a: Any, b: Any) -> np.ndarray:
        if np.result_type(a, b).kind in "iu" and np.size(a) and not np.all(b):
            raise ZeroDivisionError("an integer divided by zero")
        return function(a, b)

    return staticmethod(divide)


class NumpyNamespace:
    """NumPy's namespace, and a few more functions that kernels need."""

    def __getattr__(self, name: str) -> Any:
        home = special if hasattr(special, name) else bessel if hasattr(bessel, name) else np
        value = getattr(home, name)
        setattr(self, name, value)
        return value

    block = 1 << 14  # elements per block of a function with many passes, which should fit in a core's cache
    fractions = staticmethod(philox.fractions)
    words = staticmethod(philox.words)
    bernoulli = staticmethod(philox.bernoulli)
    floor_divide, remainder, fmod = _divides(np.floor_divide), _divides(np.remainder), _divides(np.fmod)

    def normals(self, seed: int, number: int, first: int, count: int) -> np.ndarray:
        if philox.NATIVE is not None:
            return philox.normals(seed, number, first, count)
        return random.normals(self, seed, number, first, count)

    def dropped(self, a: np.ndarray, p: float, seed: int, number: int, first: int) -> np.ndarray:
        return random.dropped(self, a, p, seed, number, first)

    @staticmethod
    def dtype(code: int) -> np.dtype:
        return numpy_dtype(DTYPES[code])

    @staticmethod
    def cast(a: Any, code: int) -> np.ndarray:
        if DTYPES[code] is bfloat16:
            return round_bfloat16(a)
        a = np.asarray(a)
        if a.dtype.kind == "c" and DTYPES[code].rank < 3 and DTYPES[code] is not bool_:
            a = a.real  # else NumPy warns about the dropped imaginary part
        with np.errstate(invalid="ignore"):
            return a.astype(numpy_dtype(DTYPES[code]), copy=False)

    @staticmethod
    def complex(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        out = np.empty(np.broadcast_shapes(np.shape(a), np.shape(b)), np.result_type(a, b, np.complex64))
        out.real, out.imag = a, b
        return out

    @staticmethod
    def bitcast(a: np.ndarray, old: int, new: int) -> np.ndarray:
        a = np.ascontiguousarray(a).reshape(a.shape)  # ascontiguousarray gives a 0-d array an axis
        if DTYPES[old] is bfloat16:
            a = (a.view(np.uint32) >> 16).astype(np.uint16)
        if DTYPES[new] is bfloat16:
            return (a.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return a.view(DTYPES[new].name)

    conj_physical = np.conj

    @staticmethod
    def solve_triangle(t: np.ndarray, b: np.ndarray, upper: bool) -> np.ndarray:
        """By NumPy's solver, which does not pivot in a triangle; with a zero on the diagonal, which it refuses, by
        substitution, giving infinities."""
        try:
            return np.linalg.solve(t, b)
        except np.linalg.LinAlgError:
            lead, n = np.broadcast_shapes(t.shape[:-2], b.shape[:-2]), t.shape[-1]
            out = np.broadcast_to(b, (*lead, *b.shape[-2:])).copy()
            for i in reversed(range(n)) if upper else range(n):
                done = slice(i + 1, n) if upper else slice(0, i)
                out[..., i, :] -= (t[..., i, None, done] @ out[..., done, :])[..., 0, :]
                out[..., i, :] /= t[..., i, i, None]
            return out

    @staticmethod
    def fft_complex(a: np.ndarray, axes: tuple, forward: bool) -> np.ndarray:
        return np.fft.fftn(a, axes=axes) if forward else np.fft.ifftn(a, axes=axes, norm="forward")

    @staticmethod
    def fft_half(a: np.ndarray, axes: tuple) -> np.ndarray:
        return np.fft.rfftn(a, axes=axes)

    @staticmethod
    def fft_real(a: np.ndarray, axes: tuple, n: int) -> np.ndarray:
        return np.fft.irfftn(a, [*(a.shape[i] for i in axes[:-1]), n], axes, norm="forward")

    @staticmethod
    def full(shape: tuple, value: Any, dtype: Any) -> np.ndarray:
        """An integer that the dtype does not have wraps, as a cast does."""
        return np.full(shape, np.asarray(value).astype(dtype) if type(value) is int else value, dtype)

    @staticmethod
    def power(a: Any, b: Any) -> np.ndarray:
        """Of integers to negative powers only 1 and -1 are integers, and all others 0; one such power for all is refused."""
        if not np.ndim(b) or np.result_type(a, b).kind != "i" or not np.any(negative := np.less(b, 0)):
            return np.power(a, b)
        units = np.where(np.equal(a, -1), np.where(np.remainder(b, 2), -1, 1), np.equal(a, 1))
        return np.where(negative, units, np.power(a, np.where(negative, 0, b)))

    @staticmethod
    def getitem(a: np.ndarray, index: tuple) -> np.ndarray:
        return a[index]

    @staticmethod
    def setitem(a: np.ndarray, index: tuple, value: np.ndarray) -> np.ndarray:
        a[index] = value
        return a

    @staticmethod
    def add_at(a: np.ndarray, index: tuple, value: np.ndarray) -> np.ndarray:
        """`value` added at these indices; repeated indices accumulate."""
        np.add.at(a, index, value)
        return a

    @staticmethod
    def reduce_at(a: np.ndarray, index: tuple, value: np.ndarray, how: str) -> np.ndarray:
        """Reduce all values for an index with the element there, by product, maximum or minimum."""
        {"prod": np.multiply, "amax": np.maximum, "amin": np.minimum}[how].at(a, index, value)
        return a


XP = NumpyNamespace()


class NumPyEngine(HostDevice):
    streams: Any = None
    threads: Any = None
    small_runs: Any = None
    name = "numpy"
    device = "cpu"
    base = ""
    clock: Callable[[], float] = float

    def __init__(self) -> None:
        self.fell_back: dict[str, str] = {}

    def begin(self) -> None:
        pass

    def kernel(self, kind: Kind) -> Callable[..., Any]:
        row = kind.row
        assert row.kernel is not None, f"{row} has no kernel of its own"
        run = partial(row.kernel, XP, **kind.settings) if kind.settings else partial(row.kernel, XP)
        casts = _widened(kind)
        if any(casts):
            run = partial(_wide, run, casts)
        return partial(_several, run, kind.outs) if len(kind.outs) > 1 else partial(_one, run, kind.outs[0])

    def way(self, kind: Kind) -> str:
        return OWN

    def update(self, kind: Kind) -> None:
        return None

    many = update

    def alike(self, ins: Any) -> None:
        return None

    half = alike

    def over(self, kind: Kind) -> None:
        return None

    def group_recording(self, trace: Any, collectives: Any, group: tuple[int, ...]) -> None:
        """Recordings are PyTorch's, on CUDA."""

    def faster(self, program: Any) -> None:
        return None

    def load(self, buffer: memoryview, spec: Spec, copy: bool) -> np.ndarray:
        if spec.dtype is bfloat16:
            wide = np.frombuffer(buffer, np.uint16).astype(np.uint32) << 16
            return wide.view(np.float32).reshape(spec.shape)
        array = np.frombuffer(buffer, numpy_dtype(spec.dtype), spec.numel).reshape(spec.shape)
        return array.copy() if copy else array

    def store(self, array: np.ndarray, spec: Spec) -> memoryview:
        if spec.dtype is bfloat16:
            array = (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return np.ascontiguousarray(array).data.cast("B") if array.size else memoryview(b"")

    def buffer(self, array: Any) -> tuple[int, int]:
        base = array  # a NumPy scalar has no base
        while isinstance(base.base, np.ndarray):
            base = base.base
        return id(base), base.nbytes

    def to_host(self, arrays: list[Any]) -> NumPyCopy | None:
        return NumPyCopy.of(arrays)

    def memory(self) -> tuple[int, int]:
        return psutil.Process().memory_info().rss, psutil.virtual_memory().total


def _widened(kind: Kind) -> list[Any]:
    """The dtype to which each operand is cast before the kernel: 16-bit floats to 32 bits and, as NumPy would compute small
    integers in 16-bit floats and refuse numbers out of range, all operands of a pointwise op to PyTorch's dtype."""
    row = kind.row
    if row.view:
        return [None] * len(kind.ins)
    specs = [s for s in kind.ins if isinstance(s, Spec)]
    to, logic = None, False
    if row.pointwise and specs:
        best = promote(*kind.ins)
        logic = best is bool_  # NumPy accepts booleans with other dtypes, and a condition must stay boolean
        best = kind.outs[0].dtype if best.rank < kind.outs[0].dtype.rank else best
        to = numpy_dtype(float32 if best is float16 else best)
    casts: list[Any] = []
    for s in kind.ins:
        if not isinstance(s, Spec):
            casts.append(to.type if to is not None and to.kind in "iu" and s is int else None)
        elif to is not None and (s.dtype is not bool_ or logic) and numpy_dtype(s.dtype) != to:
            casts.append(to)
        else:
            casts.append(np.dtype("float32") if s.dtype is float16 else None)
    return casts


def _wide(run: Callable, casts: list[Any], *operands: Any) -> Any:
    return run(*[o if c is None else np.asarray(o).astype(c) for o, c in zip(operands, casts)])


def _one(run: Callable, spec: Spec, *operands: Any) -> np.ndarray:
    with np.errstate(all="ignore"):  # infinities and nans are valid results, as on every other engine
        return _fit(run(*operands), spec)


def _several(run: Callable, specs: tuple[Spec, ...], *operands: Any) -> tuple[np.ndarray, ...]:
    with np.errstate(all="ignore"):
        return tuple(_fit(a, s) for a, s in zip(run(*operands), specs))


def _fit(a: Any, spec: Spec) -> np.ndarray:
    """Cast a result to its spec: NumPy returns scalars for 0-d results and has other promotion rules."""
    if spec.dtype is bfloat16:
        return round_bfloat16(a)
    want = numpy_dtype(spec.dtype)
    if type(a) is not np.ndarray or a.dtype != want:
        a = np.asarray(a, want)
    return a


def make(name: str = "numpy") -> NumPyEngine:
    return NumPyEngine()
