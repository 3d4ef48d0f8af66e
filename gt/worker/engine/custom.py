"""A user's backend as an engine. Its class keeps tensors by number and has some ops by name; which ones, and that their results
are right, is found by trying. Missing ops are decomposed, or run by NumPy on the arrays of `get_data`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np

from gt.ops import TABLE, Kind, infer
from gt.ops.table import Row, arity
from gt.spec import DType, Spec, bfloat16, float16, float32, float64
from gt.worker.engine.host_device import HostDevice
from gt.worker.engine.mixed import Kernel, resolve
from gt.worker.engine.numpy import NumPyEngine, numpy_dtype

# A backend may lack these ops, but one that computes them wrong is refused.
PROMISED = ("add", "sub", "mul", "div", "relu", "sigmoid", "tanh", "exp", "log")
CLOSE = {float32: 1e-4, float64: 1e-9}


class Held:
    """A tensor that the backend keeps; it is dropped there when this object is freed."""

    __slots__ = ("id", "spec", "tensors")

    def __init__(self, id: int, spec: Spec, tensors: dict[int, Any]) -> None:
        self.id, self.spec, self.tensors = id, spec, tensors

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def dtype(self) -> str:
        return self.spec.dtype.name

    def __del__(self) -> None:
        self.tensors.pop(self.id, None)


class Wrong(ArithmeticError):
    """The backend computed wrong results."""


class CustomEngine(HostDevice):
    base = "numpy"
    streams: Any = None
    threads: Any = None
    small_runs: Any = None
    clock: Callable[[], float] = float

    def __init__(self, name: str, cls: Any) -> None:
        self.name, self.backend, self.numpy = name, cls(), NumPyEngine()
        self.device = str(getattr(self.backend, "device", "cpu"))
        self.fell_back: dict[str, str] = {}
        self.tensors: dict[int, Any] = getattr(self.backend, "tensors", {})
        self.ids: Iterator[int] = count(1)
        self.found: dict[tuple, bool] = {}
        for op in PROMISED:
            kind = infer(TABLE[op], (Spec((2, 3), float32),) * arity(TABLE[op])[0], ())
            try:
                self._try(kind, self._call(op, kind))
            except Wrong as wrong:
                raise ValueError(f"backend {name!r} computes wrong results: {wrong}") from None

    def begin(self) -> None:
        pass

    def kernel(self, kind: Kind) -> Kernel:
        return resolve(kind, self.own, self.bridge, views=False)[1]

    def way(self, kind: Kind) -> str:
        return resolve(kind, self.own, self.bridge, views=False)[0]

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

    # Kernels

    def own(self, kind: Kind) -> Kernel | None:
        op = asked_as(kind)
        if op is not None and self._has(kind, op):
            return self._call(op, kind)
        return self._shaped(kind) if self._shapes(kind) else None

    def _call(self, op: str, kind: Kind) -> Kernel:
        backend, out = self.backend, kind.outs[0]
        if len(kind.ins) == 1:

            def unary(a: Held) -> Held:
                result = next(self.ids)
                backend.unary_op(result, op, a.id)
                return Held(result, out, self.tensors)

            return unary
        number = None if isinstance(kind.ins[1], Spec) else Spec((), kind.ins[0].dtype)

        def binary(a: Held, b: Any) -> Held:
            right = b if number is None else self.put(np.array(b, numpy_dtype(number.dtype)), number)
            result = next(self.ids)
            backend.binary_op(result, op, a.id, right.id)
            return Held(result, out, self.tensors)

        return binary

    def _shaped(self, kind: Kind) -> Kernel:
        """A creation or movement op by the backend's method for it."""
        op, out = kind.row.name, kind.outs[0]
        settings = {name: value for name, value in kind.settings.items() if name not in ("shape", "dtype")}

        def create(*numbers: Any) -> Held:
            result = next(self.ids)
            self.backend.create_op(result, op, out.dtype.name, out.shape, numbers, settings)
            return Held(result, out, self.tensors)

        def reshape(a: Held, *numbers: Any) -> Held:
            result = next(self.ids)
            self.backend.reshape_op(result, op, a.id, out.shape, numbers, settings)
            return Held(result, out, self.tensors)

        return reshape if kind.tensor_operands else create

    def bridge(self, kind: Kind) -> Kernel:
        run, outs = self.numpy.kernel(kind), kind.outs

        def kernel(*operands: Any) -> Any:
            made = run(*[self.get(o) if isinstance(o, Held) else o for o in operands])
            return self.put(made, outs[0]) if len(outs) == 1 else tuple(self.put(m, s) for m, s in zip(made, outs))

        return kernel

    # Supported ops

    def _has(self, kind: Kind, op: str) -> bool:
        """Whether the backend has this op for these operands: tried once for each dtype and broadcast."""
        small = _small(kind)
        if small.key not in self.found:
            self.found[small.key] = self._ask(small, self._call(op, small))
        return self.found[small.key]

    def _shapes(self, kind: Kind) -> bool:
        """Whether the backend has this creation or movement op: tried once for each dtype, with the samples of the op's row."""
        method, dtype = _method(kind), kind.outs[0].dtype
        if method is None or not hasattr(self.backend, method):
            return False
        if (kind.row, dtype) not in self.found:
            samples = [_sample(kind.row, operands, statics, dtype) for operands, statics in kind.row.tries]
            self.found[kind.row, dtype] = all(self._ask(small, self._shaped(small), numbers) for small, numbers in samples)
        return self.found[kind.row, dtype]

    def _ask(self, small: Kind, run: Kernel, numbers: tuple = ()) -> bool:
        try:
            return self._try(small, run, numbers)
        except Wrong as wrong:
            warnings.warn(f"backend {self.name!r}: {wrong}; NumPy computes it instead", RuntimeWarning, stacklevel=2)
            return False

    def _try(self, small: Kind, run: Kernel, numbers: tuple = ()) -> bool:
        """Whether the backend has the op. Raises Wrong if its results are wrong."""
        for low, high in (
            (0.25, 0.9),
            (-0.9, 0.9),
            (-0.9, -0.25),
        ):  # the last finds ops that fail only on a negative second operand
            operands = [_values(s, low, high, i) for i, s in enumerate(small.ins)]
            operands[len(operands) - len(numbers) :] = numbers
            try:
                want = self.numpy.kernel(small)(*operands)
            except ZeroDivisionError:  # integers have no quotient there: other divisors
                operands[-1] = np.where(operands[-1] == 0, operands[-1].dtype.type(1), operands[-1])
                want = self.numpy.kernel(small)(*operands)
            held = [self.put(o, s) if isinstance(s, Spec) else o for o, s in zip(operands, small.ins)]
            try:
                got = self.get(run(*held))
            except Exception:  # the backend lacks this op and may raise anything
                return False
            rtol = CLOSE.get(small.outs[0].dtype, 0.0)
            right = np.isclose(got, want, rtol=rtol, atol=rtol, equal_nan=True)
            if not right.all():
                raise Wrong(f"its {small} gives {got[~right].flat[0]}: expected {want[~right].flat[0]}")
        return True

    # Arrays

    def put(self, array: np.ndarray, spec: Spec) -> Held:
        held = Held(next(self.ids), spec, self.tensors)
        self.backend.create_tensor(held.id, np.ascontiguousarray(array).reshape(spec.shape), spec.dtype.name, spec.shape)
        return held

    def get(self, held: Held) -> np.ndarray:
        found = np.asarray(self.backend.get_data(held.id))
        want = numpy_dtype(held.spec.dtype)
        if found.shape != held.spec.shape or found.dtype != want:
            asked = f"{want.name} {held.spec.shape}"
            raise TypeError(f"get_data of backend {self.name!r} gave {found.dtype.name} {found.shape}: expected {asked}")
        return found

    def load(self, buffer: memoryview, spec: Spec, copy: bool) -> Held:
        return self.put(self.numpy.load(buffer, spec, True), spec)

    def store(self, array: Held, spec: Spec) -> memoryview:
        return self.numpy.store(self.get(array), spec)

    def memory(self) -> tuple[int, int]:
        return self.numpy.memory()

    def buffer(self, array: Held) -> tuple[int, int]:
        return array.id, array.spec.nbytes

    def to_host(self, arrays: list[Held]) -> None:
        return None


def asked_as(kind: Kind) -> str | None:
    """The op's name for custom backends, or None if the kind has none."""
    specs = [s for s in kind.ins if isinstance(s, Spec)]
    dtypes = {s.dtype for s in specs}
    if len(dtypes) != 1 or len(kind.outs) != 1 or not isinstance(kind.ins[0], Spec) or dtypes & {bfloat16, float16}:
        return None  # GT decides about promotion and rounding to 16 bits
    row, first = kind.row, kind.ins[0]
    if row.pointwise and not row.statics and len(kind.ins) <= 2:
        return row.name
    if row.reduces and len(kind.ins) == 1 and kind.settings == {"axis": (*range(first.ndim),), "keepdims": False}:
        return row.name
    return row.plain_name or None if kind.settings.get("axes", (1, 0)) == (1, 0) else None


def _method(kind: Kind) -> str | None:
    """The method of a custom backend for this creation or movement op, if any."""
    tensors = [s for s in kind.ins if isinstance(s, Spec)]
    if len(kind.outs) != 1 or kind.outs[0].dtype in (bfloat16, float16) or kind.row.kernel is None:
        return None
    if kind.row.creates and not tensors:
        return "create_op"
    return "reshape_op" if kind.row.moves and len(tensors) == 1 and tensors[0] is kind.ins[0] else None


def _sample(row: Row, operands: tuple, statics: dict[str, Any], dtype: DType) -> tuple[Kind, tuple]:
    """One of a row's samples in another dtype: its kind, and its number operands."""
    operands = tuple(Spec(o.shape, dtype) if isinstance(o, Spec) else 1.5 if o is float else o for o in operands)
    ins = tuple(o if isinstance(o, Spec) else type(o) for o in operands)
    settings = {**statics, "dtype": dtype.code}
    return infer(row, ins, tuple(settings[name] for name in row.statics)), tuple(o for o in operands if not isinstance(o, Spec))


def _small(kind: Kind) -> Kind:
    """The kind with small shapes: sizes of 1 stay, equal sizes stay equal."""
    sizes: dict[int, int] = {0: 2, 1: 1}

    def shrunk(s: Any) -> Any:
        return Spec(tuple(sizes.setdefault(d, 1 + len(sizes)) for d in s.shape), s.dtype) if isinstance(s, Spec) else s

    ins = tuple(shrunk(s) for s in kind.ins)
    return infer(kind.row, ins, kind.statics)


def _values(spec: Any, low: float, high: float, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if not isinstance(spec, Spec):
        return {float: high, int: 2, bool: True}[spec]
    if spec.dtype.rank == 2:
        return rng.uniform(low, high, spec.shape).astype(numpy_dtype(spec.dtype))
    return rng.integers(0 if low > 0 else -3 * spec.dtype.is_signed, 4, spec.shape).astype(numpy_dtype(spec.dtype))
